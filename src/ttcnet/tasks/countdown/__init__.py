"""Countdown: reach a target from given numbers, each used at most once, with + - * /.

    puzzles = make(1000, Difficulty(numbers=(3, 4), largest=30), seed=0)      # solvable; train and test are disjoint
    row(puzzles[0])                                     # problem, solution step by step, answer: for `ttcnet sft`
    solve((3, 7, 25), 54)                               # one solution, or None; `solutions` gives all
    grade({"numbers": [3, 7, 25], "target": 54}, r"\\boxed{(25 - 7) * 3}")    # Verdict(right=True, ...)

Values on the way may be fractions: arithmetic is exact. Nothing is run through `eval`.
"""

from ..task import Verdict
from .expressions import Step
from .generator import Difficulty, Puzzle, make
from .grading import grade, stated
from .solver import Solution, solutions, solve
from .text import row

__all__ = [
    "Difficulty",
    "Puzzle",
    "Solution",
    "Step",
    "Verdict",
    "grade",
    "make",
    "row",
    "solutions",
    "solve",
    "stated",
]
