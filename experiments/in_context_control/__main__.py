"""In-context control: policies that read transitions of an unknown linear system, and act in it.

    python -m experiments.in_context_control --out experiments/in_context_control/results
    python -m experiments.in_context_control --out experiments/in_context_control/results --only read/system

docs/in-context-control.md has the questions, `systems` the task, `trunk` the model that reads a prefix, `policies` the
arms and their measures, `references` planners that answer without a policy. The order is: trunk, references, read/ARM,
told/ARM, fitted/ARM. The learning rate of an arm is chosen before, on a seed that no run has. After a stop the same
command resumes and skips finished runs. Once the trunk is finished, several commands may work at a time, each with its
own --only.
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
    from experiments.in_context_control.policies import Answers, Policies
    from experiments.in_context_control.trunk import Reading

SAVE_EVERY = 100
PROGRAM = "python -m experiments.in_context_control"
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "small": {"trunk": {}, "arm": {}},
    "medium": {"trunk": {"steps": 12_000, "pool": 262_144}, "arm": {"steps": 6000, "pool": 409_600}},
    "large": {
        "trunk": {"steps": 20_000, "batch": 256, "pool": 1_048_576, "seeds": 6, "width": 128},
        "arm": {"steps": 4000, "batch": 512, "pool": 409_600, "judged": 2048, "episodes": 512},
    },
}


def chosen_runs(only: list[str] | None) -> list[str]:
    """The steps to make, in order; all if there are no words."""
    from experiments.in_context_control.policies import ARMS, TASKS

    known = ["trunk", "references", *(f"{task}/{arm}" for task in TASKS for arm in ARMS)]
    if only and (unknown := [words for words in only if not any(_fits(name, words) for name in known)]):
        rule = f"must name trunk, references, {', '.join(TASKS)}, arms ({', '.join(ARMS)}), or both"
        fail("only", f"{rule}, as in {TASKS[0]}/system", ", ".join(unknown), "Correct it.", "unknown-name")
    return [name for name in known if not only or any(_fits(name, words) for words in only)]


def _fits(name: str, words: str) -> bool:
    return set(words.split("/")) <= set(name.split("/"))


def main(
    out: Annotated[Path, typer.Option(help="Folder for the runs.")],
    only: Annotated[
        list[str] | None, typer.Option(help="trunk, references, read, told, fitted, arms, or read/ARM; repeat.")
    ] = None,
    size: Annotated[str, typer.Option(help="small and medium are for a CPU, large for a GPU.")] = "small",
    seeds: Annotated[int, typer.Option(help="Seeds of every arm.")] = 5,
    rates: Annotated[str, typer.Option(help="Rates to choose from; a single one is used.")] = "3e-3,1e-2",
    steps: Annotated[int | None, typer.Option(help="Steps of arms, instead of those of the size.")] = None,
    trunk_steps: Annotated[int | None, typer.Option(help="Steps of the trunk, instead of those of the size.")] = None,
    pool: Annotated[int | None, typer.Option(help="Demonstrations of a seed, instead of those of the size.")] = None,
    judged: Annotated[int | None, typer.Option(help="Systems to judge by, instead of those of the size.")] = None,
    first_seed: Annotated[int, typer.Option(help="First seed of arms and trunks; 0 in the first round.")] = 10,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    from experiments.in_context_control.policies import Answers
    from experiments.in_context_control.trunk import Reading

    with errors_as_sentences():
        if size not in SIZES:
            fail("size", f"must be one of {', '.join(SIZES)}", repr(size), "Name one of them.", "unknown-name")
        where = usable(device)
        floats = tuple(float(rate) for rate in rates.split(","))
        changed = {"steps": steps, "pool": pool, "judged": judged}
        arm_size = SIZES[size]["arm"] | {name: value for name, value in changed.items() if value}
        trunk_size = SIZES[size]["trunk"] | ({"steps": trunk_steps} if trunk_steps else {})
        reading = Reading("prefixes", "attention", first_seed=first_seed, **trunk_size)
        arm_size |= {"first_seed": first_seed, "width": reading.width}
        trunks = out / "trunk"
        for name in chosen_runs(only):
            if name == "trunk":
                make_trunk(reading, trunks, where)
                continue
            if name == "references":
                make_references(Answers("read", "references", seeds=1, **arm_size), out / name, trunks, reading)
                continue
            task, arm = name.split("/")
            settings = Answers(task, arm, seeds=seeds, rates=floats, **arm_size)
            tuning = replace(settings, seeds=1, first_seed=first_seed + seeds)
            rate = floats[0]
            if len(floats) > 1:
                rate = float(_run(tuning, out / task / arm / "tuning", _best, trunks, reading, where)["rate"])
            found = _run(
                replace(settings, rates=(rate,)), out / task / arm / "run", _everything, trunks, reading, where
            )
            shown = [mean(each["values"]) for each in found["unexplained"] if each["name"] == "trained"]
            typer.echo(f"{name:16} unexplained variance {', '.join(f'{value:.4f}' for value in shown)}")


def make_trunk(settings: Reading, folder: Path, device: str) -> None:
    """The trunk of every seed."""
    from experiments.in_context_control.trunk import Trunks
    from experiments.shared.stacks import carry_out

    options = dict(program=PROGRAM)
    found = carry_out(
        "trunk", settings, folder, Trunks, lambda run: run.written(folder), device, 20, SAVE_EVERY, **options
    )
    typer.echo(
        f"trunk            unexplained variance of A and B {mean(each[-1] for each in found['unexplained']):.4f}"
    )


def make_references(settings: Answers, folder: Path, trunks: Path, reading: Reading) -> None:
    """Planners that answer without a policy."""
    from dataclasses import asdict

    from experiments.in_context_control.references import everything
    from experiments.shared.stacks import METRICS
    from ttcnet.storage.writing import write_json
    from ttcnet.train.run import Run

    run = Run(folder, asdict(settings), results=[METRICS], program=PROGRAM)
    if run.is_done:
        run.check_settings()
    else:
        with run:
            found = everything(settings, trunks, reading)
            write_json(folder / METRICS, {"run": "references"} | found | run.provenance())
    typer.echo("references       done")


def _best(run: Policies) -> dict[str, Any]:
    """The rate with the best answers on systems that no run is judged by, after prefixes of all lengths."""
    from experiments.in_context_control.policies import LENGTHS
    from experiments.where_planning_pays.imitation import TRAINED

    each = [run.unexplained(TRAINED, length, seed=1) for length in LENGTHS]
    found = [mean(values) for values in zip(*each, strict=True)]
    rates = run.settings.rates
    return {
        "validation": {f"{rate:g}": value for rate, value in zip(rates, found, strict=True)},
        "rate": min((value, rate) for value, rate in zip(found, rates, strict=True) if value == value)[1],
    }


def _everything(run: Policies) -> dict[str, Any]:
    return {"parameters": run.parameters, "rate": run.settings.rates[0]} | run.everything()


def _run(settings: Answers, folder: Path, results: Any, trunks: Path, reading: Reading, device: str) -> dict[str, Any]:
    """Train, judge and write; or read the written result."""
    from experiments.in_context_control.policies import Policies
    from experiments.shared.stacks import carry_out

    def start(given: Answers, where: str) -> Policies:
        return Policies(given, where, trunks, reading)

    name = f"{settings.task}/{settings.arm}/{folder.name}"
    return carry_out(name, settings, folder, start, results, device, 20, SAVE_EVERY, program=PROGRAM)


if __name__ == "__main__":
    typer.run(main)
