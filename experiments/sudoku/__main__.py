"""The paper's Sudoku table: six architectures on the same boards, steps and seed, in two settings; and the best solver.

strict            the 9,000 boards, unchanged, with dropout
augmented         digits relabelled, and part of the solution revealed on 30 % of the boards
best              TTC-Net alone, as in augmented with larger batches: for a larger file of boards
looped-strict     one block, applied 32 times with a loss after every pass, and with an MLP in TTC's place besides
looped-augmented  the same, augmented
looped-hard       the same on boards that need guesses, with all symmetries of Sudoku

    python -m experiments.sudoku strict --train train-9k.csv --test test-1k.csv --out experiments/sudoku/results/strict

--set changes a field of `SudokuTraining` in all runs: --set lr=1e-3 --set zero_init=true.

All models train side by side on one GPU, each on a stream of its own. After a stop the same command resumes. After the
last step every model is evaluated, and its folder gets settings, log, metrics and model. Finished runs are skipped.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttcnet.command_options import usable
from ttcnet.errors import errors_as_sentences, fail
from ttcnet.storage.writing import write_json
from ttcnet.tasks.sudoku.settings import ARCHITECTURES, OF_INSERTED, SudokuTraining

if TYPE_CHECKING:  # the rest is imported late, to keep --help instant
    from ttcnet.tasks.sudoku import Boards
    from ttcnet.train.learner import Learner
    from ttcnet.train.run import Run

LOOPED: dict[str, Any] = dict(
    layers=1, loops=32, recall=True, loops_per_step=8, batch=128, lr=2e-3, final_lr=1e-4, warm_up=0.05
)
LOOPED_INSERTED: dict[str, Any] = dict(interleave="4:1", zero_init=True)
SETTINGS = {
    "strict": SudokuTraining(augmentation="none", dropout=0.15, batch=64, context="head"),
    "augmented": SudokuTraining(augmentation="relabel+reveal", batch=64, context="head"),
    "best": SudokuTraining(augmentation="relabel+reveal", batch=256, context="head"),
    "looped-strict": SudokuTraining(augmentation="none", dropout=0.1, **LOOPED),
    "looped-augmented": SudokuTraining(augmentation="relabel+reveal", **LOOPED),
    "looped-hard": SudokuTraining(augmentation="all+reveal", **LOOPED),
}
SEEDS = {"ttc": 3, "transformer": 3, "mamba": 1, "mamba2": 1, "gdn": 1, "samba": 1}  # runs of each
LOOPED_SEEDS = {"ttc": 5, "transformer": 5, "mlp": 5, "mamba": 3, "mamba2": 3, "gdn": 3, "samba": 3}
CHANGEABLE = [field.name for field in fields(SudokuTraining) if field.name not in ("architecture", "steps", "seed")]
METRICS, PROGRAM = "metrics.json", "python -m experiments.sudoku"
OLDER = {"loops": 1, "supervision": "block", "context": "head", "zero_init": False, "decay_bases": True}
OLDER |= {"recall": False, "loops_per_step": None}  # settings that old runs do not name
LOOPS = (8, 16, 32, 64, 128, 256)  # loops at which models are evaluated, in one pass
HORIZONS, AT_LOOPS = (0, 1, 2, 8, 16, 32), 64  # horizons at which plans are evaluated, with so many loops
EVERY, SAVE_EVERY = 200, 10_000  # steps between lines of the logs, and between checkpoints


def runs(setting: str, steps: int, only: list[str] | None, changes: dict[str, Any]) -> dict[str, SudokuTraining]:
    """Every run of a setting by its name. Changes apply to the runs that can have them."""
    base = replace(SETTINGS[setting], steps=steps)
    looped = setting.startswith("looped")
    changes = LOOPED_INSERTED | changes if looped else changes
    seeds = {"ttc": 1} if setting == "best" else LOOPED_SEEDS if looped else SEEDS
    each = [(name, seed) for name, count in seeds.items() for seed in range(count)]
    found = {
        f"{name}-{seed}": replace(base, **changed(name, changes), architecture=name, seed=seed) for name, seed in each
    }
    if unknown := set(only or ()) - {*found, *seeds}:
        rule = f"must name runs or architectures among {', '.join(found)}"
        fail("only", rule, ", ".join(sorted(unknown)), "Correct it.", "unknown-name")
    return {name: config for name, config in found.items() if not only or name in only or config.architecture in only}


def changed(architecture: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The changes that this architecture can have: changes of inserted layers need such layers."""
    inserts = ARCHITECTURES[architecture]["interleave"] is not None
    return {field: value for field, value in changes.items() if inserts or field not in OF_INSERTED}


def parse(changes: list[str] | None) -> dict[str, Any]:
    """Read pairs field=value; a value is JSON or a word."""
    found = {}
    for change in changes or ():
        field, _, text = change.partition("=")
        if field not in CHANGEABLE:
            rule = f"must name a field among {', '.join(CHANGEABLE)}"
            fail("set", rule, repr(change), "Correct it.", "unknown-field")
        try:
            found[field] = json.loads(text)
        except ValueError:
            found[field] = text
    return found


def main(
    setting: Annotated[str, typer.Argument(help=f"One of {', '.join(SETTINGS)}.")],
    train: Annotated[Path, typer.Option(help="CSV of puzzle,solution to train on.")],
    test: Annotated[list[Path], typer.Option(help="CSV of puzzle,solution to evaluate on; several may be given.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs.")],
    steps: Annotated[int, typer.Option(help="Steps of every run.")] = 40_000,
    only: Annotated[list[str] | None, typer.Option(help="Runs or architectures; all if not given.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="field=value, of SudokuTraining; repeat.")] = None,
    mode: Annotated[list[str] | None, typer.Option(help="single (one pass) or multi (cell by cell); both.")] = None,
    minutes: Annotated[float, typer.Option(help="Stop after so long, to resume later; 0 for no limit.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
) -> None:
    from ttcnet.tasks.sudoku import read

    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # streams that may run at the same time
    with errors_as_sentences():
        if setting not in SETTINGS:
            fail("setting", f"must be one of {', '.join(SETTINGS)}", repr(setting), "Name one of them.", "unknown-name")
        configs = runs(setting, steps, only, parse(change))
        boards, tests = read(train), {path.stem: read(path) for path in test}
        _make(configs, boards, tests, mode, out, usable(device), minutes or None)


def _make(
    configs: dict[str, SudokuTraining],
    boards: Boards,
    tests: dict[str, Boards],
    modes: list[str] | None,
    out: Path,
    device: str,
    minutes: float | None,
) -> None:
    """Train and evaluate the unfinished runs, side by side."""
    from ttcnet.machine.torch_settings import compiling_up_to
    from ttcnet.train.loop import train
    from ttcnet.train.sudoku import learner, run_of

    options: dict[str, Any] = dict(results=[METRICS], defaults=OLDER, free=["boards"], program=PROGRAM)
    made = {name: run_of(config, boards, out / name, **options) for name, config in configs.items()}
    for name, run in made.items():
        if run.is_done:
            run.check_settings()
            typer.echo(f"{name} is done: {out / name / METRICS}")
    missing = {name: run for name, run in made.items() if not run.is_done}
    with ExitStack() as opened:
        if device != "cpu":
            opened.enter_context(compiling_up_to(64))  # kinds of blocks, all architectures together
        pairs = [(opened.enter_context(run), learner(configs[name], boards, device)) for name, run in missing.items()]
        if pairs and not train(*pairs, every=EVERY, save_every=SAVE_EVERY, minutes=minutes):
            typer.echo("Stopped for the time being. The same command resumes.")
            return
        for run, trained in pairs:
            _evaluate(run, trained, tests, modes)


def _evaluate(run: Run, trained: Learner, tests: dict[str, Boards], modes: list[str] | None) -> None:
    """Evaluate, and write all that belongs to a result."""
    import torch
    from torch import nn

    from ttcnet.nn import ttc_layers
    from ttcnet.tasks.sudoku.evaluation import MODES, WORDS, evaluate
    from ttcnet.train.sudoku import MODEL, trained_model

    name, model = run.folder.name, trained_model(trained)
    asked: list[tuple[str, int | None, int | None]] = [(mode, None, None) for mode in modes or MODES]
    if model.config.loops > 1:
        asked += [("single", None, loops) for loops in LOOPS]
        asked += [("single", horizon, AT_LOOPS) for horizon in HORIZONS if ttc_layers(model)]
    results = [
        {"data": data} | evaluate(model, boards, *each).to_dict() for data, boards in tests.items() for each in asked
    ]
    nn.Module.to(model, torch.bfloat16)
    with run.result(MODEL) as folder:
        model.save_pretrained(folder)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    found = {"run": name, "parameters": parameters, "results": results}
    write_json(run.folder / METRICS, found | run.provenance())
    own = [each for each in results if each["horizon"] is None is each["loops"]]
    rates = (f"{WORDS[each['mode']]} {_percent(each, 'boards')} / {_percent(each, 'cells')}" for each in own)
    typer.echo(f"{name:14} {'   '.join(rates)}")


def _percent(result: dict[str, Any], kind: str) -> str:
    return f"{100 * result[kind]['rate']:.1f}"


if __name__ == "__main__":
    typer.run(main)
