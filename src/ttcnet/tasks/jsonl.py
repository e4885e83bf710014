"""A JSON Lines file as a task: a problem and an answer in every line. Lines that also have `numbers` and `target`, as
`ttcnet countdown make` writes them, are graded as puzzles of Countdown; all others as mathematics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ttcnet.storage.reading import rows

from .countdown.grading import grade, is_puzzle
from .math.grade import PACKAGES, same, verdict
from .math.prompts import COT, NO_COT
from .rows import examples_of
from .task import Example, Task, Verdict

PUZZLE = ("numbers", "target")


class JsonLines(Task):
    """The task in a file. Its name is that of the file, without the ending."""

    system, system_no_cot, packages = COT, NO_COT, PACKAGES

    def __init__(self, path: str | Path) -> None:
        self.path, self.name = str(path), Path(path).name.partition(".")[0]

    def examples(self) -> list[Example]:
        return examples_of(rows(self.path), self.path, _puzzle)

    def grade(self, example: Example, text: str) -> Verdict:
        return grade(example.data, text) if example.data else verdict(example.answer, text)

    def same(self, one: str, other: str) -> bool:
        return same(one, other)


def _puzzle(row: Mapping[str, Any]) -> dict[str, Any] | None:
    if not all(key in row for key in PUZZLE):
        return None
    if not is_puzzle(row):
        raise ValueError("numbers and target that are no puzzle of Countdown")
    return {key: row[key] for key in PUZZLE}
