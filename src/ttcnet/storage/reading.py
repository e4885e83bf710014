"""Read rows of data (one JSON object per line) and JSON files, and check them."""

from __future__ import annotations

import gzip
import json
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ttcnet.errors import fail
from ttcnet.extras import require
from ttcnet.storage.special import check_regular, descriptor, special_kind

FILES = (".json", ".gz", ".csv", ".txt", ".parquet", ".zip")  # no dataset of the Hub has a name that ends so
MOST = 2**30  # bytes from a pipe
REMEDY = "Check its name, its subset and split (`ttcnet data` takes these), and the network."


class Row(NamedTuple):
    """A row, and its place in the file, for messages."""

    place: str
    content: dict[str, Any]


def rows(source: str, split: str = "train", remedy: str = REMEDY, **options: Any) -> Iterator[Row]:
    """The rows of a JSON Lines file, plain or gzip, or of a dataset of the Hub, "owner/name". `options` are those of
    `datasets.load_dataset`, and `remedy` is that of the error if the dataset cannot be read."""
    if is_file(source):
        yield from _lines(Path(source))
    else:
        for number, content in enumerate(_dataset(source, split, remedy, **options), 1):
            yield Row(f"{source} row {number}", content)


def is_path(name: str) -> bool:
    """Whether it can only be a path: names of the Hub are owner/name, or a name alone."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def is_file(source: str) -> bool:
    """Whether it is a file, and not a dataset of the Hub; an error if it can be neither."""
    path = Path(source)
    check_regular("data", path)
    if path.is_file():
        return True
    if "/" not in source or is_path(source) or path.suffix.startswith(FILES):
        remedy = "Pass a file with one JSON object a line, or the name of a dataset of the Hub, owner/name."
        value = f"{source!r}, which {'is a folder' if path.is_dir() else 'does not exist'}"
        fail("data", "must be a file", value, remedy, "not-found")
    return False


def count(source: str, split: str = "train") -> int | None:
    """The number of `rows`, or a few more, to estimate the time left. None if it is unknown."""
    if not is_file(source):
        return len(_dataset(source, split))
    with suppress(OSError, EOFError, zlib.error), _open(Path(source), "rb") as file:
        return sum(1 for _ in file)
    return None


def _dataset(source: str, split: str, remedy: str = REMEDY, **options: Any) -> Any:
    datasets = require("datasets", "data", "Reading from the Hub")
    try:
        return datasets.load_dataset(source, split=split, **options)
    except (ValueError, OSError, datasets.exceptions.DatasetsError) as error:
        rule = "must be a dataset that can be read"
        fail("data", rule, f"{source}: {' '.join(str(error).split())}", remedy, "bad-data")


def _open(path: Path, mode: str, **options: Any) -> Any:
    return gzip.open(path, mode, **options) if path.suffix == ".gz" else path.open(mode, **options)


def _lines(path: Path) -> Iterator[Row]:
    number = 0
    try:
        with _open(path, "rb") as file:
            for number, content in enumerate(file, 1):
                line = content.decode("utf-8-sig" if number == 1 else "utf-8")
                if line.strip():
                    yield Row(f"{path} line {number}", _object(line, f"{path} line {number}"))
    except UnicodeDecodeError as error:
        remedy = "Fetch or write the file again."
        fail("data", "must be UTF-8 text", f"{path} line {number}: {error}", remedy, "bad-data")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        remedy = "Fetch or write the file again."
        fail("data", "must be whole gzip", f"{path}, after line {number}: {error}", remedy, "bad-data")


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        fail("data", "must have one JSON object a line", f"{place}: {error}", "Correct the line.", "bad-data")
    if not isinstance(content, dict):
        fail("data", "must have one JSON object a line", f"{place}: {line[:40]!r}", "Correct the line.", "bad-data")
    return content


def read_bytes(path: Path, field: str | None = None) -> bytes:
    """The content of a regular file. A pipe that this process was given, such as /dev/stdin or <(...), is read to its
    end as well, if that comes soon."""
    number = descriptor(path) if special_kind(path) is not None else None
    if number is None or not (special_kind(path) in ("a pipe", "a socket") or os.isatty(number)):
        check_regular(field or str(path), path)
        return path.read_bytes()
    with open(os.dup(number), "rb") as stream:
        content = stream.read(MOST + 1)
    if len(content) > MOST:
        remedy = "Write it to a file, and pass that."
        fail(field or str(path), f"must have {MOST} bytes or less through a pipe", "more", remedy, "too-large")
    return content


def read_text(path: Path, field: str | None = None) -> str:
    """Likewise, a text in UTF-8; a UnicodeDecodeError if it is none."""
    return read_bytes(path, field).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path, remedy: str, **fields: type | tuple[type, ...]) -> dict[str, Any]:
    """The object that ttcnet wrote to a file, with at least these fields, each of its type. A file that was changed or
    is incomplete is an error."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        fail(str(path), "must be whole JSON", error, remedy, "damaged")
    check_fields(str(path), content, remedy, **fields)
    return content


def check_fields(place: str, content: Any, remedy: str, **fields: type | tuple[type, ...]) -> None:
    """Fail unless a value from a file is an object with at least these fields, each of its type, numbers finite."""
    if not isinstance(content, dict):
        fail(place, "must be an object of JSON", repr(content)[:40], remedy, "damaged")
    for name, kind in fields.items():
        value = content.get(name)
        odd = isinstance(value, bool) and kind is not bool  # which Python takes for a number
        odd = odd or (isinstance(value, float) and not math.isfinite(value))
        if name not in content or not isinstance(value, kind) or odd:
            shown = repr(value)[:40] if name in content else "none"
            fail(f"{place}: {name}", "must be as ttcnet wrote it", shown, remedy, "damaged")


def is_unicode(text: str) -> bool:
    """Whether a text can be written and tokenised. JSON lets half a letter through."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
