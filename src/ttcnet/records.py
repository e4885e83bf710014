"""Rows that are read, one JSON object a line, and what a run writes down for people, whole or not at all."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .errors import fail
from .extras import require


class Row(NamedTuple):
    """A row and where it stands, for messages."""

    place: str
    content: dict[str, Any]


def rows(source: str, split: str = "train") -> Iterator[Row]:
    """The rows of a JSON Lines file, plain or gzip, or of a dataset of the Hub, "owner/name"."""
    path = Path(source)
    if path.is_file():
        yield from _lines(path)
    elif source.count("/") == 1 and not path.suffix.startswith((".json", ".gz")):
        datasets = require("datasets", "sft", "Reading from the Hub")
        for number, content in enumerate(datasets.load_dataset(source, split=split), 1):
            yield Row(f"{source} row {number}", content)
    else:
        remedy = "Pass a file with one JSON object a line, or the name of a dataset of the Hub, owner/name."
        fail("data", "must be a file", f"{source!r}, which does not exist", remedy, FileNotFoundError)


def _lines(path: Path) -> Iterator[Row]:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            place = f"{path} line {number}"
            try:
                content = json.loads(line)
            except ValueError as error:
                fail("data", "must have one JSON object a line", f"{place}: {error}", "Correct the line.")
            if not isinstance(content, dict):
                fail("data", "must have one JSON object a line", f"{place}: {line[:40]!r}", "Correct the line.")
            yield Row(place, content)


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def cut_log(log: Path, step: int) -> None:
    """Drop the lines that a killed run wrote after its last checkpoint, at `step`."""
    if log.exists():
        lines = [line for line in log.read_text().splitlines() if json.loads(line)["step"] <= step]
        write_text(log, "".join(f"{line}\n" for line in lines))


def write_text(path: Path, text: str) -> None:
    """Whole or not at all."""
    unfinished = path.with_name(f"{path.name}.tmp")
    unfinished.write_text(text)
    os.replace(unfinished, path)
