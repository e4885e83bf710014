"""Sudoku: boards, files, a solver, a generator, symmetries and scores.

    boards = read("train.csv.gz")                 # or generate(1000, givens=(25, 34), seed=0); both are Boards
    boards.puzzles, boards.solutions              # uint8 arrays (N, 81), 0 for a blank
    print(draw(boards.puzzles[0]))
    count("53..7....6..195...", limit=2)          # 0, 1 or "2 or more" solutions
    puzzles, solutions = augment(boards.puzzles, boards.solutions, numpy_generator)
    print(score(predictions, puzzles, solutions).table())
    model = pretrained()                          # a trained model, which comes with the package
    solve(model, ["53..7....6..195..."])          # strings in, strings out

Importing this module imports neither torch nor numba: the solver is compiled at its first use and kept on disk, and
torch is needed only by what works on tensors.
"""

from typing import TYPE_CHECKING, Any

from .data import Boards, read
from .generator import generate
from .grid import draw, format, parse  # noqa: A004
from .metrics import Group, Rate, Scores, score
from .solver import conflicts, count, solutions
from .symmetry import augment, reveal

__all__ = [
    "Boards",
    "Group",
    "Rate",
    "Scores",
    "augment",
    "conflicts",
    "count",
    "draw",
    "format",
    "generate",
    "parse",
    "pretrained",
    "read",
    "reveal",
    "score",
    "solutions",
    "solve",
]

if TYPE_CHECKING:
    from .decode import solve
    from .shipped import pretrained


def __getattr__(name: str) -> Any:
    if name == "solve":  # needs torch
        from .decode import solve

        return solve
    if name == "pretrained":
        from .shipped import pretrained

        return pretrained
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
