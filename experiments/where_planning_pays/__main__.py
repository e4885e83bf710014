"""Where planning pays: policies that imitate planners whose horizon varies.

    python -m experiments.where_planning_pays --out experiments/where_planning_pays/results
    python -m experiments.where_planning_pays --out experiments/where_planning_pays/results --only cart-pole/ttc/3200

docs/imitation.md and docs/robot-arms.md have the questions, `dense`, `cart_pole`, `pendulums` and `arm` the systems,
`imitation` the arms and their measures. A run is a system, an arm and a number of demonstrations, with all its seeds.
The learning rate of a system and an arm is chosen before, on a seed that no run has. After a stop the same command
resumes and skips finished runs. Several commands may work at a time, each with its own --only.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttcnet.command_options import usable
from ttcnet.errors import errors_as_sentences, fail

if TYPE_CHECKING:  # the rest is imported late, to keep --help instant
    from experiments.where_planning_pays.imitation import Demonstrations, Imitation

SAVE_EVERY = 250
PROGRAM = "python -m experiments.where_planning_pays"
TRAINING: dict[str, dict[str, Any]] = {  # steps of each run; and of the shorter ones that choose the rate
    "dense": {"numbers": (51_200,), "tuned_at": 51_200, "steps": 1500, "batch": 256},
    "cart-pole": {"numbers": (320, 1000, 3200, 10_000), "tuned_at": 3200, "steps": 1000, "batch": 64},
    "pendulums": {"numbers": (10_000,), "tuned_at": 10_000, "steps": 1000, "batch": 64},
    "arms": {"numbers": (10_000, 30_000), "tuned_at": 10_000, "tuned_for": 500, "steps": 1500, "batch": 128},
    "arm": {"numbers": (10_000,), "tuned_at": 10_000, "tuned_for": 500, "steps": 1500, "batch": 128},
    "arm-matrices": {"numbers": (10_000,), "tuned_at": 10_000, "tuned_for": 500, "steps": 1500, "batch": 128},
}
TUNING_SEED = 100


def chosen_runs(only: list[str] | None) -> list[str]:
    """The runs, system/arm/number, that have these words in their names; all if there are none."""
    from experiments.where_planning_pays.imitation import ARMS

    known = [f"{system}/{arm}/{n}" for system in TRAINING for n in TRAINING[system]["numbers"] for arm in ARMS]
    found = [name for name in known if not only or any(_fits(name, words) for words in only)]
    if only and (unknown := [words for words in only if not any(_fits(name, words) for name in known)]):
        rule = f"must name systems ({', '.join(TRAINING)}), arms ({', '.join(ARMS)}) or numbers, or all three"
        fail("only", f"{rule}, as in cart-pole/ttc/1000", ", ".join(unknown), "Correct it.", "unknown-name")
    return found


def _fits(name: str, words: str) -> bool:
    parts = name.split("/")
    return all(word in parts for word in words.split("/"))


def main(
    out: Annotated[Path, typer.Option(help="Folder for the runs.")],
    only: Annotated[list[str] | None, typer.Option(help="Systems, arms, numbers, or all three; repeat.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of training; if not given, those of the system.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds of every run.")] = 5,
    rates: Annotated[str, typer.Option(help="Rates to choose from; a single one is used.")] = "3e-3,1e-2,3e-2",
    judged: Annotated[int, typer.Option(help="Systems to judge by, for every horizon.")] = 512,
    episodes: Annotated[int, typer.Option(help="Systems to act in.")] = 64,
    heads: Annotated[int, typer.Option(help="Of TTC layers.")] = 8,
    state_size: Annotated[int, typer.Option(help="Of a head.")] = 8,
    first_seed: Annotated[int, typer.Option(help="First seed; 0 in the first two rounds.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    from experiments.where_planning_pays.imitation import Demonstrations

    with errors_as_sentences():
        where = usable(device)
        floats = tuple(float(rate) for rate in rates.split(","))
        for name in chosen_runs(only):
            system, arm, number = name.split("/")
            training = TRAINING[system]
            size = {"steps": steps or training["steps"], "batch": training["batch"]}
            size |= {"heads": heads, "state_size": state_size, "first_seed": first_seed}
            settings = Demonstrations(
                system, arm, seeds=seeds, rates=floats, pool=int(number), judged=judged, episodes=episodes, **size
            )
            few = steps or training.get("tuned_for", training["steps"])
            tuning = replace(settings, pool=training["tuned_at"], steps=few)
            rate = floats[0] if len(floats) == 1 else tuned(tuning, out / system / arm / "tuning", where)
            make(replace(settings, rates=(rate,)), out / system / arm / number, where)


def tuned(settings: Demonstrations, folder: Path, device: str) -> float:
    """The learning rate of a system and an arm: the best of all on one seed, by fresh demonstrations."""
    from experiments.where_planning_pays.imitation import TRAINED

    one = replace(settings, seeds=1, first_seed=TUNING_SEED)

    def results(run: Imitation) -> dict[str, Any]:
        found = run.unexplained(TRAINED, seed=1)
        best = min((value, rate) for value, rate in zip(found, one.rates, strict=True) if value == value)
        return {
            "validation": {f"{rate:g}": value for rate, value in zip(one.rates, found, strict=True)},
            "rate": best[1],
        }

    return float(_run(one, folder, results, device)["rate"])


def make(settings: Demonstrations, folder: Path, device: str) -> None:
    """One run, resumed and taken to its end."""

    def results(run: Imitation) -> dict[str, Any]:
        return {"parameters": run.parameters, "rate": settings.rates[0]} | run.everything()

    found = _run(settings, folder, results, device)
    shown = next(each for each in found["unexplained"] if each["name"] == "trained" and each["systems"] == "seen")
    typer.echo(f"{found['run']:32} unexplained variance {mean(shown['values']):.4f}")


def _run(settings: Demonstrations, folder: Path, results: Any, device: str) -> dict[str, Any]:
    """Train, judge and write; or read the written result."""
    from experiments.shared.stacks import carry_out
    from experiments.where_planning_pays.imitation import Imitation

    name = f"{settings.task}/{settings.arm}/{folder.name}"
    options: dict[str, Any] = dict(program=PROGRAM, packages=["gymnasium", "mujoco"])
    return carry_out(name, settings, folder, Imitation, results, device, 20, SAVE_EVERY, **options)


if __name__ == "__main__":
    typer.run(main)
