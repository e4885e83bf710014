"""Countdown as a task: puzzles of the test split, made on the spot."""

from __future__ import annotations

from ..math.prompts import COT, NO_COT
from ..task import Example, Task, Verdict
from .expressions import read
from .generator import Difficulty, make
from .grading import grade
from .text import row


class Countdown(Task):
    """`count` puzzles; the same seed and difficulty make the same ones. A file that `ttcnet countdown make` has written
    is a task of its own: `ttcnet.tasks.jsonl.JsonLines`."""

    name = "countdown"
    max_tokens = 1024
    system, system_no_cot = COT, NO_COT

    def __init__(self, count: int = 200, difficulty: Difficulty | None = None, seed: int = 0) -> None:
        self.count, self.difficulty, self.seed = count, difficulty, seed

    def examples(self) -> list[Example]:
        puzzles = make(self.count, self.difficulty, seed=self.seed, split="test")
        found = []
        for number, content in enumerate(map(row, puzzles), 1):
            data = {"numbers": content["numbers"], "target": content["target"]}
            found.append(Example(number, content["problem"], content["answer"], data))
        return found

    def grade(self, example: Example, text: str) -> Verdict:
        assert example.data is not None
        return grade(example.data, text)

    def same(self, one: str, other: str) -> bool:
        """Two expressions mean the same if they have the same value."""
        try:
            return one == other or read(one).value == read(other).value
        except (ValueError, ZeroDivisionError):
            return False
