"""ttcnet sudoku train: imports happen inside, to keep --help instant."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from ttcnet.command_options import Device, usable
from ttcnet.errors import errors_as_sentences
from ttcnet.extras import require
from ttcnet.tasks.sudoku.settings import ARCHITECTURES, SudokuTraining
from ttcnet.terminal.console import say, tell

OPTIONS = [each.name for each in fields(SudokuTraining) if each.name not in ("warm_up", "clip")]
Data = Annotated[Path, typer.Option(help="CSV of puzzle,solution, plain or gzip.")]


def train(
    given: typer.Context,
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder of the run. An existing run is resumed.")],
    architecture: Annotated[str, typer.Option(help=", ".join(ARCHITECTURES))] = SudokuTraining.architecture,
    steps: Annotated[int, typer.Option(help="Batches to train on.")] = SudokuTraining.steps,
    batch: Annotated[int, typer.Option(help="Boards in a batch.")] = SudokuTraining.batch,
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = SudokuTraining.lr,
    final_lr: Annotated[float, typer.Option(help="Learning rate at the end.")] = SudokuTraining.final_lr,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of AdamW.")] = SudokuTraining.weight_decay,
    dropout: Annotated[float, typer.Option(help="Share of each branch to drop.")] = SudokuTraining.dropout,
    augmentation: Annotated[
        str, typer.Option(help="none, relabel, relabel+reveal or all+reveal.")
    ] = SudokuTraining.augmentation,
    ema: Annotated[float, typer.Option(help="Running average of the weights; 0 for none.")] = SudokuTraining.ema,
    horizon: Annotated[int, typer.Option(help="Steps that TTC layers look ahead.")] = SudokuTraining.horizon,
    layers: Annotated[int, typer.Option(help="Blocks of the model.")] = SudokuTraining.layers,
    width: Annotated[int, typer.Option(help="Width of a cell.")] = SudokuTraining.width,
    heads: Annotated[int, typer.Option(help="Heads of attention and of TTC.")] = SudokuTraining.heads,
    ttc_heads: Annotated[int | None, typer.Option(help="Heads of TTC; --heads by default.")] = SudokuTraining.ttc_heads,
    loops: Annotated[int, typer.Option(help="Times that the blocks are applied.")] = SudokuTraining.loops,
    recall: Annotated[bool, typer.Option("--recall", help="Every loop sees the puzzle again.")] = SudokuTraining.recall,
    loops_per_step: Annotated[
        int | None, typer.Option(help="Loops in one training step; all if not given. Needs --recall.")
    ] = SudokuTraining.loops_per_step,
    interleave: Annotated[
        str | None,
        typer.Option(help="8:1 inserts a layer into the last of every 8 blocks, in every loop; 8:1 or fewer."),
    ] = SudokuTraining.interleave,
    supervision: Annotated[
        str, typer.Option(help="A loss after every block, after every loop, or at the end.")
    ] = SudokuTraining.supervision,
    context: Annotated[
        str, typer.Option(help="How a token writes its TTC problems: token, head or system.")
    ] = SudokuTraining.context,
    zero_init: Annotated[
        bool, typer.Option("--zero-init", help="Inserted layers start with an output of zero.")
    ] = SudokuTraining.zero_init,
    inserted_lr: Annotated[
        float | None, typer.Option(help="Learning rate of inserted layers; --lr if not given.")
    ] = SudokuTraining.inserted_lr,
    decay_bases: Annotated[
        bool, typer.Option(help="Apply weight decay to the bases of TTC layers too.")
    ] = SudokuTraining.decay_bases,
    mlp_width: Annotated[
        int | None, typer.Option(help="Inner width of the MLP of a block; 8/3 of the width if not given.")
    ] = SudokuTraining.mlp_width,
    seed: Annotated[int, typer.Option(help="Seed of weights, batches and dropout.")] = SudokuTraining.seed,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 1000,
    minutes: Annotated[float | None, typer.Option(help="Save and stop after these minutes, to resume later.")] = None,
    device: Device = "auto",
) -> None:
    """Train a model. Killed runs resume from their last checkpoint when the command is given again. On several GPUs:
    accelerate launch -m ttcnet.cli sudoku train ..."""
    from ttcnet.tasks.sudoku.data import read

    with errors_as_sentences():
        config = SudokuTraining(**{name: given.params[name] for name in OPTIONS})
        boards = read(data)
        tell(f"{len(boards):,} boards. Loading torch ...")
        require("transformers", "models", "ttcnet sudoku")
        from ttcnet.machine.processes import is_first_process, join_job, leave_job
        from ttcnet.train import sudoku
        from ttcnet.train.trackers import tensorboard_if_there

        place, done, first = join_job(usable(device)), 0, is_first_process()

        def report(_: Any, trained: Any, news: dict[str, float]) -> None:
            nonlocal done
            done = trained.step

        options: dict[str, Any] = dict(every=10 if place == "cpu" else 100, save_every=save_every, minutes=minutes)
        sudoku.train(config, boards, out, place, report_to=tensorboard_if_there(), report=report, **options)
        leave_job()
    if first and 0 < done < steps:
        say(f"Stopped at step {done:,} of {steps:,}. Give the command again to resume.")
    elif first:
        again = f"ttcnet sudoku eval {quote(str(out / 'model'))} --data FILE"
        say(f"Trained. The model is in {out / 'model'}; evaluate it with: {again}")
