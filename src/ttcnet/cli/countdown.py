"""ttcnet countdown ...: imports happen inside the commands, to keep --help instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Countdown: reach a target from given numbers.", no_args_is_help=True, pretty_exceptions_enable=False
)


@app.callback()
def main() -> None:
    pass


@app.command("make")
def make_command(
    out: Annotated[Path, typer.Option(help="JSON Lines file to write.")],
    count: Annotated[int, typer.Option(min=1, help="Number of puzzles.")] = 1000,
    numbers: Annotated[str, typer.Option(help="Numbers of a puzzle: 4, or 3-4 for either.")] = "3-4",
    largest: Annotated[int, typer.Option(help="Largest number.")] = 30,
    operations: Annotated[str, typer.Option(help="Operations of puzzles, some of +-*/.")] = "+-*/",
    limit: Annotated[int, typer.Option(help="Largest target, and largest value on the way to it.")] = 999,
    split: Annotated[str, typer.Option(help="train or test; no puzzle is in both.")] = "train",
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
) -> None:
    """Make puzzles with solutions: problem, solution and answer for ttcnet sft; numbers and target for grading."""
    from functools import partial

    from rich.console import Console

    from ttcnet.bounds import check_count
    from ttcnet.errors import errors_as_sentences, fail, whole_number
    from ttcnet.storage.writing import check_output, is_stream, write_lines
    from ttcnet.tasks.countdown.generator import Difficulty, make
    from ttcnet.tasks.countdown.text import row
    from ttcnet.terminal.console import say
    from ttcnet.terminal.progress_bars import Bar

    with errors_as_sentences():
        ends = [whole_number(end) for end in numbers.split("-")]
        fewest, most = ends[0], ends[-1]
        if len(ends) > 2 or fewest is None or most is None:
            remedy = "Pass 4 or 3-4."
            fail("numbers", "must be a number, or two with a dash between", repr(numbers[:40]), remedy, "format")
        difficulty = Difficulty((fewest, most), largest, operations, limit)
        if out.exists() and not is_stream(out):
            remedy = "Remove it, or name another file."
            fail("out", "must be a new file", f"{out}, which exists", remedy, "exists")
        check_count("count", count)
        check_output("out", out)
        with Bar(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("Making puzzles", total=count)
            told = partial(progress.update, task)
            puzzles = make(count, difficulty, seed=seed, split=split, report=lambda made: told(completed=made))
        write_lines(out, map(row, puzzles))
    say(f"{len(puzzles):,} puzzles are in {out}.")
