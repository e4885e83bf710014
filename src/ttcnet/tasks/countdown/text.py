"""Puzzles as rows, for training and for grading."""

from __future__ import annotations

from typing import Any

from .generator import Puzzle

PROBLEM = (
    "Reach {target} with the numbers {numbers}. Use + - * / and each number at most once. "
    "Put the expression into \\boxed{{}}."
)


def row(puzzle: Puzzle) -> dict[str, Any]:
    """Problem, solution and answer, as `ttcnet sft` reads them; numbers and target, by which `grade` grades.

    Examples:
        >>> from .generator import make
        >>> print(row(make(1, seed=3)[0])["solution"])
        22 * 18 = 396, left: 20, 396
        396 - 20 = 376
        \\boxed{22 * 18 - 20}
    """
    left = [str(value) for value in puzzle.numbers]
    lines = []
    for step in puzzle.steps:
        for value in (step.left, step.right):
            left.remove(str(value))
        left.append(str(step.result))
        lines.append(f"{step}, left: {', '.join(left)}" if len(left) > 1 else str(step))
    lines.append(f"\\boxed{{{puzzle.expression}}}")
    return {
        "problem": PROBLEM.format(target=puzzle.target, numbers=", ".join(map(str, puzzle.numbers))),
        "solution": "\n".join(lines),
        "answer": puzzle.expression,
        "numbers": list(puzzle.numbers),
        "target": puzzle.target,
    }
