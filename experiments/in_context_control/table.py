"""Tables of experiments/in_context_control.

in-context-control-answers       the questions, answered by the rules that the page sets
in-context-control-unexplained   unexplained variance of the answers, by arm and by the length of the prefix
in-context-control-regret        regret of acting, likewise
in-context-control-knob          where the layer's own horizon changes at the test

The second round is in a folder of its own: its tables are in-context-control-second-answers, and so on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.commands import current
from experiments.where_planning_pays.table import verdict, with_error
from ttcnet.train.run import settings_of

Run = dict[str, Any]
ARMS = {
    "system": "TTC that writes systems", "system-one": "TTC that writes systems and plans one step", "mlp": "MLP",
    "mlp-2.5": "MLP of 2.5 times", "ttc": "TTC, token context", "linear": "no layer",
}  # fmt: skip
REFERENCES = {"ridge": "least squares, and a planner", "estimate": "what the trunk says, and a planner"}
MLPS = ("mlp", "mlp-2.5")
LENGTHS = (1, 2, 4, 8, 16)
SECOND = "second"
TOLD = "64, told 32"
COMMAND = "python -m experiments.in_context_control --out experiments/in_context_control/results"


def context_table(view: str, results: Path) -> str:
    """The table of that name, less "in-context-control-"; a sentence if there are no runs for it yet."""
    if view.startswith(SECOND + "-"):
        return context_table(view.removeprefix(SECOND + "-"), results / SECOND)
    runs = {(task, arm): _run(results / task / arm / "run") for task in ("read", "told") for arm in ARMS}
    found = {name: run for name, run in runs.items() if run}
    if not found:
        return f"*Not run yet: `{COMMAND}`.*\n"
    references = _run(results / "references") or {}
    return "\n".join(MADE[view](found, references, _run(results / "trunk") or {})) + "\n"


def _unexplained(runs: dict[tuple[str, str], Run], references: Run, trunk: Run) -> list[str]:
    columns = [("seen", "trained", length) for length in LENGTHS]
    columns += [("seen", "64", 16), ("held out", "trained", 8), ("held out", "trained", 16), ("held out", "64", 16)]
    titles = [f"{length} transition{'s' * (length > 1)}" for length in LENGTHS] + [
        "16, T = 64", "held out: 8", "held out: 16", "held out: 16, T = 64",
    ]  # fmt: skip
    lines = [f"| | parameters | {' | '.join(titles)} |", "|---|--:|" + "--:|" * len(titles)]
    for title, run in _rows(runs, references):
        cells = [_cell(run, "unexplained", *column) for column in columns]
        lines.append(f"| {title} | {_size(run)} | {' | '.join(cells)} |")
        if _values(run, "unexplained", "seen", TOLD, 16):
            cells = [_cell(run, "unexplained", kind, TOLD, 16) if name == "64" else "" for kind, name, _ in columns]
            lines.append(f"| {title}, told T = 32 at most | | {' | '.join(cells)} |")
    return [*lines, "", _caption(runs, trunk)]


def _regret(runs: dict[tuple[str, str], Run], references: Run, trunk: Run) -> list[str]:
    columns = [(kind, length) for kind in ("seen", "held out") for length in LENGTHS]
    titles = [f"{'held out: ' * (kind != 'seen')}{length}" for kind, length in columns]
    lines = [f"| | {' | '.join(titles)} |", "|---|" + "--:|" * len(titles)]
    for title, run in _rows(runs, references):
        cells = [_cell(run, "acting", kind, None, length) for kind, length in columns]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def _knob(runs: dict[tuple[str, str], Run], references: Run, trunk: Run) -> list[str]:
    shown = {name: run for name, run in runs.items() if run["knob"]}
    owns = [each["own"] for each in next(iter(shown.values()))["knob"]] if shown else []
    lines = [f"| | {' | '.join(str(own) for own in owns)} |", "|---|" + "--:|" * len(owns)]
    for (task, arm), run in shown.items():
        cells = " | ".join(with_error(each["values"]) for each in run["knob"])
        lines.append(f"| {_title(task, arm)} | {cells} |")
    return lines


def _answers(runs: dict[tuple[str, str], Run], references: Run, trunk: Run) -> list[str]:
    lines = ["| question | answer |", "|---|---|"]
    for task, title in (("read", ""), ("told", "6. Told outright: ")):
        here = {arm: run for (each, arm), run in runs.items() if each == task}
        if "system" not in here or not all(arm in here for arm in MLPS):
            lines.append(f"| {title or 'all'} | not run |")
            continue
        own, rivals = here["system"], [here[arm] for arm in MLPS]

        def against(what: str, kind: str, name: str | None, length: int = 16, then: int = 16, least: bool = False,
                    own: Run = own, rivals: Sequence[Run] = rivals) -> str:  # fmt: skip
            return verdict(
                _values(own, what, kind, name, length), [_values(run, what, kind, name, then) for run in rivals], least
            )

        lines.append(f"| {title or '1. '}less left than both MLPs | {against('unexplained', 'seen', 'trained')} |")
        if task == "told":
            lines.append(f"| {title}less regret | {against('acting', 'seen', None)} |")
            continue
        whole = [_all_lengths(run) for run in (own, *rivals)]
        lines.append(f"| 1. prefixes of all lengths together | {verdict(whole[0], whole[1:])} |")
        lines.append(f"| 2. less regret | {against('acting', 'seen', None)} |")
        for kind, words in (("seen", ""), ("held out", ", held out systems")):
            told = [
                min((_values(run, "unexplained", kind, name, 16) for name in ("64", TOLD)), key=mean) for run in rivals
            ]
            found = verdict(_values(own, "unexplained", kind, "64", 16), told)
            lines.append(f"| 3. T = 64{words}, the better way of telling | {found} |")
        lines.append(f"| 3. less left, held out systems | {against('unexplained', 'held out', 'trained')} |")
        lines.append(f"| 3. less regret, held out systems | {against('acting', 'held out', None)} |")
        saved = against("unexplained", "seen", "trained", 8, 16, True)
        lines.append(f"| 4. with 8 transitions at most what they leave with 16 | {saved} |")
        if "system-one" in here:
            values, one = (_values(run, "unexplained", "seen", "trained", 16) for run in (own, here["system-one"]))
            found = verdict(values, [one])
            lines.append(f"| 5. less left than with one step | {found} |")
        if references:
            lines.append(
                f"| less regret than least squares, after so many transitions | {_against_ridge(own, references)} |"
            )
    return lines


def _against_ridge(own: Run, references: Run) -> str:
    """The lengths at which the layer is better, by two standard errors."""
    found = []
    for length in LENGTHS:
        values = _values(own, "acting", "seen", None, length)
        rival = _values(references["ridge"], "acting", "seen", None, length) * len(values)
        if verdict(values, [rival]).startswith("**"):
            found.append(str(length))
    return ", ".join(found) or "none"


def _all_lengths(run: Run) -> list[float]:
    each = [_values(run, "unexplained", "seen", "trained", length) for length in LENGTHS]
    return [mean(values) for values in zip(*each, strict=True)]


def _rows(runs: dict[tuple[str, str], Run], references: Run) -> list[tuple[str, Run]]:
    rows = [(_title(*name), run) for name, run in runs.items()]
    return rows + [(title, references[name]) for name, title in REFERENCES.items() if name in references]


def _title(task: str, arm: str) -> str:
    return ("told outright: " if task == "told" else "") + ARMS[arm]


def _size(run: Run) -> str:
    return f"{run['parameters']:,}" if "parameters" in run else ""


def _values(run: Run, what: str, kind: str, name: str | None, length: int) -> list[float]:
    wanted = (kind, name, length)
    return next((x["values"] for x in run[what] if (x["systems"], x.get("name"), x["length"]) == wanted), [])


def _cell(run: Run, what: str, kind: str, name: str | None, length: int) -> str:
    values = _values(run, what, kind, name, length)
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return with_error(values) if values else ""


def _caption(runs: dict[tuple[str, str], Run], trunk: Run) -> str:
    first = next(iter(runs.values()))
    config, own = first["config"], ("arm", "task", "rates")
    for run in runs.values():
        if odd := [field for field in config if field not in own and run["config"].get(field) != config[field]]:
            raise ValueError(f"{run['run']} must share {', '.join(odd)} with {first['run']}. Train it again.")
    rates = ", ".join(sorted({f"{run['rate']:g}" for run in runs.values()}))
    commits = ", ".join(sorted({run["commit"] for run in runs.values() if run["commit"]}))
    text = (
        f"Mean over {config['seeds']} seeds and its standard error, on {config['judged']:,} fresh systems for every "
        "horizon. "
        f"{config['pool']:,} demonstrations, {config['steps']:,} steps of {config['batch']}, rate {rates}."
    )
    if trunk:
        left = ", ".join(f"{mean(each[length - 1] for each in trunk['unexplained']):.3f}" for length in LENGTHS)
        text += f" The trunk leaves {left} of the variance of A and B after {', '.join(map(str, LENGTHS))} transitions."
    return (
        f"{text} {first['machine']['cpu']}; torch {first['versions']['torch']}, commit {commits or 'unknown'}. "
        f"Command: `{current(first['command']).partition(' --only ')[0]}`."
    )


def _run(folder: Path) -> Run | None:
    if not (folder / "metrics.json").exists():
        return None
    return {"config": settings_of(folder)} | json.loads((folder / "metrics.json").read_text())


MADE = {"answers": _answers, "unexplained": _unexplained, "regret": _regret, "knob": _knob}
