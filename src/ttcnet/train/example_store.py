"""The examples of a run, made once and stored in its folder. Its other processes read them there, and so does the run
when it is resumed. They stay on the disk: memory does not limit their number."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset
from rich.console import Console

from ttcnet.errors import fail
from ttcnet.machine.processes import PATIENCE, is_first_process, of_first, rank, together
from ttcnet.model_names import reason
from ttcnet.storage.reading import count, read_json, rows
from ttcnet.storage.writing import clear, replacing, write_json
from ttcnet.terminal.progress_bars import Bar

from .examples import Example, Examples, prepare
from .settings import FineTuning

SCHEMA = pa.schema({name: pa.list_(pa.int32()) for name in Example._fields})
DATA, FACTS = "examples.arrow", "examples.json"
ROWS = 1000  # that are written at a time
SHOWN = 60  # characters of a value in a message


class Store:
    """An Arrow file that examples are appended to."""

    def __init__(self, path: Path) -> None:
        self.stream = pa.ipc.new_stream(str(path), SCHEMA)
        self.waiting: list[Example] = []
        self.count, self.digest = 0, hashlib.sha256()

    def append(self, example: Example) -> None:
        self.waiting.append(example)
        self.count += 1
        for part in example:
            self.digest.update(np.asarray([len(part), *part], dtype=np.int32).tobytes())
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


def examples_of(config: FineTuning, tokenizer: Any, folder: Path, begun: bool = False) -> Examples:
    """The examples in the folder, if they were made from the same data in the same way, and new ones otherwise. A run
    that has begun cannot be resumed with others. The first process makes them, and the others wait."""
    file = Path(config.data)
    origin = {name: getattr(config, name) for name in ("data", "split", "system", "max_length", "model")}
    origin |= {"template": tokenizer.chat_template}
    if file.is_file():
        origin |= {"bytes": file.stat().st_size, "changed": file.stat().st_mtime_ns}
    _agree(origin)
    with together():
        if is_first_process() and _counts(folder, origin) is None:
            _make_in(folder, config, tokenizer, origin, begun)
    with together():
        return _read(folder, origin)


def _agree(origin: dict[str, Any]) -> None:
    """All processes of a job must have the same data. Dates of files are not compared: they may differ between
    machines."""
    first = json.loads(of_first(json.dumps(origin)))
    with together():
        if odd := [key for key in origin if origin[key] != first.get(key) and key != "changed"]:
            theirs, here = ({key: str(each.get(key))[:SHOWN] for key in odd} for each in (first, origin))
            rule, value = f"must be that of process 0, {theirs}", f"{here} in process {rank()}"
            fail("data", rule, value, "Give all machines the same files.", "disagree")
    origin.update(first)


def _make_in(folder: Path, config: FineTuning, tokenizer: Any, origin: dict[str, Any], begun: bool) -> None:
    """Make the examples anew, in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    clear(folder)
    with replacing(folder / DATA) as new:
        made, digest = _make(config, tokenizer, new)
        if begun and _facts(folder).get("digest", digest) != digest:
            remedy = "Restore the data, or choose another folder."
            rule = f"must be that of the run in {folder.parent}"
            fail("data", rule, f"other rows in {config.data}", remedy, "data-changed")
        (folder / FACTS).unlink(missing_ok=True)
    write_json(folder / FACTS, {"counts": made, "origin": origin, "digest": digest})


def _read(folder: Path, origin: dict[str, Any]) -> Examples:
    """The examples that the first process made. A network filesystem may show them a little later."""
    end = time.monotonic() + PATIENCE
    while (counts := _counts(folder, origin)) is None and time.monotonic() < end:
        time.sleep(0.5)
    if counts is None:
        remedy = "Name a folder on a filesystem that all machines share, by its whole path."
        fail("out", "must be one folder for all processes", f"{folder} without examples", remedy, "not-found")
    try:
        return Examples(Dataset.from_file(str(folder / DATA)), **counts)
    except (pa.ArrowInvalid, OSError, TypeError, ValueError) as error:
        remedy = f"Delete {folder}: examples are made again of the data."
        fail(str(folder / DATA), "must hold the examples of the run", reason(error), remedy, "damaged")


def _counts(folder: Path, origin: dict[str, Any]) -> dict[str, int] | None:
    found = _facts(folder)
    return found["counts"] if found.get("origin") == origin and (folder / DATA).exists() else None


def _facts(folder: Path) -> dict[str, Any]:
    file = folder / FACTS
    remedy = f"Delete {folder}: examples are made again of the data."
    if not file.exists():
        return {}
    found = read_json(file, remedy, counts=dict, origin=dict, digest=str)
    for name, value in found["counts"].items():
        if isinstance(value, bool) or not isinstance(value, int):
            fail(f"{file}: counts.{name[:40]}", "must be as ttcnet wrote it", repr(value)[:40], remedy, "damaged")
    return found


def _make(config: FineTuning, tokenizer: Any, path: Path) -> tuple[dict[str, int], str]:
    """Write the examples to a file. Returns counts, and a digest of the rows."""
    store, total = Store(path), count(config.data, config.split)
    with Bar(console=Console(stderr=True), transient=True) as progress:
        source = progress.track(rows(config.data, config.split), total, description="reading")
        made = prepare(source, tokenizer, max_length=config.max_length, system=config.system, store=store)
    store.close()
    return made.counts, store.digest.hexdigest()
