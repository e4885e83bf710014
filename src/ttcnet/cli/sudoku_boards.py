"""ttcnet sudoku generate and rate: boards, and how hard they are. Imports happen inside, to keep --help instant."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttcnet.errors import errors_as_sentences, fail, whole_number
from ttcnet.storage.writing import check_output
from ttcnet.terminal.console import say

if TYPE_CHECKING:
    from ttcnet.tasks.sudoku.data import Boards


def generate(
    count: Annotated[int, typer.Argument(min=1, help="Number of boards.")],
    out: Annotated[Path, typer.Option(help="CSV for the boards, puzzle,solution; with gzip if it ends in .gz.")],
    givens: Annotated[str | None, typer.Option(help="Filled cells: 30, or 25-34, the default.")] = None,
    guesses: Annotated[
        str | None, typer.Option(help="Difficulty instead of givens, in guesses: 0, 1-3, or 10+ for ten or more.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed makes the same boards.")] = 0,
) -> None:
    """Make puzzles with one solution each, by number of givens or by difficulty."""
    from rich.console import Console

    from ttcnet.tasks.sudoku.generator import generate as make
    from ttcnet.terminal.progress_bars import Bar

    with errors_as_sentences():
        check_output("out", out)
        wish: dict[str, Any] = {"givens": _span("givens", givens), "guesses": _span("guesses", guesses)}
        with Bar(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("Making boards", total=count)
            boards = make(count, seed=seed, **wish, report=lambda made: progress.update(task, completed=made))
        boards.write(out)
    say(f"{count:,} boards are in {out}.")


def rate(
    data: Annotated[Path, typer.Argument(help="CSV of puzzle,solution, plain or gzip.")],
    out: Annotated[Path | None, typer.Option(help="CSV for puzzle,guesses, a line for every board.")] = None,
) -> None:
    """How hard boards are: the guesses that an exact solver needs, the mean over 100 random orders."""
    from ttcnet.storage.writing import write_bytes
    from ttcnet.tasks.sudoku.data import read
    from ttcnet.tasks.sudoku.grid import format  # noqa: A004
    from ttcnet.tasks.sudoku.metrics import BANDS, span

    with errors_as_sentences():
        boards = read(data)
        check_output("out", out)
        ratings = rated(boards)
        for low, high in BANDS:
            number = sum(low <= rating and (high is None or rating <= high) for rating in ratings)
            say(f"{span(low, high):>5} guesses: {number:,} boards")
        if out is not None:
            lines = [f"{format(puzzle)},{rating}" for puzzle, rating in zip(boards.puzzles, ratings, strict=True)]
            write_bytes(out, "\n".join(["puzzle,guesses", *lines, ""]).encode())


def rated(boards: Boards) -> list[int]:
    """The ratings of boards, with a progress bar."""
    from rich.console import Console

    from ttcnet.tasks.sudoku.solver import count, rate
    from ttcnet.terminal.progress_bars import Bar

    found = []
    with Bar(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("Counting guesses", total=len(boards))
        for number, puzzle in enumerate(boards.puzzles, 1):
            if (solutions := count(puzzle)) != 1:
                value, remedy = f"{'several' if solutions else 'none'} of board {number}", "Leave such boards out."
                fail("boards", "must have one solution each to be rated", value, remedy, "bad-board")
            found.append(rate(puzzle))
            progress.advance(task)
    return found


def _span(name: str, text: str | None) -> tuple[int, int | None] | None:
    """The ends of 30, 25-34 or 10+."""
    if text is None:
        return None
    first, dash, last = text.removesuffix("+").partition("-")
    low, high = whole_number(first), whole_number(last) if dash else whole_number(first)
    open_end = text.endswith("+") and name == "guesses"
    if low is None or high is None or (text.endswith("+") and (dash or not open_end)):
        example = "0, 1-3 or 10+" if name == "guesses" else "30 or 25-34"
        fail(name, "must be a number or a range", repr(text[:40]), f"Pass --{name} {example}.", "format")
    return low, None if open_end else high
