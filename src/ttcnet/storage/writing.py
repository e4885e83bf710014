"""Files and folders that are written completely or not at all: until then they have a temporary name. They get the
permissions that the user's umask gives. Imports nothing heavy."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ttcnet.errors import fail
from ttcnet.storage.special import descriptor, special_kind

PICTURES = (".png", ".pdf", ".svg")
_UNFINISHED = re.compile(r"\.[0-9a-f]{8}\.tmp\..+")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new, empty file with the suffix of `path`. At the end of the block it replaces `path`; if the block fails,
    nothing changes. Links are followed. A device, a pipe or /dev/stdout is not replaced: at the end of the block all is
    written to it."""
    if is_stream(path):
        with TemporaryDirectory() as folder:
            new = Path(folder) / Path(path).name
            new.touch()
            yield new
            _pour(new, path)
        return
    target = Path(os.path.realpath(path))
    new = temporary(target)
    try:
        new.touch(exist_ok=False)
        yield new
        put(new, target)
    finally:
        new.unlink(missing_ok=True)


def temporary(path: Path) -> Path:
    """A temporary name beside the path that no other process uses; `put` moves it to the path."""
    return path.with_name(f".{secrets.token_hex(4)}.tmp.{path.name}")


def put(new: Path, path: Path) -> None:
    """Give a file or folder the name `path`, which may be that of an older one, and the permissions that it would have
    had if open() and mkdir() had made it: files of safetensors and tempfile are closed to other users."""
    if new.is_dir():
        for each in new.rglob("*"):
            open_up(each)
        old = temporary(path)
        with suppress(FileNotFoundError):
            os.replace(path, old)
        os.replace(new, path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        open_up(new)
        with suppress(FileNotFoundError):
            shutil.copymode(path, new)
        os.replace(new, path)


def open_up(path: Path) -> None:
    """Give a new file or folder the permissions of the user's umask."""
    mask = os.umask(0o077)  # Python has no other way to read it
    os.umask(mask)
    path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)


def clear(folder: Path) -> None:
    """Remove the unfinished files of killed processes. Call it only while you own the folder (locking.py)."""
    for path in folder.iterdir():
        if _UNFINISHED.fullmatch(path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def is_stream(path: Path) -> bool:
    """Whether `path` must not be replaced by a file: a device, a pipe, an open file of this process such as
    /dev/stdout."""
    return descriptor(path) is not None or special_kind(path) is not None


def _pour(source: Path, path: Path) -> None:
    number = descriptor(path)  # if it were opened anew, it would be written from its beginning
    for each in (sys.stdout, sys.stderr):
        each.flush()
    with source.open("rb") as content, open(path if number is None else os.dup(number), "wb") as stream:
        shutil.copyfileobj(content, stream)


def check_output(field: str, path: Path | None) -> None:
    """Fail, before any work is done, if no file can be written there. Its folder is made."""
    if path is None:
        return
    if is_stream(path):
        if not os.access(path, os.W_OK):
            remedy = "Name another file."
            fail(field, "must be a file that can be written", f"{path}, which is not", remedy, "not-writable")
        return
    folder = Path(os.path.realpath(path)).parent
    folder.mkdir(parents=True, exist_ok=True)
    if path.is_dir() or not os.access(folder, os.W_OK):
        value = f"{path}, which is a folder" if path.is_dir() else f"{path} in a folder that is read-only"
        fail(field, "must be a file that can be written", value, "Name another file.", "not-writable")


def check_folder(field: str, path: Path) -> None:
    """Fail, before any work is done, if no folder can be made there. It is not made yet."""
    there = next(each for each in (path, *path.absolute().parents) if os.path.lexists(each))
    if not there.is_dir() or not os.access(there, os.W_OK):
        what = "a file" if there.exists() else "a link that leads nowhere"
        value = f"{path}, where {there} is {'read-only' if there.is_dir() else special_kind(there) or what}"
        fail(field, "must be a folder that can be written", value, "Name another.", "not-writable")


def check_picture(field: str, path: Path) -> None:
    """Fail, before any work is done, if no picture can be written there."""
    if path.suffix not in PICTURES:
        fail(field, f"must end in {' or '.join(PICTURES)}", path, "Name a file of one of these kinds.", "format")
    check_output(field, path)


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object per line."""
    write_text(path, "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV. The fields of the first row are the columns."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as new:
        new.write_bytes(content)
