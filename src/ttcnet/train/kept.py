"""The examples of a run, made once and kept in its folder, where its other processes read them, and the run itself when
it goes on. They stay on the disk: memory does not limit their number."""

from __future__ import annotations

import json
import os
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset
from rich.console import Console
from rich.progress import track

from ttcnet.files import is_first_process
from ttcnet.records import count, rows, write_json

from .examples import Example, Examples, prepare
from .settings import FineTuning

SCHEMA = pa.schema({name: pa.list_(pa.int32()) for name in Example._fields})
DATA, FACTS = "examples.arrow", "examples.json"
ROWS = 1000  # that are written at a time


class Store:
    """An Arrow file that examples are appended to."""

    def __init__(self, path: Path) -> None:
        self.stream = pa.ipc.new_stream(str(path), SCHEMA)
        self.waiting: list[Example] = []
        self.count = 0

    def append(self, example: Example) -> None:
        self.waiting.append(example)
        self.count += 1
        if len(self.waiting) == ROWS:
            self.write()

    def write(self) -> None:
        self.stream.write_batch(pa.RecordBatch.from_pylist([row._asdict() for row in self.waiting], SCHEMA))
        self.waiting = []

    def close(self) -> None:
        if self.waiting:
            self.write()
        self.stream.close()

    def __len__(self) -> int:
        return self.count


def examples_of(config: FineTuning, tokenizer: Any, folder: Path) -> Examples:
    """Those in the folder, if they were made of the same data in the same way, and new ones otherwise. Of several
    processes the first makes them, and the others wait."""
    file = Path(config.data)
    origin = {name: getattr(config, name) for name in ("data", "split", "system", "max_length", "model")}
    origin |= {"template": tokenizer.chat_template}
    if file.is_file():
        origin |= {"bytes": file.stat().st_size, "changed": file.stat().st_mtime_ns}
    if is_first_process() and _counts(folder, origin) is None:
        (folder / FACTS).unlink(missing_ok=True)
        write_json(folder / FACTS, {"counts": _make(config, tokenizer, folder), "origin": origin})
    while (counts := _counts(folder, origin)) is None:
        time.sleep(1)
    return Examples(Dataset.from_file(str(folder / DATA)), **counts)


def _counts(folder: Path, origin: dict[str, Any]) -> dict[str, int] | None:
    if not (folder / FACTS).exists() or not (folder / DATA).exists():
        return None
    found = json.loads((folder / FACTS).read_text())
    return found["counts"] if found["origin"] == origin else None


def _make(config: FineTuning, tokenizer: Any, folder: Path) -> dict[str, int]:
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{DATA}.tmp"
    store, total = Store(unfinished), count(config.data, config.split)
    console = Console(stderr=True)
    quiet = not console.is_terminal
    source = track(rows(config.data, config.split), "reading", total, console=console, transient=True, disable=quiet)
    made = prepare(source, tokenizer, max_length=config.max_length, system=config.system, store=store)
    store.close()
    os.replace(unfinished, folder / DATA)
    return {field.name: getattr(made, field.name) for field in fields(Examples) if field.name != "kept"}
