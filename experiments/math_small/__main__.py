"""The paper's table of mathematics at the size of one GPU: SmolLM2-135M-Instruct, or any other Llama, fine-tuned with
TTC layers, with other layers in their place, and without; and the paper's ablations.

    base=SmolLM2-135M-Instruct results=experiments/math_small/results
    python -m experiments.math_small math --base $base --data data/math --out $results/math
    python -m experiments.math_small countdown --base $base --out $results/countdown
    python -m experiments.math_small math --base $base --data data/math --out $results/math-frozen --frozen

All runs of a task see the same rows in the same order (for a seed) and are trained as `ttcnet sft` trains, by
`training`. A finished run is skipped, and one that was stopped or killed is resumed. Answers of a run are graded at
the end, if math-verify is installed; otherwise they wait, and the same command grades them later.
"""

from __future__ import annotations

import gzip
import json
import math
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from ttcnet.command_options import usable
from ttcnet.errors import errors_as_sentences, fail
from ttcnet.evaluate import wilson
from ttcnet.nn.options import check_gain
from ttcnet.run_folder import check_settings, settings_of
from ttcnet.storage.writing import write_json
from ttcnet.terminal.console import tell

from .tasks import TASKS, grade

ADAPTER: dict[str, Any] = dict(every=8, heads=16)
INTERLEAVED = ("4-1", "16-2", "16-1")
MIXERS = ("mlp", "attention", "retnet", "mamba", "gdn", "mesanet")
EPOCHS = {"math": 2.0, "countdown": 1.0}
LR = 3e-4  # the paper's 2e-5 is for a model 50 times as large and far more steps


FROZEN: dict[str, Any] = dict(every=24)  # one layer, in the 24th of 30 decoder layers
FROZEN_ARMS: dict[str, dict[str, Any]] = {
    "ttc": {"action_gain": 4.0},  # without it W_out learns too slowly: docs/math-small.md, Larger initial actions
    "system": {"context": "system", "state_size": 8, "rank": 224},
    "mlp": {"insert": "mlp"}, "mlp-2.5": {"insert": "mlp", "heads": 40},  # as large as TTC with 40 heads
    "gdn": {"insert": "gdn"}, "attention": {"insert": "attention"},
}  # fmt: skip
FROZEN_TRAINING: dict[str, Any] = dict(steps=2000, batch=16)
FROZEN_LR = 3e-3


class Run(NamedTuple):
    """The inserted layers, and their horizons in training; whether the model answers at all horizons; the seed, None
    for the unchanged base model; whether the base model is frozen; and steps and batch, if they differ from those of
    full fine-tuning."""

    adapter: dict[str, Any] | None = None
    horizon: str = "pln:8,0.1,32"
    sweep: bool = False
    seed: int | None = 0
    frozen: bool = False
    steps: int | None = None
    batch: int = 96

    @property
    def plans(self) -> bool:
        return self.adapter is not None and self.adapter.get("insert", "ttc") == "ttc"

    def with_gain(self, gain: float) -> Run:
        """The run with that gain of TTC's actions, if the model plans."""
        return self if not self.plans else self._replace(adapter={**(self.adapter or {}), "action_gain": gain})


def runs(only: list[str] | None = None) -> dict[str, Run]:
    """Every run by its name, the most important first."""
    found = {"base": Run(seed=None), "full-0": Run(), "ttc-0": Run(ADAPTER, sweep=True)}
    found |= {f"{kind}-0": Run(ADAPTER | {"insert": kind}) for kind in MIXERS}
    for seed in (1, 2):
        found |= {f"full-{seed}": Run(seed=seed), f"ttc-{seed}": Run(ADAPTER, seed=seed)}
    found |= {f"ttc-token-{seed}": Run(ADAPTER | {"context": "token"}, seed=seed) for seed in range(3)}
    found |= {"ttc-homogeneous": Run(ADAPTER | {"time_homogeneous": True})}
    found |= {"ttc-fixed": Run(ADAPTER, "fixed:8"), "ttc-uniform": Run(ADAPTER, "uniform:1,32")}
    found |= {f"ttc-{every}": Run(ADAPTER | {"every": every.replace("-", ":")}) for every in INTERLEAVED}
    return _those(found, only)


def frozen_runs(only: list[str] | None = None) -> dict[str, Run]:
    """Every run with a frozen base by its name: arm after arm for a seed, then for the next."""
    found = {"base": Run(seed=None)}
    for seed in range(3):
        for arm, options in FROZEN_ARMS.items():
            given = ADAPTER | FROZEN | {"context": "token"} | options
            found[f"{arm}-{seed}"] = Run(given, seed=seed, frozen=True, **FROZEN_TRAINING)
    return _those(found, only)


def _those(found: dict[str, Run], only: list[str] | None) -> dict[str, Run]:
    if unknown := set(only or ()) - set(found):
        rule = f"must name runs among {', '.join(found)}"
        fail("only", rule, ", ".join(sorted(unknown)), "Correct it.", "unknown-name")
    return {name: run for name, run in found.items() if not only or name in only}


def main(
    task: Annotated[str, typer.Argument(help="math or countdown.")],
    base: Annotated[Path, typer.Option(help="Folder of the base model.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs.")],
    data: Annotated[Path | None, typer.Option(help="Folder of the files of math.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Runs; all if not given.")] = None,
    epochs: Annotated[
        float | None, typer.Option(min=0, help="Passes over the data; 2 for math, 1 for countdown.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Highest learning rate; 3e-4, with --frozen 3e-3.")] = None,
    inserted_lr: Annotated[float | None, typer.Option(help="Highest rate of the inserted layers, if other.")] = None,
    action_gain: Annotated[float | None, typer.Option(help="Initial factor of TTC's actions.")] = None,
    tokens: Annotated[int, typer.Option(help="Most tokens at once, for GPUs with less memory; 0 for no limit.")] = 0,
    frozen: Annotated[bool, typer.Option(help="Train one inserted layer, and nothing of the base model.")] = False,
    minutes: Annotated[
        float, typer.Option(min=0, help="Start no further run that would end later; 0 for no limit.")
    ] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
) -> None:
    lr = lr or (FROZEN_LR if frozen else LR)
    with errors_as_sentences():
        if task not in TASKS:
            fail("task", f"must be one of {', '.join(TASKS)}", repr(task), "Name one of them.", "unknown-name")
        if task == "math" and data is None:
            fail("data", "must be given for math", "none", "Name the folder of its files.", "missing")
        chosen = frozen_runs(only) if frozen else runs(only)
        if action_gain is not None:
            check_gain(action_gain)
            chosen = {name: run.with_gain(action_gain) for name, run in chosen.items()}
        _make(task, chosen, base, out, data, epochs or EPOCHS[task], lr, inserted_lr, tokens, minutes, device)


def _make(
    task: str, chosen: dict[str, Run], base: Path, out: Path, data: Path | None, epochs: float, lr: float,
    inserted_lr: float | None, tokens: int, minutes: float, device: str,
) -> None:  # fmt: skip
    missing = {name: run for name, run in chosen.items() if not _is_done(out / name)}
    for name, run in chosen.items():
        if name not in missing and run.seed is not None:
            asked = dict(run._asdict(), epochs=epochs, lr=lr, inserted_lr=None if run.adapter is None else inserted_lr)
            _check_same(out / name, asked)
    if missing:
        for name, folder in (("base", base), ("data", data)):
            if folder is not None and not folder.is_dir():
                fail(name, "must be a folder", folder, "docs/math-small.md says where it comes from.", "no-model")
        tell(f"Loading {base} ...")
        from .run import RunMaker  # late, since it takes seconds

        begin = time.monotonic()
        maker = RunMaker(task, base, data, usable(device), lr, inserted_lr, epochs, tokens or math.inf)
        longest = 0.0
        for name, run in missing.items():
            now = time.monotonic()
            if minutes and now - begin + longest > 60 * minutes:
                typer.echo("Stopped for the time being. The same command resumes.")
                break
            maker.make(name, run, out / name)
            longest = max(longest, time.monotonic() - now)
    for name in chosen:
        if (out / name / "measured.json").exists():
            _grade(task, out / name)
        if (out / name / "metrics.json").exists():
            typer.echo(f"{name} is done: {out / name / 'metrics.json'}")


def _is_done(folder: Path) -> bool:
    return (folder / "measured.json").exists() or (folder / "metrics.json").exists()


def _check_same(folder: Path, asked: dict[str, Any]) -> None:
    """A finished run must have the requested settings."""
    fields = ("adapter", "horizon", "epochs", "lr", "inserted_lr", "steps", "batch")
    then, now = (each | {"inserted_lr": each.get("inserted_lr") or each["lr"]} for each in (settings_of(folder), asked))
    check_settings(folder, then, now, only=fields)


def _grade(task: str, folder: Path) -> None:
    """Grade the answers of a run, if that is possible here: metrics.json takes the place of measured.json."""
    if task == "math" and find_spec("math_verify") is None:
        typer.echo(f"{folder.name} waits to be graded. Give the same command where math-verify is installed.")
        return
    with gzip.open(folder / "answers.jsonl.gz", "rt", encoding="utf-8") as file:
        found = [json.loads(line) for line in file]
    groups: dict[tuple[str, int | None], list[tuple[bool, bool]]] = {}
    for answer, verdict in zip(found, grade(task, found), strict=True):
        groups.setdefault((answer["benchmark"], answer["horizon"]), []).append((verdict, answer["ended"]))
    accuracy = []
    for (benchmark, horizon), each in groups.items():
        right, total = sum(one for one, _ in each), len(each)
        low, high = wilson(right, total)
        figures = dict(right=right, total=total, rate=right / total, low=low, high=high)
        ended = sum(over for _, over in each) / total
        accuracy.append({"benchmark": benchmark, "horizon": horizon} | figures | {"ended": ended})
    measured = json.loads((folder / "measured.json").read_text())
    write_json(folder / "metrics.json", measured | {"accuracy": accuracy})
    (folder / "measured.json").unlink()


if __name__ == "__main__":
    typer.run(main)
