"""LQR in a token: can a layer read a control problem off a token, and act?

    python -m experiments.lqr_in_a_token --out experiments/lqr_in_a_token/results --jobs 2
    python -m experiments.lqr_in_a_token --out experiments/lqr_in_a_token/results --only dense/ttc --only dense/mlp

README.md has the questions, `tokens` the tasks, `arms` the arms. A run is a task and an arm, with all its seeds and
learning rates. Each is a folder with settings and metrics. After a stop the same command resumes and skips finished
runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttcnet.command_options import usable
from ttcnet.errors import errors_as_sentences, fail
from ttcnet.terminal.progress_bars import Bar

if TYPE_CHECKING:  # the rest is imported late, to keep --help instant
    from experiments.shared.stacks import Settings

SAVE_EVERY = 1000
PROGRAM = "python -m experiments.lqr_in_a_token"


def run_names(only: list[str] | None) -> list[str]:
    """The runs, task/arm, of these names, tasks or arms; all if there are none. The slowest come first."""
    from experiments.lqr_in_a_token.arms import ARMS
    from experiments.lqr_in_a_token.tokens import TASKS

    order = sorted(ARMS, key=lambda arm: arm != "rank-one")
    known = [f"{task}/{arm}" for arm in order for task in TASKS]
    if unknown := set(only or ()) - {*known, *TASKS, *ARMS}:
        rule = f"must name tasks ({', '.join(TASKS)}), arms ({', '.join(ARMS)}) or both, as in dense/ttc"
        fail("only", rule, ", ".join(sorted(unknown)), "Correct it.", "unknown-name")
    return [name for name in known if not only or {name, *name.split("/")} & set(only)]


def main(
    out: Annotated[Path, typer.Option(help="Folder for the runs.")],
    only: Annotated[list[str] | None, typer.Option(help="Tasks, arms, or task/arm; repeat. All if not given.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of training.")] = 4000,
    batch: Annotated[int, typer.Option(help="Tokens of a step.")] = 256,
    seeds: Annotated[int, typer.Option(help="Seeds of every run.")] = 5,
    first_seed: Annotated[int, typer.Option(help="First seed.")] = 0,
    rates: Annotated[str, typer.Option(help="Learning rates of every run.")] = "3e-3,1e-2,2e-2",
    pool: Annotated[int, typer.Option(help="Tokens to train on.")] = 524_288,
    judged: Annotated[int, typer.Option(help="Tokens to evaluate on, of each kind.")] = 8192,
    width: Annotated[int, typer.Option(help="Width of a token.")] = 64,
    heads: Annotated[int, typer.Option(help="Heads of TTC layers.")] = 4,
    state_size: Annotated[int, typer.Option(help="State size of a head.")] = 16,
    jobs: Annotated[int, typer.Option(help="Runs at a time, each a process.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    from experiments.shared.stacks import Settings

    with errors_as_sentences():
        chosen, where = run_names(only), usable(device)
        if jobs > 1 and len(chosen) > 1:
            apart(chosen, jobs)
            return
        floats = tuple(float(rate) for rate in rates.split(","))
        options: dict[str, Any] = dict(steps=steps, batch=batch, seeds=seeds, rates=floats, pool=pool, judged=judged)
        options |= dict(width=width, heads=heads, state_size=state_size, first_seed=first_seed)
        for name in chosen:
            task, _, arm = name.partition("/")
            make(Settings(task, arm, **options), out / task / arm, where)


def apart(chosen: list[str], jobs: int) -> None:
    """Every run in a process of its own, `jobs` at a time, with the options of this command."""
    words, left = list[str](), iter(sys.argv[1:])
    for word in left:
        if word in ("--only", "--jobs"):
            next(left)
        elif not word.startswith(("--only=", "--jobs=")):
            words.append(word)

    def run(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "experiments.lqr_in_a_token", *words, "--only", name]
        environment = {"OMP_NUM_THREADS": "1"} | os.environ
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    failed = []
    with Bar() as progress, ThreadPoolExecutor(jobs) as pool:
        bar = progress.add_task("runs", total=len(chosen))
        for done in as_completed([pool.submit(run, name) for name in chosen]):
            found = done.result()
            text = found.stdout if found.returncode == 0 else found.stderr
            progress.console.print(text.strip().splitlines()[-1] if text.strip() else "A run ended without a message.")
            if found.returncode:
                failed.append(found.args[-1])
            progress.advance(bar)
    if failed:
        remedy = f"Run one alone to see why: --only {failed[0]}."
        fail("runs", "must all come to their end", f"{', '.join(failed)}, which did not", remedy, "failed")


def make(settings: Settings, folder: Path, device: str) -> None:
    """One run, resumed and taken to its end."""
    from experiments.lqr_in_a_token.arms import OWN
    from experiments.lqr_in_a_token.readers import Readers
    from experiments.shared.stacks import METRICS, Settings, carry_out

    name = f"{settings.task}/{settings.arm}"
    done = (folder / METRICS).exists()
    defaults = asdict(Settings(settings.task, settings.arm))  # fields that older runs do not name
    options: dict[str, Any] = dict(defaults=defaults, program=PROGRAM)
    found = carry_out(name, settings, folder, Readers, Readers.results, device, 100, SAVE_EVERY, **options)
    if done:
        typer.echo(f"{name} is done.")
        return
    shown = next(each for each in found["results"] if each["tokens"] == "test" and each["horizon"] == OWN)
    typer.echo(f"{name:28} rate {found['rate']:g}, unexplained variance {mean(shown['unexplained']):.4f}")


if __name__ == "__main__":
    typer.run(main)
