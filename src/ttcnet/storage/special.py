"""Special files: devices, pipes and sockets, which have no content of a known size. Imports nothing heavy."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ttcnet.errors import fail


def special_kind(path: str | os.PathLike[str]) -> str | None:
    """What there is at a path that is neither a regular file nor a folder; None if it is one of them, or nothing."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # not there, or no path
        return None
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return None
    return "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"


def check_regular(field: str, path: str | os.PathLike[str]) -> None:
    """Fail if a path leads to a pipe or a device: it may have no end, or nothing to read for ever. A folder passes, and
    so does a path that leads nowhere; whoever reads it says so."""
    if (kind := special_kind(path)) is not None:
        value = f"{str(path)!r}, which is not a regular file but {kind}"
        fail(field, "must be a regular file", value, "Pass a file with the content.", "not-readable")


def check_regular_files(field: str, folder: str | os.PathLike[str]) -> None:
    """Likewise for all that is in a folder, if it is one."""
    if os.path.isdir(folder):
        for each in Path(folder).iterdir():
            check_regular(field, each)


def descriptor(path: Path) -> int | None:
    """The number of the open file that a path such as /dev/stdout or /dev/fd/3 leads to."""
    path = Path(os.path.abspath(path))
    for _ in range(40):  # links
        folder = path.parent.resolve()
        if folder == Path(f"/proc/{os.getpid()}/fd") and path.name.isdecimal():
            return int(path.name)
        if not path.is_symlink():
            return None
        path = folder / os.readlink(path)
    return None
