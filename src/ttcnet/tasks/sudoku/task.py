"""Sudoku as a task for language models: a board in text, 81 digits back. (`ttcnet sudoku eval` is for models that
classify cells.)"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..statistics import Mean
from ..task import Example, Task, Verdict
from .data import Boards, read
from .grid import format, parse  # noqa: A004
from .metrics import rates
from .samples import samples
from .solver import solutions

PROMPT = """Solve this Sudoku. Fill in every dot so that each row, each column and each 3x3 box holds the digits 1 to 9.

{rows}

Put the 81 digits of the solved board, row by row, into \\boxed{{}}."""
BOX = re.compile(r"\\boxed\{([^{}]*)\}")
DIGIT = re.compile(r"[1-9]")


class Sudoku(Task):
    """The boards of a CSV file, or, without one, those that come with the package."""

    system = "Please reason step by step."
    system_no_cot = "Reply with the answer alone."

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = path
        self.name = "sudoku" if path is None else Path(path).name.partition(".")[0]

    def examples(self) -> list[Example]:
        boards = _shipped() if self.path is None else read(self.path)
        pairs = [(format(puzzle, blank="."), format(solution)) for puzzle, solution in boards]
        return [Example(number, *pair) for number, pair in enumerate(pairs, 1)]

    def prompt(self, example: Example) -> str:
        return PROMPT.format(rows="\n".join(example.text[k : k + 9] for k in range(0, 81, 9)))

    def grade(self, example: Example, text: str) -> Verdict:
        """The answer is the 81 digits in the last box, or the last 81 digits of a text without a box."""
        boxes = BOX.findall(text)
        digits = DIGIT.findall(boxes[-1]) if boxes else DIGIT.findall(text)[-81:]
        blank = [given == "." for given in example.text]
        if len(digits) != 81:
            return Verdict(False, None, f"{len(digits)} digits, not 81", {"right": 0, "blank": sum(blank)})
        answer = "".join(digits)
        right = sum(b and one == other for b, one, other in zip(blank, answer, example.answer, strict=True))
        note = f"{right} of {sum(blank)} blank cells are right"
        return Verdict(answer == example.answer, answer, note, {"right": right, "blank": sum(blank)})

    def metrics(self, verdicts: Sequence[Sequence[Verdict]], samples: int) -> dict[str, Mean | None]:
        """Boards as the accuracy, and the share of blank cells that are right."""
        found = super().metrics(verdicts, samples)
        if not verdicts:
            return found | {"cells": None}
        right, blank = (np.array([sum(one.scores[k] for one in each) for each in verdicts]) for k in ("right", "blank"))
        _, cells = rates(right, blank)
        return found | {"cells": Mean(cells.rate, cells.low, cells.high)}


def _shipped() -> Boards:
    puzzles = np.stack([parse(each.puzzle) for each in samples()])
    return Boards(puzzles, np.concatenate([solutions(puzzle) for puzzle in puzzles]))
