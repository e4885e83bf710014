"""ttcnet sudoku ...: eval and probe. Imports happen inside the commands, to keep --help instant."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ttcnet.command_options import Device, check_knobs, numbers
from ttcnet.command_options import horizons as horizons_of
from ttcnet.errors import errors_as_sentences, fail
from ttcnet.storage.writing import check_output
from ttcnet.tasks.sudoku.loading import load
from ttcnet.terminal.console import say

from .sudoku_boards import generate, rate, rated
from .sudoku_train import Data, train
from .sudoku_watch import demo, play, solve

app = typer.Typer(help="Sudoku: train, evaluate and use models.", no_args_is_help=True, pretty_exceptions_enable=False)
Folder = Annotated[Path | None, typer.Argument(help="Folder of a model; the one that comes with ttcnet if not given.")]
Out = Annotated[Path | None, typer.Option(help="JSON file for the results.")]
app.command()(train)
app.command()(generate)
app.command()(rate)
app.command()(solve)
app.command()(demo)
app.command()(play)


class By(StrEnum):
    GIVENS = "givens"
    GUESSES = "guesses"


class Mode(StrEnum):
    SINGLE = "single"
    MULTI = "multi"


@app.command("eval")
def eval_command(
    data: Data,
    model: Folder = None,
    mode: Annotated[list[Mode] | None, typer.Option(help="single (one pass) or multi (cell by cell); both.")] = None,
    horizon: Annotated[
        list[str] | None, typer.Option(help="Steps to look ahead, or several: 0,4,8; the model's own if not given.")
    ] = None,
    loops: Annotated[
        list[str] | None,
        typer.Option(help="Times to apply the blocks, or several: 8,32; the model's own if not given."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Boards to take from the file; all if not given.")] = None,
    out: Out = None,
    by: Annotated[
        By | None, typer.Option(help="Also print a line for each number of givens, or for ranges of guesses.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Boards and cells that a model gets right, with 95 % intervals."""
    from itertools import product

    from ttcnet.tasks.sudoku.data import read

    with errors_as_sentences():
        horizons, times = horizons_of("horizon", horizon) or (None,), numbers("loops", loops) or (None,)
        for count in times:
            check_knobs(None, count)
        boards = read(data)[:limit]
        check_output("out", out)
        net = load(model, device)
        from ttcnet.nn import ttc_layers
        from ttcnet.tasks.sudoku.evaluation import MODES, WORDS, evaluate
        from ttcnet.tasks.sudoku.progress import watched

        plans = bool(ttc_layers(net))
        if horizon and not plans:
            remedy = "Leave it out."
            fail("horizon", "must not be given: there are no TTC layers here to set it", horizons, remedy, "no-layers")

        ratings = rated(boards) if by == By.GUESSES else None
        results: list[dict[str, Any]] = []
        passes = {"single": 1, "multi": 81 - int(boards.givens.min())}
        for count, steps, name in product(times, horizons, mode or MODES):
            label = WORDS[name]
            label += f", loops {net.config.loops if count is None else count}" if loops or net.config.loops > 1 else ""
            label += f", horizon {net.config.horizon if steps is None else steps}" if plans else ""
            with watched(net, label, passes[name] * len(boards)):
                found = evaluate(net, boards, name, steps, count, ratings)
            results.append(found.to_dict())
            scores = found.scores
            say(f"{label}: boards {scores.boards}, cells {scores.cells}, {found.seconds:.1f} s")
            if by:
                say(scores.table(by))
        if out is not None:
            _write(out, model, {"data": data.name, "boards": len(boards), "results": results})


@app.command("probe")
def probe_command(
    train: Annotated[Path, typer.Option(help="CSV of puzzle,solution to fit the probes on.")],
    test: Annotated[Path, typer.Option(help="CSV of puzzle,solution to test them on.")],
    model: Folder = None,
    step: Annotated[list[str] | None, typer.Option(help="Planning steps; 0,2,4,8 if not given.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Boards of each file to take.")] = 1000,
    out: Out = None,
    device: Device = "auto",
) -> None:
    """How much of the solution a linear probe reads from the states that TTC layers plan."""
    from itertools import chain

    from ttcnet.tasks.sudoku.data import read

    with errors_as_sentences():
        steps = horizons_of("step", step)
        learnt, held_out = read(train)[:limit], read(test)[:limit]
        check_output("out", out)
        net = load(model, device)
        from ttcnet.evaluate.analysis.probes import STEPS, Labelled, probe
        from ttcnet.tasks.sudoku.feed import labelled
        from ttcnet.tasks.sudoku.progress import watched

        fitted, tested = (Labelled(*labelled(boards)) for boards in (learnt, held_out))
        probes, results = probe(net, fitted, tested, steps or STEPS), list[dict[str, Any]]()
        with watched(net, "planning", len(learnt) + len(held_out)):
            first = next(probes)
        for result in chain([first], probes):
            when = f", time {result.time + 1}" if net.config.loops > 1 else ""
            say(f"TTC layer {result.layer + 1}{when}, step {result.step}: {100 * result.accuracy:.1f} % of cells")
            place = {"layer": result.layer, "time": result.time, "step": result.step}
            results.append(place | {"cells": result.accuracy})
        if out is not None:
            _write(out, model, {"fitted": len(learnt), "judged": len(held_out), "results": results})


def _write(out: Path, model: Path | None, found: dict[str, Any]) -> None:
    """Write results with their provenance."""
    from ttcnet.environment import provenance
    from ttcnet.storage.writing import write_json

    which = {"model": "shipped" if model is None else str(model)}
    write_json(out, which | found | provenance())
