"""ttcnet sudoku solve, demo and play: watch a model at work. Imports happen inside, to keep --help instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ttcnet.command_options import Device, check_knobs
from ttcnet.errors import errors_as_sentences
from ttcnet.storage.writing import check_picture
from ttcnet.tasks.sudoku.loading import load
from ttcnet.terminal.console import say

Model = Annotated[Path | None, typer.Option(help="Folder of a model; the one that comes with ttcnet if not given.")]


def solve(
    puzzle: Annotated[str, typer.Argument(help="81 characters row by row, 0 or . for blanks.")],
    model: Model = None,
    horizon: Annotated[
        int | None, typer.Option(min=0, help="Steps to look ahead; the model's own if not given.")
    ] = None,
    loops: Annotated[
        int | None, typer.Option(min=1, help="Times to apply the model's blocks; its own if not given.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Solve a puzzle, cell by cell, and say whether it has no or many solutions."""
    from ttcnet.tasks.sudoku.grid import draw, parse
    from ttcnet.tasks.sudoku.solver import conflicts, solutions, verdict

    with errors_as_sentences():
        check_knobs(horizon, loops)
        board = parse(puzzle)
        warning, truth = verdict(board), solutions(board, limit=2)
        if warning:
            say(warning)
        if len(truth) == 0:
            raise typer.Exit(1)
        net = load(model, device)
        from ttcnet.tasks.sudoku.progress import watched
        from ttcnet.tasks.sudoku.step_by_step import moves

        filled = board.copy()
        with watched(net, "Solving", int((board == 0).sum())):
            for move in moves(net, board, horizon, loops):
                filled[move.cell] = move.digit
    # if there are several solutions, the model may find another one than the solver
    wrong = filled != truth[0] if len(truth) == 1 else conflicts(filled)

    def style(cell: int, text: str) -> str:
        if board[cell]:
            return typer.style(text, bold=True)
        return typer.style(text, fg="red" if wrong[cell] else "green")

    typer.echo(draw(filled, style=style))
    say("Not solved: red cells are wrong." if wrong.any() else "Solved.")
    raise typer.Exit(int(wrong.any()))


def demo(
    givens: Annotated[
        list[int] | None,
        typer.Option(help="Watch new boards of so many givens, instead of an easy, a hard and a hardest one."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the new boards.")] = 0,
    loops: Annotated[
        int | None, typer.Option(min=1, help="Times to apply the model's blocks; its own if not given.")
    ] = None,
    picture: Annotated[Path, typer.Option(help="Where to save the picture.")] = Path("demo/sudoku.png"),
    model: Model = None,
    device: Device = "auto",
) -> None:
    """Watch a model fill boards, see the effect of loops and plans on hard ones, and keep a picture."""
    from rich.console import Console

    from ttcnet.extras import require
    from ttcnet.tasks.sudoku.generator import generate

    with errors_as_sentences():
        check_knobs(None, loops)
        require("matplotlib", "models,plot", "ttcnet sudoku demo")
        check_picture("picture", picture)
        made = [generate(1, givens=(n, n), seed=seed + k) for k, n in enumerate(givens or ())]
        net = load(model, device)
        from ttcnet.tasks.sudoku import demo
        from ttcnet.tasks.sudoku.samples import LEVELS, samples
        from ttcnet.tasks.sudoku.step_by_step import moves, stage_name

        boards = made or [demo.level(name)[:1] for name in LEVELS]
        next(moves(net, boards[0].puzzles[0]))  # everything is compiled before a puzzle is timed
        console = Console()
        games = []
        for each in boards:
            console.print()
            games.append(demo.watch(net, each.puzzles[0], each.solutions[0], console, loops))
        console.print()
        from ttcnet.tasks.sudoku.progress import watched

        asked = demo.settings(net, loops)
        pairs = list(dict.fromkeys(pair for compared in asked.values() for pair in compared))
        with watched(net, "Boards of three levels", len(pairs) * len(samples())):
            found = demo.compare(net, pairs)
        for name, compared in asked.items():
            console.print(demo.table(name, compared, found))
        demo.picture(games, stage_name(net), picture)
    say(f"The picture is in {picture}. Next: ttcnet sudoku play")


def play(
    model: Model = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on localhost; 0 for any free one.")] = 8765,
    device: Device = "auto",
) -> None:
    """Serve a local page: choose or type a puzzle, watch the model fill it, change loops and horizon."""
    with errors_as_sentences():
        net = load(model, device)
        from ttcnet.tasks.sudoku.page_server import serve

        server = serve(net, port)
    say(f"Open http://127.0.0.1:{server.server_port} in a browser. Ctrl-C ends.")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        say("Ended.")
