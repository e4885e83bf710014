"""Tables of the small run of mathematics: results of experiments/math_small, beside those that the paper reports.

math-small-TASK              all models
math-small-TASK-horizons     TTC-Net against the horizon
math-small-TASK-ablations    TTC-Net, and ablations
math-small-TASK-rates        all models, with a higher learning rate for the inserted layers
math-small-TASK-gains        TTC-Net, with larger actions at the start
math-small-TASK-plans        the same against the horizon
math-small-TASK-frozen       one inserted layer of each kind, with a frozen base
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.commands import current
from experiments.shared.tables import check_alike
from ttcnet.errors import fail
from ttcnet.run_folder import settings_of
from ttcnet.tasks.statistics import ratio

Result = dict[str, Any]
OWN = 8  # the horizon of TTC-Net if a table does not name one
MODELS = {
    "base": "Base model", "full": "Full fine-tuning", "mlp": "+ MLP", "attention": "+ Attention", "retnet": "+ RetNet",
    "mamba": "+ Mamba", "gdn": "+ GDN", "mesanet": "+ MesaNet", "ttc": "TTC-Net",
    "ttc-token": "TTC-Net, token context",
}  # fmt: skip
FROZEN = {
    "base": "Base model", "ttc": "TTC, token context", "system": "TTC that writes systems", "mlp": "MLP",
    "mlp-2.5": "MLP of 2.5 times", "gdn": "GDN", "attention": "Attention",
}  # fmt: skip
PLANS = ("ttc", "system")
ABLATIONS = {
    "ttc": "TTC-Net: time-heterogeneous, PLN, 8:1", "ttc-homogeneous": "time-homogeneous",
    "ttc-fixed": "fixed horizon, 8", "ttc-uniform": "uniform horizon, 1 to 32",
    "ttc-4-1": "4:1", "ttc-16-2": "16:2", "ttc-16-1": "16:1",
}  # fmt: skip
ANSWERED = {"math": {"gsm8k": "GSM8K", "math500": "MATH-500"}, "countdown": {"countdown": "right"}}
SOLVED = {"math": {"gsm8k": "GSM8K", "math-held-out": "MATH"}, "countdown": {"countdown": "solutions"}}
PAPER = {  # MATH-500
    "base": 25.0, "full": 46.8, "mlp": 40.8, "attention": 47.0, "retnet": 42.6, "mamba": 44.8, "gdn": 47.8,
    "mesanet": 47.4, "ttc": 52.8,
}  # fmt: skip
PAPER_ABLATIONS = {
    "ttc": (52.8, 53.6), "ttc-homogeneous": (48.4, 45.7), "ttc-fixed": (50.6, 31.5), "ttc-uniform": (50.8, 51.0),
    "ttc-4-1": (53.0,), "ttc-16-2": (50.3,), "ttc-16-1": (47.2,),
}  # fmt: skip
FIXED = ("model", "data", "lr", "batch", "steps", "max_length", "warm_up", "weight_decay")
SAME = ("model", "data", "lr", "batch", "epochs", "max_length", "warm_up", "weight_decay")


def math_small_table(name: str, results: Path) -> str:
    """The table of that name, less "math-small-"; a sentence if there are no runs for it yet."""
    task, _, view = name.partition("-")
    if view == "frozen":
        return _frozen(task, _read(results / f"{task}-frozen"))
    runs = _read(results / task)
    rates, gains = (_each(results / f"{task}-{what}") for what in ("rates", "gains"))
    full = _of(runs, "full")
    needed = {"": runs, "rates": full and rates, "gains": full and gains, "plans": gains}
    if not needed.get(view, _of(runs, "ttc")):
        data = " --data data/math" if task == "math" else ""
        where = f"{task}-rates/3e-3 --inserted-lr 3e-3" if view == "rates" else task
        where = f"{task}-gains/4 --action-gain 4" if view in ("gains", "plans") else where
        base = f"python -m experiments.math_small {task} --base SmolLM2-135M-Instruct{data}"
        return f"*Not run yet: `{base} --out experiments/math_small/results/{where}`.*\n"
    if view == "ablations":  # at the learning rate at which they were made
        runs = max([runs, *rates.values()], key=lambda each: sum(bool(_of(each, kind)) for kind in ABLATIONS))
    if view in ("rates", "gains", "plans"):
        faster, larger = ([run for each in of.values() for run in each] for of in (rates, gains))
        first = (faster if view == "rates" else larger)[0]
        make = {"rates": _rates, "gains": _gains, "plans": _plans}[view]
        lines, runs = make(task, [*runs, *faster, *([] if view == "rates" else larger)], full)
    else:
        first = runs[0]
        lines = {"": _models, "horizons": _horizons, "ablations": _ablations}[view](task, runs, full)
    return "\n".join(lines) + "\n\n" + _caption(runs, first, likelihoods_alone=view == "plans") + "\n"


def _frozen(task: str, runs: list[Result]) -> str:
    """One layer of each kind in a frozen base model, and its difference from the MLP."""
    mlp = _of(runs, "mlp")
    if not mlp:
        data = " --data data/math" if task == "math" else ""
        base = f"python -m experiments.math_small {task} --base SmolLM2-135M-Instruct{data} --frozen"
        return f"*Not run yet: `{base} --out experiments/math_small/results/{task}-frozen`.*\n"
    head = [*(f"{title}, %" for title in ANSWERED[task].values())]
    head += [f"log-likelihood, {title}" for title in SOLVED[task].values()]
    head += [f"minus the MLP, {title}, 10⁻³" for title in SOLVED[task].values()]
    lines = [f"| | parameters | seeds | {' | '.join(head)} |", "|---|--:|--:|" + "--:|" * len(head)]
    for kind, title in FROZEN.items():
        if not (found := _of(runs, kind)):
            continue
        _distinct(found)
        own = OWN if kind in PLANS else None
        cells = [_accuracy(found, benchmark, own) for benchmark in ANSWERED[task]]
        cells += [_nats(found, benchmark, own) for benchmark in SOLVED[task]]
        alone = kind in ("base", "mlp")
        cells += ["" if alone else _difference(found, mlp, benchmark) for benchmark in SOLVED[task]]
        trained = kind != "base"
        first = [title, f"{found[0]['inserted']:,}" if trained else "", str(len(found)) if trained else ""]
        lines.append(f"| {' | '.join([*first, *cells])} |")
    config, run = mlp[0]["config"], mlp[0]
    check_alike([run, *(each for each in runs if each["config"]["trained"])], fields=FIXED)
    commits = ", ".join(sorted({each["commit"] for each in runs}))
    lines += [
        "",
        f"{config['model']}, frozen, with one layer trained for {config['steps']:,} steps of {config['batch']} rows, "
        f"learning rate {config['lr']:g}. In brackets the range over seeds, or for one seed the 95 % interval over "
        f"problems; differences with their 95 % interval over problems. {run['machine']['gpu']}; torch "
        f"{run['versions']['torch']}, commit {commits}.",
    ]
    return "\n".join(lines) + "\n"


def _models(task: str, runs: list[Result], full: list[Result]) -> list[str]:
    lines = _head(task, [""], ["MATH-500, paper (8B)"] if task == "math" else [])
    for kind, title in MODELS.items():
        if found := _of(runs, kind):
            paper = [f"{PAPER[kind]:.1f}"] if task == "math" else []
            lines.append(_row(task, [title], paper, found, [] if kind == "base" else full))
    return lines


def _rates(task: str, runs: list[Result], full: list[Result]) -> tuple[list[str], list[Result]]:
    """The table, and the runs in it."""
    lines = _head(task, ["", "learning rate of the inserted layers"], [])
    lines.append(_row(task, [MODELS["full"], ""], [], full, full))
    inserted = [kind for kind in MODELS if kind not in ("base", "full")]
    for kind in inserted:
        of_kind = _of(runs, kind)
        for rate in sorted({_faster(run) for run in of_kind}):
            found = [run for run in of_kind if _faster(run) == rate]
            lines.append(_row(task, [MODELS[kind], f"{rate:g}" if rate else "as the rest"], [], found, full))
    return lines, [*full, *_of(runs, *inserted)]


def _faster(run: Result) -> float:
    """The learning rate of the inserted layers; 0 if it is that of the rest."""
    rate = run["config"].get("inserted_lr")
    return 0.0 if rate in (None, run["config"]["lr"]) else rate


def _gains(task: str, runs: list[Result], full: list[Result]) -> tuple[list[str], list[Result]]:
    found = _by_gain(runs)
    lines = _head(task, ["", "gain"], [])
    lines.append(_row(task, [MODELS["full"], ""], [], full, full))
    lines += [_row(task, [MODELS["ttc"], f"{gain:g}"], [], each, full) for gain, each in found.items()]
    return lines, [*full, *(run for each in found.values() for run in each)]


def _by_gain(runs: list[Result]) -> dict[float, list[Result]]:
    """TTC-Net, at the learning rate of the rest."""
    found: dict[float, list[Result]] = {}
    for run in _of(runs, "ttc"):
        if not _faster(run):
            found.setdefault(run["config"]["adapter"].get("action_gain", 1.0), []).append(run)
    for each in found.values():
        _distinct(each)
    return dict(sorted(found.items()))


def _plans(task: str, runs: list[Result], _: list[Result]) -> tuple[list[str], list[Result]]:
    """The effect of plans on each model, by horizon: how much likelier solutions are than without plans."""
    found = _by_gain(runs)
    titles = [f"{title}, gain {gain:g}" for title in SOLVED[task].values() for gain in found]
    lines = [f"| T | {' | '.join(titles)} |", "|--:|" + "--:|" * len(titles)]
    each = [(benchmark, found[gain]) for benchmark in SOLVED[task] for gain in found]
    shown = [run for of in found.values() for run in of]
    for steps in dict.fromkeys(x["horizon"] for run in shown for x in run["likelihood"] if x["horizon"]):
        cells = [_worth(of, benchmark, steps) for benchmark, of in each]
        lines.append(f"| {steps} | {' | '.join(cells)} |")
    return lines, shown


def _distinct(runs: list[Result]) -> None:
    seeds = [run["config"]["seed"] for run in runs]
    if twice := [seed for seed in set(seeds) if seeds.count(seed) > 1]:
        fail(runs[0]["run"], "must be there once a seed", f"seed {twice[0]} again", "Remove one.", "conflict")


def _worth(runs: list[Result], benchmark: str, steps: int) -> str:
    with_plans, without = (
        [_one(run, "likelihood", benchmark, horizon)["per_token"]["mean"] for run in runs] for horizon in (steps, 0)
    )
    gained = [1000 * (a - b) for a, b in zip(with_plans, without, strict=True)]
    text = f"{mean(gained):+.1f}"
    return text if len(gained) == 1 else f"{text} <br> ({min(gained):+.1f} to {max(gained):+.1f})"


def _head(task: str, first: list[str], paper: list[str]) -> list[str]:
    head = [*(f"{title}, %" for title in ANSWERED[task].values()), *paper]
    head += [f"log-likelihood, {title}" for title in SOLVED[task].values()] + _differences(task)
    return [f"| {' | '.join([*first, 'seeds', *head])} |", "|---" * len(first) + "|--:" * (1 + len(head)) + "|"]


def _row(task: str, first: list[str], paper: list[str], found: list[Result], full: list[Result]) -> str:
    """The row of a model, and how it differs from full fine-tuning."""
    _distinct(found)
    own = OWN if found[0]["run"].startswith("ttc") else None
    cells = [_accuracy(found, benchmark, own) for benchmark in ANSWERED[task]] + paper
    cells += [_nats(found, benchmark, own) for benchmark in SOLVED[task]]
    cells += ["" if found[0]["run"].startswith("full") else _difference(found, full, name) for name in SOLVED[task]]
    return f"| {' | '.join([*first, str(len(found)) if full else '', *cells])} |"


def _differences(task: str) -> list[str]:
    return [f"minus full fine-tuning, {title}, 10⁻³" for title in SOLVED[task].values()]


def _horizons(task: str, runs: list[Result], _: list[Result]) -> list[str]:
    found = _of(runs, "ttc")
    head = [*(f"{title}, %" for title in ANSWERED[task].values())]
    head += [f"log-likelihood, {title}" for title in SOLVED[task].values()]
    lines = [f"| T | {' | '.join(head)} |", "|--:|" + "--:|" * len(head)]
    for steps in dict.fromkeys(each["horizon"] for run in found for each in run["likelihood"]):
        asked = [run for run in found if any(each["horizon"] == steps for each in run["accuracy"])]
        cells = [_accuracy(asked, benchmark, steps) for benchmark in ANSWERED[task]]
        cells += [_likelihood(found, benchmark, steps) for benchmark in SOLVED[task]]
        lines.append(f"| {steps} | {' | '.join(cells)} |")
    return lines


def _ablations(task: str, runs: list[Result], full: list[Result]) -> list[str]:
    paper = ["MATH-500, paper (8B)"] if task == "math" else []
    head = [f"{title}, %, T = {steps}" for title in ANSWERED[task].values() for steps in (8, 16)] + paper
    head += [f"log-likelihood, {title}, T = {steps}" for title in SOLVED[task].values() for steps in (8, 16)]
    head += _differences(task)
    lines = [f"| | seeds | {' | '.join(head)} |", "|---|--:|" + "--:|" * len(head)]
    for kind, title in ABLATIONS.items():
        if found := _of(runs, kind):
            cells = [_accuracy(found, benchmark, steps) for benchmark in ANSWERED[task] for steps in (8, 16)]
            cells += [" / ".join(f"{value:.1f}" for value in PAPER_ABLATIONS[kind])] if paper else []
            cells += [_nats(found, benchmark, steps) for benchmark in SOLVED[task] for steps in (8, 16)]
            cells += [_difference(found, full, benchmark) for benchmark in SOLVED[task]]
            lines.append(f"| {title} | {len(found)} | {' | '.join(cells)} |")
    return lines


def _read(folder: Path) -> list[Result]:
    runs = []
    for path in sorted(folder.glob("*/metrics.json")):
        solutions = json.loads((path.parent / "solutions.json").read_text())
        found = {"config": settings_of(path.parent), "solutions": solutions}
        runs.append(json.loads(path.read_text()) | found)
    return runs


def _each(folder: Path) -> dict[str, list[Result]]:
    """The runs by the value that names their folder."""
    return {path.name: _read(path) for path in sorted(folder.glob("*"), key=lambda path: float(path.name))}


def _of(runs: list[Result], *kinds: str) -> list[Result]:
    """The runs of these kinds, one a seed."""
    names = {name for kind in kinds for name in (kind, *(f"{kind}-{seed}" for seed in range(3)))}
    return [run for run in runs if run["run"] in names]


def _one(run: Result, what: str, benchmark: str, horizon: int | None) -> Result:
    return next(each for each in run[what] if (each["benchmark"], each["horizon"]) == (benchmark, horizon))


def _accuracy(runs: list[Result], benchmark: str, horizon: int | None) -> str:
    found = [_one(run, "accuracy", benchmark, horizon) for run in runs]
    return _cell([100 * each["rate"] for each in found], 100 * found[0]["low"], 100 * found[0]["high"], 1)


def _likelihood(runs: list[Result], benchmark: str, horizon: int | None) -> str:
    found = [_one(run, "likelihood", benchmark, horizon)["per_token"] for run in runs]
    return _cell([each["mean"] for each in found], found[0]["low"], found[0]["high"], 4)


def _nats(runs: list[Result], benchmark: str, horizon: int | None) -> str:
    """The mean log-likelihood per token over `runs`, without an interval."""
    return f"{mean(_one(run, 'likelihood', benchmark, horizon)['per_token']['mean'] for run in runs):.4f}"


def _cell(values: list[float], low: float, high: float, digits: int) -> str:
    """The mean over seeds and their range, or for one seed its 95 % interval over problems."""
    if len(values) > 1:
        low, high = min(values), max(values)
    return f"{mean(values):.{digits}f} <br> ({low:.{digits}f} to {high:.{digits}f})"


def _difference(runs: list[Result], full: list[Result], benchmark: str) -> str:
    """Differences by solution, so that a solution's difficulty for all models does not count, and by seed, so that the
    order of the data does not count; the mean over the seeds of both."""
    seeds = {run["config"]["seed"] for run in runs} & {run["config"]["seed"] for run in full}
    if not seeds:
        return ""
    ours, theirs = (_solutions([x for x in of if x["config"]["seed"] in seeds], benchmark) for of in (runs, full))
    found = ratio([a - b for a, b in zip(ours, theirs, strict=True)], full[0]["solutions"][benchmark]["tokens"])
    return f"{1000 * found.mean:+.1f} <br> ({1000 * found.low:+.1f} to {1000 * found.high:+.1f})"


def _solutions(runs: list[Result], benchmark: str) -> Sequence[float]:
    return [mean(values) for values in zip(*(run["solutions"][benchmark]["sums"] for run in runs), strict=True)]


def _caption(runs: list[Result], first: Result, *, likelihoods_alone: bool) -> str:
    """The caption of the table of `runs`, with the command of the first run that is its subject."""
    trained = [run for run in runs if run["config"]["trained"]]
    config = (trained or runs)[0]["config"]
    check_alike(trained, fields=SAME)
    asked = {each["benchmark"]: each["total"] for each in first["accuracy"]}
    given = {each["benchmark"]: each["solutions"] for each in first["likelihood"]}
    problems = ", ".join(f"{count:,} of {name}" for name, count in asked.items())
    solutions = ", ".join(f"{count:,} of {name}" for name, count in given.items())
    tokens = f"{trained[0]['tokens'] / 1e6:.1f} million tokens in " if trained else ""
    commits = ", ".join(sorted({run["commit"] for run in runs}))
    epochs = "1 epoch" if config["epochs"] == 1 else f"{config['epochs']:g} epochs"
    rate = f"{config['lr']:g}"
    if faster := {lr for run in trained if (lr := _faster(run))}:
        rate += f", of the inserted layers {' or '.join(f'{lr:g}' for lr in sorted(faster))}"
    command = re.sub(r" --(only|minutes) \S+", "", current(first["command"]))  # that of all runs, in one piece
    what = (
        f"Greedy answers to problems: {problems}. Log-likelihood in nats a token of solutions: {solutions}. In "
        f"brackets the range over seeds, or for one seed the 95 % interval over problems; differences are taken "
        f"solution by solution and seed by seed, with their 95 % interval over problems."
    )
    if likelihoods_alone:
        what = f"Log-likelihood a token of solutions: {solutions}; the mean over seeds, and their range."
    return (
        f"{what} {config['model']}, all "
        f"weights trained on {config['data']}: {tokens}{epochs}, {config['batch']} rows a step, "
        f"learning rate {rate}. {first['machine']['gpu']}; torch {first['versions']['torch']}, transformers "
        f"{first['versions']['transformers']}, commit {commits}. Command: `{command}`."
    )
