"""The paper's Sudoku table: six architectures on the same boards, steps and seed, in two settings; and the best solver.

strict            the 9,000 boards as they are, with dropout
augmented         digits relabelled, and part of the solution revealed on 30 % of the boards
best              TTC-Net alone, as in augmented with larger batches: for as many boards as there are
looped-strict     one block, applied 32 times with a loss after every pass, and with an MLP in TTC's place besides
looped-augmented  the same, augmented

    python -m experiments.sudoku strict --train train-9k.csv --test test-1k.csv --out experiments/sudoku/results/strict

--set changes a field of `TrainConfig` in all runs: --set lr=1e-3 --set zero_init=true.

All models train side by side on one GPU, each on a stream of its own. Stopped by --minutes or killed, the same command
goes on; when the steps are done, every model is evaluated and its folder gets config, log, metrics and model.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttcnet.errors import complaints
from ttcnet.locking import owned
from ttcnet.options import usable
from ttcnet.reading import cut_log
from ttcnet.tasks.sudoku.settings import ARCHITECTURES, OF_INSERTED, TrainConfig
from ttcnet.writing import write_json

if TYPE_CHECKING:  # the rest is imported late, to keep --help instant
    from ttcnet.tasks.sudoku import Boards
    from ttcnet.tasks.sudoku.trainer import Trainer

LOOPED: dict[str, Any] = dict(layers=1, loops=32, batch=64, lr=2e-3, final_lr=2e-4)
SETTINGS = {
    "strict": TrainConfig(augmentation="none", dropout=0.15, batch=64, context="head"),
    "augmented": TrainConfig(augmentation="relabel+reveal", batch=64, context="head"),
    "best": TrainConfig(augmentation="relabel+reveal", batch=256, context="head"),
    "looped-strict": TrainConfig(augmentation="none", dropout=0.1, **LOOPED),
    "looped-augmented": TrainConfig(augmentation="relabel+reveal", **LOOPED),
}
SEEDS = {"ttc": 3, "transformer": 3, "mamba": 1, "mamba2": 1, "gdn": 1, "samba": 1}  # runs of each
LOOPED_SEEDS = {"ttc": 5, "transformer": 5, "mlp": 5, "mamba": 3, "mamba2": 3, "gdn": 3, "samba": 3}
CHANGEABLE = [field.name for field in fields(TrainConfig) if field.name not in ("architecture", "steps", "seed")]
EVERY, SAVE_EVERY = 200, 10_000  # steps between lines of the logs, and between checkpoints


def runs(setting: str, steps: int, only: list[str] | None, changes: dict[str, Any]) -> dict[str, TrainConfig]:
    """Every run of a setting by its name. Changes go to those that can have them."""
    base = replace(SETTINGS[setting], steps=steps)
    looped = setting.startswith("looped")
    seeds = {"ttc": 1} if setting == "best" else LOOPED_SEEDS if looped else SEEDS
    each = [(name, seed) for name, count in seeds.items() for seed in range(count)]
    found = {
        f"{name}-{seed}": replace(base, **changed(name, changes), architecture=name, seed=seed) for name, seed in each
    }
    if unknown := set(only or ()) - {*found, *seeds}:
        rule = f"only must name runs or architectures among {', '.join(found)}"
        raise typer.BadParameter(f"{rule}; got {', '.join(sorted(unknown))}.")
    return {name: config for name, config in found.items() if not only or name in only or config.architecture in only}


def changed(architecture: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Those of the changes that this architecture can have: what is of inserted layers needs some."""
    inserts = ARCHITECTURES[architecture]["interleave"] is not None
    return {field: value for field, value in changes.items() if inserts or field not in OF_INSERTED}


def parse(changes: list[str] | None) -> dict[str, Any]:
    """field=value pairs, the values as JSON has them, or words."""
    found = {}
    for change in changes or ():
        field, _, text = change.partition("=")
        if field not in CHANGEABLE:
            raise typer.BadParameter(f"set must name a field among {', '.join(CHANGEABLE)}; got {change!r}.")
        try:
            found[field] = json.loads(text)
        except ValueError:
            found[field] = text
    return found


def main(
    setting: Annotated[str, typer.Argument(help=f"One of {', '.join(SETTINGS)}.")],
    train: Annotated[Path, typer.Option(help="CSV of puzzle,solution to train on.")],
    test: Annotated[Path, typer.Option(help="CSV of puzzle,solution to judge by.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs.")],
    steps: Annotated[int, typer.Option(help="Steps of every run.")] = 40_000,
    only: Annotated[list[str] | None, typer.Option(help="Runs or architectures; all if not given.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="field=value, of TrainConfig; repeat.")] = None,
    minutes: Annotated[float, typer.Option(help="Stop after so long, to go on later; 0 for no limit.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
) -> None:
    from ttcnet.tasks.sudoku import read

    if setting not in SETTINGS:
        raise typer.BadParameter(f"setting must be one of {', '.join(SETTINGS)}; got {setting!r}.")
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # streams that may run at the same time
    deadline = time.monotonic() + 60 * minutes if minutes else float("inf")
    with complaints():
        configs = runs(setting, steps, only, parse(change))
        boards, judges = read(train), read(test)
        with ExitStack() as locks:
            for name in configs:
                locks.enter_context(owned(out / name))
            trainers = _start(configs, boards, out, usable(device))
            if _train(trainers, out, deadline):
                for name, trainer in trainers.items():
                    _judge(name, trainer, judges, out)
            else:
                typer.echo("Stopped for the time being. The same command goes on.")


def _start(configs: dict[str, TrainConfig], boards: Boards, out: Path, device: str) -> dict[str, Trainer]:
    import torch

    from ttcnet.tasks.sudoku.trainer import Trainer

    torch._dynamo.config.recompile_limit = 64  # kinds of blocks, all architectures together
    trainers = {}
    for name, config in configs.items():
        trainers[name] = Trainer(config, boards, device)
        kept = out / name / "checkpoint.safetensors"
        if kept.exists():
            trainers[name].load(kept)
        cut_log(out / name / "log.jsonl", trainers[name].step)
    return trainers


def _train(trainers: dict[str, Trainer], out: Path, deadline: float) -> bool:
    """Train all of them side by side, each from a thread of its own. Whether they got to the end."""
    from ttcnet.bars import Bar

    step = min(trainer.step for trainer in trainers.values())
    total = max(trainer.config.steps for trainer in trainers.values())
    before = {name: trainer.step for name, trainer in trainers.items()}
    for trainer in trainers.values():  # the step that is recorded, which must be done while no other trainer works
        if trainer.step < total:
            trainer.advance()
    with Bar() as progress, ThreadPoolExecutor(len(trainers)) as pool:
        task = progress.add_task("training", total=total, completed=step)
        while step < total:
            step = min(step - step % EVERY + EVERY, total)
            for done in [pool.submit(_advance, trainer, step) for trainer in trainers.values()]:
                done.result()
            news = dict(_news(trainers, out, step, before))
            before |= dict.fromkeys(news, step)
            progress.update(task, completed=step, description=_line(news))
            late = time.monotonic() > deadline and step < total
            if late or step % SAVE_EVERY == 0 or step == total:
                for name, trainer in trainers.items():
                    trainer.save(out / name / "checkpoint.safetensors")
            if late:
                return False
    return True


def _advance(trainer: Trainer, step: int) -> None:
    while trainer.step < step:
        trainer.advance()


def _news(
    trainers: dict[str, Trainer], out: Path, step: int, before: dict[str, int]
) -> Iterator[tuple[str, dict[str, float]]]:
    """Of those that are at `step`; what they did since `before` goes into their logs too."""
    for name, trainer in trainers.items():
        if trainer.step > step or step == before[name]:
            continue  # ahead of the others, since the recipe was killed between two checkpoints
        news = trainer.news(trainer.step - before[name])
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "log.jsonl").open("a") as file:
            file.write(json.dumps({"step": trainer.step} | news) + "\n")
        yield name, news


def _line(news: dict[str, dict[str, float]]) -> str:
    return ", ".join(f"{name} {100 * values['cells']:.0f}" for name, values in news.items())


def _judge(name: str, trainer: Trainer, boards: Boards, out: Path) -> None:
    """Evaluate, and write all that belongs to a result."""
    import torch
    from torch import nn

    from ttcnet.environment import circumstances
    from ttcnet.tasks.sudoku.evaluation import MODES, WORDS, evaluate

    folder = out / name
    model = trainer.trained_model()
    results = [evaluate(model, boards, mode).to_dict() for mode in MODES]
    nn.Module.to(model, torch.bfloat16)
    model.save_pretrained(folder / "model")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    write_json(folder / "config.json", asdict(trainer.config))
    found = {"run": name, "parameters": parameters, "results": results}
    write_json(folder / "metrics.json", found | circumstances(program="python -m experiments.sudoku"))
    rates = (f"{WORDS[each['mode']]} {_percent(each, 'boards')} / {_percent(each, 'cells')}" for each in results)
    typer.echo(f"{name:14} {'   '.join(rates)}")


def _percent(result: dict[str, Any], kind: str) -> str:
    return f"{100 * result[kind]['rate']:.1f}"


if __name__ == "__main__":
    typer.run(main)
