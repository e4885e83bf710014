"""The folder of an evaluation: settings.json, problems.jsonl, a line for every generation in generations.*.jsonl (one
file per process), summary.json. Stored answers are not generated again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ttcnet.errors import fail
from ttcnet.run_folder import REMEDY, SETTINGS, RunFolder, settings_of
from ttcnet.storage.reading import check_fields, read_bytes, rows
from ttcnet.storage.writing import write_lines

from ..engines.base import FAILED

DEPTHS, SHOWN = ("*/", "*/*/"), 20  # where evaluations are looked for, and how many are named
VERDICTS = ("right", "wrong", "unparsable", FAILED)
_MAYBE = type(None)
FIELDS: dict[str, tuple[type, ...]] = {  # of a line, with the types that each may have
    "problem": (int,), "sample": (int,), "horizon": (int, _MAYBE), "text": (str,), "finish": (str,), "verdict": (str,),
    "answer": (str, _MAYBE), "note": (str,), "new_tokens": (int, _MAYBE), "prompt_tokens": (int, _MAYBE),
    "seconds": (float, int), "mean_logprob": (float, int, _MAYBE),
}  # fmt: skip
PROBLEMS, SUMMARY = "problems.jsonl", "summary.json"

Line = dict[str, Any]  # of the file of generations


class Question(NamedTuple):
    """A question and its right answer."""

    text: str
    answer: str


class Key(NamedTuple):
    """Problem, sample and horizon of a generation."""

    problem: int
    sample: int
    horizon: int | None


def key_of(line: dict[str, Any]) -> Key:
    return Key(line["problem"], line["sample"], line["horizon"])


class Generations(RunFolder):
    """The folder, as seen by one of several processes."""

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        problems: Iterable[dict[str, Any]],
        rank: int = 0,
        packages: Sequence[str] = (),
    ) -> None:
        super().__init__(folder, settings, what="evaluation", packages=packages)
        self.file = folder / f"generations.{rank}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / SETTINGS).exists():
            self.compare(settings_of(folder))
        elif rank == 0:
            write_lines(folder / PROBLEMS, problems)
            self.write_settings()
        _mend(self.file)

    def append(self, lines: Iterable[dict[str, Any]]) -> None:
        with self.file.open("a", encoding="utf-8") as file:
            file.write("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())

    def done(self) -> set[Key]:
        """The keys that have an answer. A failed sample has none."""
        return {key_of(line) for line in generations(self.folder) if line["finish"] != FAILED}


def generations(folder: Path) -> list[dict[str, Any]]:
    """All lines of all processes, in order of horizon, problem and sample. Of several for the same one the last that
    did not fail counts. A line that is being written is skipped."""
    found: dict[Key, dict[str, Any]] = {}
    for path in sorted(folder.glob("generations.*.jsonl")):
        whole, _, _ = read_bytes(path).rpartition(b"\n")
        for number, text in enumerate(whole.split(b"\n") if whole else [], 1):
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                line = None
            if not is_generation(line):
                value = f"line {number}: {text[:40].decode('utf-8', 'replace')!r}"
                remedy = "Take the line out; it will be made again."
                fail(str(path), "must hold a generation a line", value, remedy, "damaged")
            if line["finish"] != FAILED or key_of(line) not in found:
                found[key_of(line)] = line
    return [found[each] for each in sorted(found, key=lambda key: (key.horizon or 0, key.problem, key.sample))]


def is_generation(line: Any) -> bool:
    """Whether a line is a whole generation."""
    return (
        isinstance(line, dict)
        and all(
            name in line and type(line[name]) in kinds and line[name] == line[name] for name, kinds in FIELDS.items()
        )
        and line["verdict"] in VERDICTS
        and line["problem"] > 0
        and _is_scores(line.get("scores", {}))
    )


def _is_scores(value: Any) -> bool:
    """Whether it holds numbers by name."""
    return isinstance(value, dict) and all(type(each) in (int, float) and each == each for each in value.values())


def evaluation_settings(folder: Path, **fields: type) -> dict[str, Any]:
    """Read the settings of an evaluation, which must have at least these fields."""
    if not (folder / SETTINGS).is_file():
        near = (
            path for depth in DEPTHS for path in folder.glob(f"{depth}{SETTINGS}")
        )  # a search of the whole disk would take too long
        inner = sorted(path.parent for path in islice(near, SHOWN)) if folder.is_dir() else []
        remedy = f"Pass one of {', '.join(map(str, inner))}." if inner else "Pass the folder that --out named."
        fail("folder", "must hold an evaluation", str(folder), remedy, "not-found")
    return settings_of(folder, **fields)


def problems_of(folder: Path) -> dict[int, Question]:
    """All problems, by their numbers, those with an answer at least."""
    found = {}
    for row in rows(str(folder / PROBLEMS)):
        check_fields(row.place, row.content, REMEDY, number=int, text=str, answer=str)
        found[row.content["number"]] = Question(row.content["text"], row.content["answer"])
    for line in generations(folder):
        if line["problem"] not in found:
            value = f"none for problem {line['problem']}, which has an answer"
            fail(str(folder / PROBLEMS), "must hold all problems", value, REMEDY, "damaged")
    return found


def _mend(file: Path) -> None:
    """Cut off the half of a line that a killed process left behind."""
    if file.exists():
        content = read_bytes(file)
        if not content.endswith(b"\n"):
            os.truncate(file, content.rfind(b"\n") + 1)
