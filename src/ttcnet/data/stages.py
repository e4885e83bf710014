"""Stages of a run and its folder: the rows that every stage kept and dropped, their numbers, and the finished stages.

A stage writes under temporary names. At its end its files get their names, and counts.json gets an entry. So a killed
stage leaves nothing, and a run resumes at the first stage that is not in counts.json.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from rich.progress import Progress

from ttcnet.errors import fail
from ttcnet.run_folder import check_settings
from ttcnet.storage.reading import check_fields, read_json, rows
from ttcnet.storage.writing import replacing, write_json

from .settings import fixed

COUNTS, RESULT = "counts.json", "data.jsonl"
REMEDY = "Restore it, or choose another folder."
FIELDS: dict[str, Any] = dict(settings=dict, read=int, kept=int, dropped=dict, seconds=(int, float))
Content = dict[str, Any]  # problem, solution, answer, source, id


class StageBar:
    """The progress of a stage."""

    def __init__(self, progress: Progress, name: str, total: int | None) -> None:
        self._progress, self._task = progress, progress.add_task(name, total=total)

    def advance(self, steps: int = 1) -> None:
        self._progress.advance(self._task, steps)

    def begin(self, total: int, done: int) -> None:
        self._progress.reset(self._task, total=total, completed=done)

    def end(self) -> None:
        self._progress.stop_task(self._task)


class Stage:
    """A stage at work: rows go in, and each is kept, or dropped for a reason."""

    def __init__(self, folder: Path, inputs: list[Path], kept: IO[str], dropped: IO[str], bar: StageBar) -> None:
        self.folder, self.bar, self.read, self.kept = folder, bar, 0, 0
        self._inputs, self._kept, self._dropped = inputs, kept, dropped
        self.reasons, self.sources, self.notes = Counter[str](), Counter[str](), Counter[str]()

    def rows(self) -> Iterator[Content]:
        """The rows that the stage before kept."""
        for row in self.peek():
            self.count()
            yield row

    def peek(self) -> Iterator[Content]:
        """Yield the rows of the stage as they come in, before it works on them."""
        for path in self._inputs:
            for row in rows(str(path)):
                yield row.content

    def count(self) -> None:
        self.read += 1
        self.bar.advance()

    def keep(self, row: Content) -> None:
        self._kept.write(json.dumps(row, ensure_ascii=False) + "\n")
        self.kept += 1
        self.sources[row["source"]] += 1

    def drop(self, name: str, reason: str, **evidence: Any) -> None:
        self._dropped.write(json.dumps({"id": name, "reason": reason} | evidence, ensure_ascii=False) + "\n")
        self.reasons[reason] += 1


class StageSpec(NamedTuple):
    """A stage: its settings, the stages whose rows it reads, its work, and the other sources that it reads."""

    name: str
    settings: Any
    before: list[str]
    work: Callable[[Stage], None]
    sources: Sequence[str] = ()  # files, or names of the Hub, that it reads


class StageFolder:
    """The folder of a run with these stages. Those that are done must be the first of them."""

    def __init__(self, path: Path, specs: list[StageSpec], facts: Content) -> None:
        self.path = path
        self.counts: Content = facts | {"stages": {}}
        if (path / COUNTS).exists():
            self.counts["stages"] = done = read_json(path / COUNTS, REMEDY, stages=dict)["stages"]
            for name, stage in done.items():
                check_fields(f"{path / COUNTS}: stages: {name}", stage, REMEDY, **FIELDS)
            again = {spec.name: fixed(spec.settings) for spec in specs[: len(done)]}
            began = {name: stage["settings"] for name, stage in done.items()}
            check_settings(path, {"stages": [*began]} | began, {"stages": [*again]} | again)
            for (name, stage), spec in zip(done.items(), specs, strict=False):
                now, then = _digests(spec.sources), stage.get("files", {})  # which older runs do not have
                check_fields(f"{path / COUNTS}: stages: {name}", {"files": then}, REMEDY, files=dict)
                for file in now.keys() & then.keys():
                    if now[file] != then[file]:
                        remedy = "Choose another folder."
                        fail("data", f"must be that of the run in {path}", f"another {file}", remedy, "data-changed")
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / COUNTS, self.counts)

    def done(self, spec: StageSpec) -> bool:
        return spec.name in self.counts["stages"]

    def file(self, name: str) -> Path:
        """The file with the rows that a stage kept."""
        return self.path / (RESULT if name == "sample" else f"{name}.jsonl.gz")

    def do(self, spec: StageSpec, progress: Progress) -> None:
        kept, dropped = self.file(spec.name), self.path / f"{spec.name}.dropped.jsonl"
        inputs = [self.file(name) for name in spec.before]
        total = sum(self.counts["stages"][name]["kept"] for name in spec.before) if inputs else None
        begin, files = time.monotonic(), _digests(spec.sources)
        with replacing(dropped) as new_dropped, replacing(kept) as new_kept:
            with _open(new_kept) as writer, _open(new_dropped) as remarks:
                stage = Stage(self.path, inputs, writer, remarks, StageBar(progress, spec.name, total))
                spec.work(stage)
            stage.bar.end()
        if not stage.reasons:
            dropped.unlink()
        self.counts["stages"][spec.name] = {
            "settings": fixed(spec.settings),
            "files": files,
            "read": stage.read,
            "kept": stage.kept,
            "dropped": dict(stage.reasons.most_common()),
            "sources": dict(stage.sources),
            "notes": {note: number for note, number in stage.notes.items() if number},
            "seconds": round(time.monotonic() - begin, 3),
            "commit": self.counts["commit"],
        }
        write_json(self.path / COUNTS, self.counts)


def _digests(sources: Sequence[str]) -> dict[str, str]:
    """Digests of the sources that are files. A file may be gone after its rows were taken."""
    found = {}
    for name in sources:
        if Path(name).is_file():
            with Path(name).open("rb") as file:
                found[name] = hashlib.file_digest(file, "blake2b").hexdigest()[:32]
    return found


def _open(path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path, "wt", compresslevel=1, encoding="utf-8")
    return path.open("w", encoding="utf-8")
