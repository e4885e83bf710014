"""Shortest paths: is a layer that plans of use where the plan is a search?

    python -m experiments.shortest_paths --out experiments/shortest_paths/results
    python -m experiments.shortest_paths --out experiments/shortest_paths/results --only system

README.md has the questions, `graphs` the task, `paths` the arms and their measures. A run is an arm with all its seeds.
Its learning rate is chosen before, on a seed that no run has. After a stop the same command resumes and skips finished
runs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer

from ttcnet.command_options import usable
from ttcnet.errors import errors_as_sentences, fail

SAVE_EVERY, TUNING_SEED = 250, 100
PROGRAM = "python -m experiments.shortest_paths"


def main(
    out: Annotated[Path, typer.Option(help="Folder for the runs.")],
    only: Annotated[list[str] | None, typer.Option(help="Arms; repeat. All if not given.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of training.")] = 2000,
    batch: Annotated[int, typer.Option(help="Questions of a step.")] = 64,
    seeds: Annotated[int, typer.Option(help="Seeds of every arm.")] = 5,
    rates: Annotated[str, typer.Option(help="Learning rates to choose from.")] = "1e-3,3e-3,1e-2",
    pool: Annotated[int, typer.Option(help="Questions to train on.")] = 65_536,
    tested: Annotated[int, typer.Option(help="Questions of validation, and of the test.")] = 4096,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    from experiments.shared.stacks import Settings, carry_out
    from experiments.shortest_paths.paths import ARMS, Paths

    with errors_as_sentences():
        if unknown := set(only or ()) - set(ARMS):
            remedy = "Pass one of them, or leave --only out."
            fail("only", f"must be an arm: {', '.join(ARMS)}", ", ".join(sorted(unknown)), remedy, "unknown-name")
        where, floats = usable(device), tuple(float(rate) for rate in rates.split(","))
        for arm in (arm for arm in ARMS if not only or arm in only):
            size: dict[str, Any] = dict(steps=steps, batch=batch, pool=pool, judged=tested)
            settings = Settings("paths", arm, seeds=seeds, rates=floats, **size)
            options = where, 50, SAVE_EVERY
            rate = floats[0]
            if len(floats) > 1:
                one = replace(settings, seeds=1, first_seed=TUNING_SEED)
                tuned = carry_out(arm, one, out / arm / "tuning", Paths, Paths.tuning, *options, program=PROGRAM)
                rate = float(tuned["rate"])
            chosen = replace(settings, rates=(rate,))
            found = carry_out(arm, chosen, out / arm / "run", Paths, Paths.results, *options, program=PROGRAM)
            right = next(each["right"] for each in found["results"] if each["own"] and not each["long"])
            typer.echo(f"{arm:12} rate {rate:g}, next node right {mean(right):.3f}")


if __name__ == "__main__":
    typer.run(main)
