"""Code that is compiled at run time is kept on disk if possible. If not, on a full disk or in a read-only installation
without a home, every process compiles it anew, and a message says so. Imports nothing heavy."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
from collections.abc import Callable
from tempfile import TemporaryFile, mkdtemp
from typing import Any

VARIABLE = "NUMBA_CACHE_DIR"
_told: set[str] = set()


def jit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """numba.njit with a cache on disk, as a decorator."""
    import numba

    def decorated(function: Callable[..., Any]) -> Any:
        try:
            made = numba.njit(cache=True, **options)(function)
        except RuntimeError:  # numba found no folder
            tell_unkept(VARIABLE, "no folder is writable")
            return numba.njit(**options)(function)
        for name in ("load_overload", "save_overload"):
            setattr(made._cache, name, _forgiving(getattr(made._cache, name)))
        return made

    return decorated


def _forgiving(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns None if the disk fails: nothing was found, or nothing was kept."""

    def called(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except OSError as error:
            tell_unkept(VARIABLE, str(error.strerror or error))
            return None

    return called


def usable(variable: str, folder: str) -> str:
    """The folder, for a compiler that needs one. If it cannot be written, another that is deleted with this process."""
    try:
        if folder.startswith("~"):
            raise OSError("there is no home")
        os.makedirs(folder, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        tell_unkept(variable, str(error.strerror or error))
        folder = mkdtemp(prefix="ttcnet-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def tell_unkept(variable: str, reason: str) -> None:
    """Print, once, that compiled code is not kept; `variable` is the environment variable that names a folder."""
    if variable not in _told:
        _told.add(variable)
        notice = f"ttcnet: compiled code cannot be kept ({reason}), so every process compiles it anew. "
        remedy = f"To keep it, set {variable} to a folder that can be written."
        logging.getLogger("ttcnet").warning(notice + remedy)
