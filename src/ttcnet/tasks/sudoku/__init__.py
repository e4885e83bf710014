"""Sudoku: boards, files, a solver, a generator, symmetries and scores.

    boards = read("train.csv.gz")                 # or generate(1000, givens=(25, 34), seed=0); both are Boards
    boards.puzzles, boards.solutions              # uint8 arrays (N, 81), 0 for a blank
    print(draw(boards.puzzles[0]))
    count("53..7....6..195...", limit=2)          # 0, 1 or "2 or more" solutions
    rate(boards.puzzles[0])                       # the guesses that an exact solver needs
    puzzles, solutions = augment(boards.puzzles, boards.solutions, numpy_generator)
    print(score(predictions, puzzles, solutions).table())
    model = pretrained()                          # a trained model, which comes with the package
    solve(model, ["53..7....6..195..."])          # strings or arrays in, strings out

Importing this module imports neither numpy, torch nor numba: each name imports its module at its first use. The exact
solver is compiled then, and kept on disk.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .data import Boards, read
    from .decode import solve
    from .generator import generate
    from .grid import draw, format, parse  # noqa: A004
    from .metrics import Band, Group, Rate, Scores, score
    from .shipped import pretrained
    from .solver import conflicts, count, rate, solutions
    from .symmetry import augment, reveal

__all__ = [
    "Band",
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
    "rate",
    "read",
    "reveal",
    "score",
    "solutions",
    "solve",
]

_WHERE = {
    "Boards": "data", "read": "data", "solve": "decode", "generate": "generator", "draw": "grid", "format": "grid",
    "parse": "grid", "Group": "metrics", "Band": "metrics", "Rate": "metrics", "Scores": "metrics", "score": "metrics",
    "pretrained": "shipped", "conflicts": "solver", "count": "solver", "rate": "solver", "solutions": "solver",
    "augment": "symmetry", "reveal": "symmetry",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
