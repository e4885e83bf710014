"""Layers: TTC, samplers of its planning horizon, and the mixers that it stands beside.

Importing this module does not import torch: each name imports its module at its first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import mixers
    from .horizon import Fixed, PoissonLogNormal, Uniform
    from .inserted import Inserted
    from .ttc import TTCLayer, ttc_layers

__all__ = ["Fixed", "Inserted", "PoissonLogNormal", "TTCLayer", "Uniform", "mixers", "ttc_layers"]

_WHERE = {
    "Fixed": "horizon", "Inserted": "inserted", "PoissonLogNormal": "horizon", "TTCLayer": "ttc", "Uniform": "horizon",
    "ttc_layers": "ttc",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "mixers":
        return import_module(".mixers", __name__)
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
