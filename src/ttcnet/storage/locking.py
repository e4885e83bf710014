"""One command at a time in a folder, by a lock of the operating system that ends with its process."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ttcnet.errors import fail
from ttcnet.storage.special import check_regular_files
from ttcnet.storage.writing import check_folder, clear

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
_UNABLE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # some network filesystems
_held: set[int] = set()


@contextmanager
def owned(folder: Path, field: str = "out") -> Iterator[None]:
    """Inside the block, only this process uses the folder, or the processes of one distributed job, each with its own
    lock. The folder is made if it does not exist, and removed if it stays empty. Unfinished files of killed processes
    are removed. If another command is using the folder, the error names `field`."""
    check_folder(field, folder)
    check_regular_files(field, folder)
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    rank = os.environ.get("RANK", "0")
    path = folder / (LOCK if rank == "0" else f"{LOCK}-{rank}")
    lock = _lock(path, folder, field)
    try:
        if rank == "0":
            clear(folder)
        yield
    finally:
        if lock in _held:  # and this is no forked child
            with suppress(FileNotFoundError):
                path.unlink()  # while it is locked, so that nobody else holds it
            _held.discard(lock)
            os.close(lock)
            with suppress(OSError):  # a folder that is not empty stays
                for each in made:
                    each.rmdir()


def _lock(path: Path, folder: Path, field: str) -> int | None:
    """An open file that is locked; None if the filesystem has no locks."""
    if fcntl is None:
        return None
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(file, path):
                os.truncate(file, 0)
                os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
                _held.add(file)
                return file
            os.close(file)  # its owner has removed it in the meantime
        except BlockingIOError:
            who = os.read(file, 200).decode("utf-8", "replace") or "another process"
            os.close(file)
            remedy = "Wait until it is done, or stop it; or name another folder."
            rule = "must be a folder that no other command is using"
            fail(field, rule, f"{folder}, which {who} is writing to", remedy, "in-use")
        except OSError as error:
            os.close(file)
            if error.errno not in _UNABLE:
                raise
            reason, remedy = error.strerror, "Make sure that no other command writes there."
            notice = f"ttcnet: {folder} cannot be locked ({reason}). "
            logging.getLogger("ttcnet").warning(notice + remedy)
            return None


def _is(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _let_go() -> None:
    """A forked child closes its copies, which would hold the locks when its parent is gone."""
    for file in _held:
        with suppress(OSError):
            os.close(file)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
