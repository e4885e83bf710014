"""Answers to the requests of the page: about the model, how a board settles, how it is solved cell by cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ttcnet.errors import fail, whole_number
from ttcnet.nn import ttc_layers

from .grid import Board, format, parse  # noqa: A004
from .samples import samples
from .solver import conflicts, solutions, verdict
from .step_by_step import moves, plan_values, settling, stage_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from ttcnet.models import TTCNetForCellClassification

    Question = dict[str, list[str]]
    Wanted = Callable[[], bool]

HORIZONS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # points of the curves; all up to the last would take 5 times as long
MOST_LOOPS = 256


class AbandonedError(Exception):
    """The browser has gone, and nobody waits for the answer."""


def about(model: TTCNetForCellClassification, _: Question, __: Wanted) -> dict[str, Any]:
    """The abilities of the model, and boards to try."""
    boards = [{"level": each.level, "guesses": each.guesses, "puzzle": each.puzzle} for each in samples()]
    config = model.config
    looped = {"stage": stage_name(model), "loops": config.loops, "most": min(4 * config.loops, MOST_LOOPS)}
    return looped | {"horizon": config.horizon if ttc_layers(model) else None, "boards": boards}


def settle(model: TTCNetForCellClassification, question: Question, wanted: Wanted) -> dict[str, Any]:
    """All cells at once, after every loop; how many are right, with plans and without; the values of the plans."""
    puzzle, horizon, loops = _asked(model, question)
    answer: dict[str, Any] = {"warning": verdict(puzzle), "stages": [], "right": None, "without": None, "values": []}
    if conflicts(puzzle).any() or (puzzle > 0).all():
        return answer
    solution = _solution(puzzle)
    digits, sure = settling(model, puzzle, horizon, loops)
    rows = zip(digits, sure, strict=True)
    answer["stages"] = [{"digits": format(row), "sure": (100 * s).round().astype(int).tolist()} for row, s in rows]
    if solution is not None:
        answer |= {"solution": format(solution), "right": _right(puzzle, solution, digits)}
    if ttc_layers(model):
        _check(wanted)
        if solution is not None and horizon != 0:
            answer["without"] = _right(puzzle, solution, settling(model, puzzle, 0, loops)[0])
        _check(wanted)
        answer |= {"horizons": HORIZONS, "values": plan_values(model, puzzle, HORIZONS).tolist()}
    return answer


def solve(model: TTCNetForCellClassification, question: Question, wanted: Wanted) -> dict[str, Any]:
    """Fill the board cell by cell. Returns the moves, and the exact solver's verdict."""
    puzzle, horizon, loops = _asked(model, question)
    found = []
    for move in () if conflicts(puzzle).any() else moves(model, puzzle, horizon, loops):
        _check(wanted)
        found.append(vars(move))
    solution = _solution(puzzle)
    shown = {} if solution is None else {"solution": format(solution)}
    return {"moves": found, "warning": verdict(puzzle)} | shown


ANSWERS = {"/about": about, "/settle": settle, "/solve": solve}


def answer(
    path: str, model: TTCNetForCellClassification, question: Question, wanted: Wanted = lambda: True
) -> dict[str, Any]:
    """One of ANSWERS, as long as it is `wanted`."""
    _check(wanted)  # there may have been others before it
    return ANSWERS[path](model, question, wanted)


def _check(wanted: Wanted) -> None:
    if not wanted():
        raise AbandonedError


def _asked(model: TTCNetForCellClassification, question: Question) -> tuple[Board, int, int]:
    """The puzzle, the horizon and the loops."""
    puzzle = parse(question.get("puzzle", [""])[0])
    horizon = _number("horizon", question, model.config.horizon, 0, HORIZONS[-1])
    return puzzle, horizon, _number("loops", question, model.config.loops, 1, MOST_LOOPS)


def _number(name: str, question: Question, own: int, low: int, high: int) -> int:
    text = question.get(name, [str(own)])[0]
    number = whole_number(text)
    if number is None or not low <= number <= high:
        fail(name, f"must be between {low} and {high}", repr(text[:40]), "Drag the slider.", "out-of-range")
    return number


def _solution(puzzle: Board) -> Board | None:
    found = solutions(puzzle, limit=2)
    return found[0] if len(found) == 1 else None


def _right(puzzle: Board, solution: Board, digits: np.ndarray[Any, Any]) -> list[int]:
    """Blank cells that are right, at every stage."""
    counts: list[int] = ((digits == solution) & (puzzle == 0)).sum(1).tolist()
    return counts
