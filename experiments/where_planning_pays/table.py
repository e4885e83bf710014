"""Tables of experiments/where_planning_pays.

where-planning-pays-SYSTEM    unexplained variance by arm, horizon and kind of system, with the most demonstrations
where-planning-pays-knob      TTC layers with another horizon at the test
where-planning-pays-acting    the cost of acting
where-planning-pays-numbers   unexplained variance by the number of demonstrations
where-planning-pays-answers   the questions, answered by the rules that the page sets, and the advice for a user

The third round is in a folder of its own: its tables are where-planning-pays-third-answers, and so on. The arms of
MuJoCo are in two further folders, by the steps of training:

where-planning-pays-mujoco            all figures of a run, one line for each run
where-planning-pays-mujoco-answers    the questions
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from experiments.commands import current
from experiments.shared.tables import check_alike
from ttcnet.run_folder import settings_of

Run = dict[str, Any]
SYSTEMS = ("dense", "cart-pole", "pendulums")
ARMS = {
    "fixed-scale": "TTC, actions at a fixed scale", "ttc": "TTC", "mlp": "MLP of its size",
    "mlp-2.5": "MLP 2.5 times as large", "one": "TTC that plans one step", "linear": "no layer",
    "system": "TTC that writes systems", "system-one": "TTC that writes systems and plans one step",
}  # fmt: skip
TTC, MLPS = ("fixed-scale", "ttc", "system"), ("mlp", "mlp-2.5")
ONE_STEP = {"system": "system-one"}  # the same layer with one step; "one" for the others
KNOB = (0, 1, 2, 4, 8, 16, 32, 64)
COLUMNS = [(kind, name) for kind in ("seen", "held out") for name in ("trained", "between", "48", "64")]
THIRD = "third"
MUJOCO = {"mujoco": "", "mujoco-longer": ", twice as long"}  # folders, and the names of their runs
ARM_SYSTEMS = ("arms", "arm", "arm-matrices")
MORE = 30_000  # demonstrations that only MLPs have
TOLD, YES = ", told 32", "**yes**: "
USES = {
    "dense": "systems that are described by full matrices",
    "cart-pole": "a cart with a pole, described by a few physical quantities",
    "pendulums": "pendulums linked by springs, described by their physical quantities",
}


def pays_table(view: str, results: Path) -> str:
    """The table of that name, less "where-planning-pays-"; a sentence if there are no runs for it yet."""
    if view.startswith(THIRD + "-"):
        return pays_table(view.removeprefix(THIRD + "-"), results / THIRD)
    if view.startswith("mujoco"):
        return "\n".join((_mujoco_answers if view.endswith("answers") else _mujoco)(results)) + "\n"
    runs = {(system, arm): _runs(results, system, arm) for system in SYSTEMS for arm in ARMS}
    if not any(found for (system, _), found in runs.items() if view in (system, *MADE)):
        command = "python -m experiments.where_planning_pays --out experiments/where_planning_pays/results"
        return f"*Not run yet: `{command}`.*\n"
    lines = MADE[view](runs) if view in MADE else _system(runs, view)
    return "\n".join(lines) + "\n"


def _system(runs: dict[tuple[str, str], dict[int, Run]], system: str) -> list[str]:
    number = max((n for arm in ARMS for n in runs[system, arm]), default=0)
    head = " | ".join(f"{_kind(kind)}T {_name(name)}" for kind, name in COLUMNS)
    lines = [f"| | parameters | rate | {head} |", "|---|--:|--:|" + "--:|" * len(COLUMNS)]
    for arm, title in ARMS.items():
        if not (run := runs[system, arm].get(number)):
            continue
        cells = [with_error(_values(run, kind, name)) for kind, name in COLUMNS]
        lines.append(f"| {title} | {run['parameters']:,} | {run['rate']:g} | {' | '.join(cells)} |")
        if arm not in TTC and arm != "linear":
            cells = [
                with_error(_values(run, kind, name + TOLD)) if name in ("48", "64") else "" for kind, name in COLUMNS
            ]
            lines.append(f"| {title}, told T = 32 at most | | | {' | '.join(cells)} |")
    return [*lines, "", _caption([runs[system, arm][number] for arm in ARMS if number in runs[system, arm]])]


def _knob(runs: dict[tuple[str, str], dict[int, Run]]) -> list[str]:
    head = " | ".join(f"{T}" for T in KNOB)
    lines = [f"| | demonstrations | {head} |", "|---|--:|" + "--:|" * len(KNOB)]
    for system in SYSTEMS:
        for arm in TTC:
            for number, run in runs[system, arm].items():
                cells = [with_error(own_horizon(run, T)) for T in KNOB]
                lines.append(f"| {system}: {ARMS[arm]} | {number:,} | {' | '.join(cells)} |")
    return lines


def _acting(runs: dict[tuple[str, str], dict[int, Run]]) -> list[str]:
    columns = [("seen", 8), ("seen", 16), ("seen", 32), ("seen", 64), ("held out", 32), ("held out", 64)]
    head = " | ".join(f"{_kind(kind)}T = {T}" for kind, T in columns)
    lines = [f"| | demonstrations | {head} |", "|---|--:|" + "--:|" * len(columns)]
    for system in SYSTEMS:
        for arm, title in ARMS.items():
            for number, run in runs[system, arm].items():
                cells = [_act(run, kind, T) for kind, T in columns]
                lines.append(f"| {system}: {title} | {number:,} | {' | '.join(cells)} |")
                if arm in MLPS:
                    cells = [_act(run, kind, T, told=32) if T > 32 else "" for kind, T in columns]
                    lines.append(f"| {system}: {title}, told T = 32 at most | {number:,} | {' | '.join(cells)} |")
    return lines


def _numbers(runs: dict[tuple[str, str], dict[int, Run]]) -> list[str]:
    system = "cart-pole"
    numbers = sorted({n for arm in ARMS for n in runs[system, arm]})
    lines = ["| | " + " | ".join(f"{n:,}" for n in numbers) + " |", "|---|" + "--:|" * len(numbers)]
    for arm, title in ARMS.items():
        if here := runs[system, arm]:
            cells = [with_error(_values(here[n], "seen", "trained")) if n in here else "" for n in numbers]
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def _answers(runs: dict[tuple[str, str], dict[int, Run]]) -> list[str]:
    titles = [
        "1. below both MLPs, horizons of training", "2. below both MLPs, T = 64",
        "2. below both MLPs, systems held out", "3. planner at T = 32: TTC at T = 8 below T = 1",
        "4. a third of the demonstrations: not above both MLPs", "5. below TTC with one step",
    ]  # fmt: skip
    lines, sentences = ["| | " + " | ".join(titles) + " |", "|---|" + "--:|" * len(titles)], list[str]()
    for system in SYSTEMS:
        number = max((n for arm in ARMS for n in runs[system, arm]), default=0)
        here = {arm: runs[system, arm][number] for arm in ARMS if number in runs[system, arm]}
        arms = [arm for arm in TTC if arm in here]
        if not arms or not all(arm in here for arm in MLPS):
            continue
        for arm in arms:
            third = next((run for n, run in runs[system, arm].items() if 3 * n <= number), None)
            own, rivals = here[arm], [here[rival] for rival in MLPS]
            told = [min((_values(run, "seen", name) for name in ("64", "64" + TOLD)), key=mean) for run in rivals]
            cells = [
                verdict(_left(own), [_left(run) for run in rivals]),
                verdict(_values(own, "seen", "64"), told),
                verdict(_left(own, "held out"), [_left(run, "held out") for run in rivals]),
                verdict(own_horizon(own, 8), [own_horizon(own, 1)]),
                verdict(_left(third), [_left(run) for run in rivals], least=True) if third else "not run",
                verdict(_left(own), [_left(here[single])]) if (single := _one_step(arm)) in here else "not run",
            ]
            lines.append(f"| {system}: {ARMS[arm]}, {number:,} demonstrations | {' | '.join(cells)} |")
        sentences.append(_advice(system, here, arms))
    return [*lines, "", " ".join(sentences)]


def _mujoco(results: Path) -> list[str]:
    """Every run of the arms of MuJoCo."""
    titles = [
        "parameters", "rate", "unexplained: horizons of training", "T = 64", "heavier arms", "other weights",
        "planner at T = 32: TTC at T = 1", "TTC at T = 8", "cost of acting: T = 32", "T = 64", "heavier arms",
        "other weights",
    ]  # fmt: skip
    lines, every = ["| | " + " | ".join(titles) + " |", "|---|" + "--:|" * len(titles)], list[Run]()
    for title, here in _of_arms(results):
        for arm, numbers in here.items():
            for number, run in numbers.items():
                left = [_left(run), _best_told(run, "seen"), _left(run, "held out"), _left(run, "weights")]
                own = [own_horizon(run, T) for T in (1, 8)] if run["knob"] else []
                cells = [f"{run['parameters']:,}", f"{run['rate']:g}", *(with_error(each) for each in left + own)]
                cells += [""] * (8 - len(cells))
                far = min(
                    (_times(run, "seen", 64, told) for told in (None, 32) if not (told and run["knob"])), key=mean
                )
                paid = [_times(run), far, _times(run, "held out"), _times(run, "weights")]
                cells += [f"{mean(each):.2f} ± {standard_error(each):.2f}" for each in paid]
                lines.append(f"| {title}: {ARMS[arm]}, {number:,} demonstrations | {' | '.join(cells)} |")
                every.append(run)
    if not every:
        return ["*Not run yet.*"]
    commits = ", ".join(sorted({run["commit"] for run in every if run["commit"]}))
    config, versions = every[0]["config"], every[0]["versions"]
    about = (
        f"Mean over {config['seeds']} seeds and its standard error; {config['judged']} fresh systems for every horizon "
        f"and {config['episodes']} episodes. {every[0]['machine']['cpu']}; torch {versions['torch']}, MuJoCo "
        f"{versions['mujoco']}, commit {commits or 'unknown'}. Commands: "
        + "; ".join(sorted({f"`{current(run['command']).partition(' --only ')[0]}`" for run in every}))
        + "."
    )
    return [*lines, "", about]


def _mujoco_answers(results: Path) -> list[str]:
    """The questions about the arms of MuJoCo."""
    titles = [
        "1. below both MLPs, horizons of training", "2. below both MLPs, T = 64", "2. heavier arms", "2. other weights",
        "3. planner at T = 32: TTC at T = 8 below T = 1", "4. not above MLPs with three times the demonstrations",
        "4. acting costs no more than with those MLPs", "5. below TTC with one step",
        "7. acting costs less than with both MLPs",
    ]  # fmt: skip
    lines = ["| | " + " | ".join(titles) + " |", "|---|" + "--:|" * len(titles)]
    for title, runs in _of_arms(results):
        number = next(iter(runs["system"]), 0)
        here = {arm: found[number] for arm, found in runs.items() if number in found}
        if not number or not all(arm in here for arm in MLPS):
            continue
        own, rivals, more = here["system"], [here[arm] for arm in MLPS], [runs[arm].get(MORE) for arm in MLPS]
        many = [run for run in more if run]
        cells = [
            verdict(_left(own), [_left(run) for run in rivals]),
            verdict(_values(own, "seen", "64"), [_best_told(run, "seen") for run in rivals]),
            *(verdict(_left(own, kind), [_left(run, kind) for run in rivals]) for kind in ("held out", "weights")),
            verdict(own_horizon(own, 8), [own_horizon(own, 1)]),
            verdict(_left(own), [_left(run) for run in many], least=True) if all(more) else "not asked",
            verdict(_times(own), [_times(run) for run in many], least=True) if all(more) else "not asked",
            verdict(_left(own), [_left(here["system-one"])]) if "system-one" in here else "not run",
            verdict(_times(own), [_times(run) for run in rivals]),
        ]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines if len(lines) > 2 else ["*Not run yet.*"]


def _of_arms(results: Path) -> list[tuple[str, dict[str, dict[int, Run]]]]:
    """Title, and runs by arm and number of demonstrations, of every system of MuJoCo in every folder."""
    return [
        (system + said, {arm: _runs(results / folder, system, arm) for arm in ("system", "system-one", *MLPS)})
        for folder, said in MUJOCO.items() for system in ARM_SYSTEMS
    ]  # fmt: skip


def _best_told(run: Run, kind: str) -> list[float]:
    """At T = 64, told T or 32 at most, whichever is better."""
    found = [x["values"] for x in run["unexplained"] if x["systems"] == kind and x["name"].split(",")[0] == "64"]
    return min(found, key=mean)


def _one_step(arm: str) -> str:
    return ONE_STEP.get(arm, "one")


def _advice(system: str, here: dict[str, Run], arms: list[str]) -> str:
    """The advice of a system to a user, by question 1, and by question 5 if it was asked."""
    yes = any(verdict(_left(here[arm]), [_left(here[rival]) for rival in MLPS]).startswith(YES) for arm in arms)
    if not yes:
        text = f"**Do not plan ahead with it for** {USES[system]}: at the horizons of training an MLP does as well or "
        text += "better."
        if one := next((arm for arm in ("one", "system-one") if arm in here), None):
            found = verdict(_left(here[one]), [_left(here[rival]) for rival in MLPS])
            text += f" Is a TTC layer with one step, told T, below both MLPs? {found}."
        return text
    text = f"**Use it for** {USES[system]}: it beats an MLP 2.5 times as large."
    best = min(arms, key=lambda arm: mean(_left(here[arm])))
    single = _one_step(best)
    if single in here:
        left = ", and ".join(f"{mean(_left(here[arm])):.3f}" for arm in (best, single))
        ahead = verdict(_left(here[best]), [_left(here[single])]).startswith(YES)
        text += (
            f" **Looking ahead {'pays there' if ahead else 'is not the gain there'}:** the best layer has {left} with "
            "one step, told T as a feature."
        )
    return text


def verdict(values: Sequence[float], rivals: list[list[float]], least: bool = False) -> str:
    """Whether these are below those of all rivals by more than two standard errors, and the change in percent. With
    `least` it is enough that they are not above."""
    texts, yes = [], True
    for rival in rivals:
        each = [value - other for value, other in zip(values, rival, strict=True)]
        yes = yes and mean(each) < (0 if least else -2 * standard_error(each))
        scale = 100 / mean(rival)
        texts.append(f"{scale * mean(each):+.0f} ± {2 * scale * standard_error(each):.0f} %")
    return (YES if yes else "no: ") + ", ".join(texts)


def _times(run: Run, kind: str = "seen", horizon: int = 32, told: int | None = None) -> list[float]:
    """The cost of acting, as multiples of the planner's cost."""
    found = _episodes(run, kind, horizon, told)
    return [cost / found["planner"]["cost"] for cost in found["cost"]]


def _episodes(run: Run, kind: str, horizon: int, told: int | None) -> dict[str, Any]:
    wanted = (kind, horizon, told)
    return next(x for x in run["episodes"] if (x["systems"], x["horizon"], x.get("told")) == wanted)


def _act(run: Run, kind: str, horizon: int, told: int | None = None) -> str:
    found, times = _episodes(run, kind, horizon, told), _times(run, kind, horizon, told)
    stays = 100 * mean(found["return"])
    size = "> 99" if mean(times) > 99 else f"{mean(times):.2f} ± {standard_error(times):.2f}"
    return f"{size} ({stays:.0f} %)"


def own_horizon(run: Run, own: int) -> list[float]:
    """For the planner's horizon 32."""
    return next(x["values"] for x in run["knob"] if (x["planner"], x["own"]) == (32, own))


def _values(run: Run, kind: str, name: str) -> list[float]:
    return next(x["values"] for x in run["unexplained"] if (x["systems"], x["name"]) == (kind, name))


def _left(run: Run, kind: str = "seen") -> list[float]:
    """At the horizons of training."""
    return _values(run, kind, "trained")


def _kind(kind: str) -> str:
    return "" if kind == "seen" else "held out: "


def _name(name: str) -> str:
    return {"trained": "of training", "between": "= 3, 12, 24"}.get(name, f"= {name}")


def standard_error(values: Sequence[float]) -> float:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")


def with_error(values: Sequence[float]) -> str:
    return "> 99" if mean(values) > 99 else f"{mean(values):.3f} ± {standard_error(values):.3f}"


def _runs(results: Path, system: str, arm: str) -> dict[int, Run]:
    """By the number of demonstrations, the largest first."""
    found = {}
    for file in (results / system / arm).glob("[0-9]*/metrics.json"):
        config = {"config": settings_of(file.parent)}
        found[int(file.parent.name)] = config | json.loads(file.read_text())
    return dict(sorted(found.items(), reverse=True))


def _caption(runs: list[Run]) -> str:
    first, config = runs[0], runs[0]["config"]
    check_alike(runs, but=("arm", "rates"))
    commits = ", ".join(sorted({run["commit"] for run in runs if run["commit"]}))
    return (
        f"Unexplained variance on {config['judged']:,} fresh systems for every horizon, mean over {config['seeds']} "
        f"seeds and its standard error. {config['pool']:,} demonstrations, {config['steps']:,} steps of "
        f"{config['batch']}. {first['machine']['cpu']}; torch {first['versions']['torch']}, "
        f"commit {commits or 'unknown'}. "
        f"Command: `{current(first['command']).partition(' --only ')[0]}`."
    )


MADE: dict[str, Callable[[dict[tuple[str, str], dict[int, Run]]], list[str]]] = {
    "knob": _knob, "acting": _acting, "numbers": _numbers, "answers": _answers,
}  # fmt: skip
