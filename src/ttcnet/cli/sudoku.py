"""ttcnet sudoku ...: train, eval and probe. Imports happen inside the commands, to keep --help instant."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttcnet.console import say, tell
from ttcnet.errors import complaints, fail
from ttcnet.extras import require
from ttcnet.options import Device, numbers, usable
from ttcnet.tasks.sudoku.loading import load
from ttcnet.tasks.sudoku.settings import ARCHITECTURES, TrainConfig
from ttcnet.writing import check_output

from .sudoku_boards import generate, rate, rated
from .sudoku_watch import demo, play, solve

if TYPE_CHECKING:
    from ttcnet.tasks.sudoku.trainer import Trainer

app = typer.Typer(help="Sudoku: train, evaluate and use models.", no_args_is_help=True, pretty_exceptions_enable=False)
Data = Annotated[Path, typer.Option(help="CSV of puzzle,solution, plain or gzip.")]
Folder = Annotated[Path | None, typer.Argument(help="Folder of a model; the one that comes with ttcnet if not given.")]
Out = Annotated[Path | None, typer.Option(help="JSON file for the results.")]
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


@app.command("train")
def train_command(
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder of the run. A run that is there already goes on.")],
    architecture: Annotated[str, typer.Option(help=", ".join(ARCHITECTURES))] = "ttc",
    steps: Annotated[int, typer.Option(help="Batches to train on.")] = 20_000,
    batch: Annotated[int, typer.Option(help="Boards in a batch.")] = 16,
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = 5e-3,
    final_lr: Annotated[float, typer.Option(help="Learning rate at the end.")] = 5e-4,
    weight_decay: Annotated[float, typer.Option(help="AdamW's.")] = 0.1,
    dropout: Annotated[float, typer.Option(help="Share of each branch to drop.")] = 0.0,
    augmentation: Annotated[str, typer.Option(help="none, relabel, relabel+reveal or all+reveal.")] = "none",
    ema: Annotated[float, typer.Option(help="Running average of the weights; 0 for none.")] = 0.999,
    horizon: Annotated[int, typer.Option(help="Steps that TTC layers look ahead.")] = 4,
    layers: Annotated[int, typer.Option(help="Blocks.")] = 32,
    width: Annotated[int, typer.Option(help="Width of a cell.")] = 128,
    heads: Annotated[int, typer.Option(help="Heads, of attention and of TTC.")] = 4,
    ttc_heads: Annotated[int | None, typer.Option(help="Those of TTC, if not as many.")] = None,
    loops: Annotated[int, typer.Option(help="Times that the blocks are applied.")] = 1,
    interleave: Annotated[
        str | None,
        typer.Option(help="8:1 inserts a layer into the last of every 8 blocks, in every loop; 8:1 or fewer."),
    ] = None,
    supervision: Annotated[
        str, typer.Option(help="A loss after every block, after every loop, or at the end.")
    ] = "block",
    context: Annotated[str, typer.Option(help="What TTC layers write their problems from: token or head.")] = "token",
    zero_init: Annotated[bool, typer.Option("--zero-init", help="Inserted layers put out zero at first.")] = False,
    inserted_lr: Annotated[float | None, typer.Option(help="--lr of inserted layers, if it is another.")] = None,
    decay_bases: Annotated[bool, typer.Option(help="Weight decay on the bases of TTC layers too.")] = True,
    mlp_width: Annotated[int | None, typer.Option(help="Inside the MLP of a block; 8/3 of the width.")] = None,
    seed: Annotated[int, typer.Option(help="Of weights, batches and dropout.")] = 0,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 1000,
    minutes: Annotated[float | None, typer.Option(help="Save and stop after so many, to resume another time.")] = None,
    device: Device = "auto",
) -> None:
    """Train a model. Killed runs continue from their last checkpoint when the command is given again. On several GPUs:
    accelerate launch -m ttcnet.cli sudoku train ..."""
    from contextlib import ExitStack

    from ttcnet.tasks.sudoku.data import read

    with complaints():
        config = TrainConfig(
            architecture, steps, batch, lr, final_lr,
            weight_decay=weight_decay, dropout=dropout, augmentation=augmentation, ema=ema, horizon=horizon,
            layers=layers, width=width, heads=heads, seed=seed, ttc_heads=ttc_heads, loops=loops, interleave=interleave,
            supervision=supervision, context=context, zero_init=zero_init, inserted_lr=inserted_lr,
            decay_bases=decay_bases, mlp_width=mlp_width,
        )  # fmt: skip
        boards = read(data)
        tell(f"{len(boards):,} boards. Loading torch ...")
        require("transformers", "models", "ttcnet sudoku")
        from ttcnet.bars import Bar
        from ttcnet.processes import is_first_process
        from ttcnet.tasks.sudoku.training import join_job, leave_job, train

        place = join_job(usable(device))
        first = is_first_process()
        with Bar(disable=not first) as progress, ExitStack() as opened:
            task, writer = progress.add_task(architecture, total=steps), None

            done = 0

            def report(trainer: Trainer, news: dict[str, float]) -> None:  # the first process alone
                nonlocal done, writer
                done = trainer.step
                if writer is None:  # not before the folder is ours
                    writer = opened.enter_context(_board(out))
                text = f"{architecture}: loss {news['loss']:.3f}, {100 * news['cells']:.1f} % of cells"
                progress.update(task, completed=trainer.step, description=text)
                for name, value in news.items():
                    writer.add_scalar(name, value, trainer.step)

            every = 10 if place == "cpu" else 100
            train(config, boards, out, place, every=every, save_every=save_every, minutes=minutes, report=report)
            stopped = first and 0 < done < steps
            progress.update(task, completed=done if stopped else steps)
        leave_job()
    if stopped:
        say(f"Stopped at step {done:,} of {steps:,}. Give the command again to go on.")
    elif first:
        again = f"ttcnet sudoku eval {out / 'model'} --data FILE"
        say(f"Trained. The model is in {out / 'model'}; evaluate it with: {again}")


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

    with complaints():
        horizons, times = numbers("horizon", horizon) or (None,), numbers("loops", loops) or (None,)
        if 0 in times:
            fail("loops", "must be 1 or more", 0, "Pass 1 to apply the blocks once.")
        boards = read(data)[:limit]
        check_output("out", out)
        net = load(model, device)
        from ttcnet.nn import ttc_layers
        from ttcnet.tasks.sudoku.evaluation import MODES, WORDS, evaluate
        from ttcnet.tasks.sudoku.progress import watched

        plans = bool(ttc_layers(net))
        if horizon and not plans:
            fail("horizon", "must not be given: there are no TTC layers here to set it", horizons, "Leave it out.")

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
    test: Annotated[Path, typer.Option(help="CSV of puzzle,solution to judge them on.")],
    model: Folder = None,
    step: Annotated[list[str] | None, typer.Option(help="Planning steps; 0,2,4,8 if not given.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Boards of each file to take.")] = 1000,
    out: Out = None,
    device: Device = "auto",
) -> None:
    """How much of the solution can be read off the states that TTC layers plan to pass through."""
    from dataclasses import asdict
    from itertools import chain

    from ttcnet.tasks.sudoku.data import read

    with complaints():
        steps = numbers("step", step)
        learnt, held_out = read(train)[:limit], read(test)[:limit]
        check_output("out", out)
        net = load(model, device)
        from ttcnet.evaluate.analysis.probes import STEPS, probe
        from ttcnet.tasks.sudoku.progress import watched

        probes, results = probe(net, learnt, held_out, steps or STEPS), []
        with watched(net, "planning", len(learnt) + len(held_out)):
            first = next(probes)
        for result in chain([first], probes):
            when = f", time {result.time + 1}" if net.config.loops > 1 else ""
            say(f"TTC layer {result.layer + 1}{when}, step {result.step}: {100 * result.cells:.1f} % of cells")
            results.append(asdict(result))
        if out is not None:
            _write(out, model, {"fitted": len(learnt), "judged": len(held_out), "results": results})


def _write(out: Path, model: Path | None, found: dict[str, Any]) -> None:
    """Results, with what made them."""
    from ttcnet.environment import circumstances
    from ttcnet.writing import write_json

    which = {"model": "shipped" if model is None else str(model)}
    write_json(out, which | found | circumstances())


def _board(folder: Path) -> Any:
    """TensorBoard's writer, or one that writes nothing where it is not installed."""
    from contextlib import nullcontext
    from importlib.util import find_spec
    from types import SimpleNamespace

    if find_spec("tensorboard") is None:
        say("Without TensorBoard, which pip install 'ttcnet[train]' brings; log.jsonl has the same.", err=True)
        return nullcontext(SimpleNamespace(add_scalar=lambda *_: None))
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"))
