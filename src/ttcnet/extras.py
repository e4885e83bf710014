"""Optional packages: imported where they are used, with one error if they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from .errors import fail


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import `module`, or say which extra of ttcnet brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != package:
            raise  # it is installed, and something else is broken
        rule, remedy = f"needs the package {package}", f"Install it with: pip install 'ttcnet[{extra}]'"
        fail(purpose, rule, "an installation without it", remedy, "package")
