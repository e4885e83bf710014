"""Optional packages: imported where they are used, and missed in one way."""

from __future__ import annotations

import importlib
from types import ModuleType


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import `module`, or say which extra of ttcnet brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != package:
            raise  # it is there, and something else is broken
        message = f"{purpose} needs the package {package}, which is not installed. Install it with: "
        raise ImportError(f"{message}pip install 'ttcnet[{extra}]'", name=package) from error
