"""Tables of experiments/in_context_control.

in-context-control-answers       the questions, answered by the rules that the page sets
in-context-control-unexplained   unexplained variance of the answers, by arm and by the length of the prefix
in-context-control-regret        regret of acting, likewise
in-context-control-knob          with another horizon of the layer at the test
in-context-control-learning      regret while new transitions are added to the fit

The second and the third round are in folders of their own: their tables are in-context-control-second-answers, and so
on. A round with fewer demonstrations is in the folder of its name and "-small".
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.commands import current
from experiments.shared.tables import check_alike
from experiments.where_planning_pays.table import verdict, with_error
from ttcnet.run_folder import settings_of

Run = dict[str, Any]
ARMS = {
    "system": "TTC that writes systems", "system-one": "TTC that writes systems and plans one step", "mlp": "MLP",
    "mlp-2.5": "MLP 2.5 times as large", "ttc": "TTC, token context", "linear": "no layer",
}  # fmt: skip
REFERENCES = {
    "ridge": "a planner with least squares", "fit": "a planner with the fit of the tokens",
    "estimate": "a planner with the trunk's prediction",
}  # fmt: skip
TASKS = {"read": "", "told": "given A and B: ", "fitted": "fitted: "}
MLPS = ("mlp", "mlp-2.5")
LENGTHS = (1, 2, 4, 8, 16)
ROUNDS = ("second", "third")
TOLD = "64, told 32"
COMMAND = "python -m experiments.in_context_control --out experiments/in_context_control/results"


def context_table(view: str, results: Path) -> str:
    """The table of that name, less "in-context-control-"; a sentence if there are no runs for it yet."""
    for name in ROUNDS:
        if view.startswith(name + "-"):
            return context_table(view.removeprefix(name + "-"), results / name)
    found = _runs(results)
    if not found:
        return f"*Not run yet: `{COMMAND}`.*\n"
    references = _run(results / "references") or {}
    if view == "answers":
        lines = _answers(found, references, _runs(results.with_name(results.name + "-small")))
    else:
        lines = MADE[view](found, references, _run(results / "trunk") or {})
    return "\n".join(lines) + "\n"


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


def _learning(runs: dict[tuple[str, str], Run], references: Run, trunk: Run) -> list[str]:
    rows = [(title, run) for title, run in _rows(runs, references) if run.get("learning")]
    columns = [(each["systems"], each["length"]) for each in rows[0][1]["learning"]] if rows else []
    titles = [f"{'held out: ' * (kind != 'seen')}from {length}" for kind, length in columns]
    lines = [f"| | {' | '.join(titles)} |", "|---|" + "--:|" * len(titles)]
    for title, run in rows:
        cells = [_cell(run, "learning", kind, None, length) for kind, length in columns]
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


def _answers(runs: dict[tuple[str, str], Run], references: Run, small: dict[tuple[str, str], Run]) -> list[str]:
    lines = ["| question | answer |", "|---|---|"]
    for task, title in TASKS.items():
        here = {arm: run for (each, arm), run in runs.items() if each == task}
        if "system" in here and all(arm in here for arm in MLPS):
            few = {arm: run for (each, arm), run in small.items() if each == task}
            found = _told(here) if task == "told" else _read(here) | _more(here, references, few)
            told = "6. " * (task == "told")
            lines += [f"| {told}{title}{question} | {answer} |" for question, answer in found.items()]
        elif here:
            lines.append(f"| {title}all | not run |")
    return lines


def _against(
    here: dict[str, Run], what: str, kind: str, name: str | None, length: int = 16, then: int = 16, least: bool = False
) -> str:
    rivals = [_values(here[arm], what, kind, name, then) for arm in MLPS]
    return verdict(_values(here["system"], what, kind, name, length), rivals, least)


def _told(here: dict[str, Run]) -> dict[str, str]:
    return {
        "below both MLPs": _against(here, "unexplained", "seen", "trained"),
        "less regret than with both MLPs": _against(here, "acting", "seen", None),
    }


def _read(here: dict[str, Run]) -> dict[str, str]:
    """Questions 1 to 5."""
    own, rivals = here["system"], [here[arm] for arm in MLPS]
    whole = [_all_lengths(run) for run in (own, *rivals)]
    found = {
        "1. below both MLPs": _against(here, "unexplained", "seen", "trained"),
        "1. below both MLPs, prefixes of all lengths": verdict(whole[0], whole[1:]),
        "2. less regret than with both MLPs": _against(here, "acting", "seen", None),
    }
    for kind, words in (("seen", ""), ("held out", ", held out systems")):
        told = [min((_values(run, "unexplained", kind, name, 16) for name in ("64", TOLD)), key=mean) for run in rivals]
        answer = verdict(_values(own, "unexplained", kind, "64", 16), told)
        found[f"3. below both MLPs, T = 64{words}"] = answer
    found |= {
        "3. below both MLPs, held out systems": _against(here, "unexplained", "held out", "trained"),
        "3. less regret than with both MLPs, held out systems": _against(here, "acting", "held out", None),
        "4. with 8 transitions: not above both MLPs with 16": _against(
            here, "unexplained", "seen", "trained", 8, 16, True
        ),
    }
    if "system-one" in here:
        values, one = (_values(run, "unexplained", "seen", "trained", 16) for run in (own, here["system-one"]))
        found["5. below TTC with one step"] = verdict(values, [one])
    return found


def _more(here: dict[str, Run], references: Run, few: dict[str, Run]) -> dict[str, str]:
    """Further questions of some rounds."""
    found = dict[str, str]()
    if "system" in few:
        rivals = [_values(here[arm], "unexplained", "seen", "trained", 16) for arm in MLPS]
        share = f"{few['system']['config']['pool']:,} demonstrations: not above both MLPs with all"
        values = _values(few["system"], "unexplained", "seen", "trained", 16)
        found[f"7. with {share}"] = verdict(values, rivals, True)
    estimate = "fit" if here["system"].get("learning") else "ridge"
    if estimate in references:
        number = "8. " * (estimate == "fit")
        question = f"{number}less regret than {REFERENCES[estimate]}, at which numbers of transitions"
        found[question] = _against_planner(here["system"], references[estimate], "seen")
        if estimate == "fit":
            found[f"{question}; held out systems (not among the questions)"] = _against_planner(
                here["system"], references[estimate], "held out"
            )
    for each in here["system"].get("learning") or ():
        place = each["systems"], None, each["length"]
        words = f"9. while it learns, from {each['length']}" + ", held out systems" * (each["systems"] != "seen")
        rivals = [_values(here[arm], "learning", *place) for arm in MLPS]
        found[f"{words}: less regret than both MLPs"] = verdict(each["values"], rivals)
        if "fit" in references:
            planner = _values(references["fit"], "learning", *place) * len(each["values"])
            found[f"{words}: less than the planner"] = verdict(each["values"], [planner])
    return found


def _against_planner(own: Run, reference: Run, kind: str) -> str:
    """The lengths at which the layer is better, by two standard errors."""
    found = []
    for length in LENGTHS:
        values = _values(own, "acting", kind, None, length)
        rival = _values(reference, "acting", kind, None, length) * len(values)
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
    return TASKS[task] + ARMS[arm]


def _size(run: Run) -> str:
    return f"{run['parameters']:,}" if "parameters" in run else ""


def _values(run: Run, what: str, kind: str, name: str | None, length: int) -> list[float]:
    wanted = (kind, name, length)
    return next((x["values"] for x in run.get(what) or () if (x["systems"], x.get("name"), x["length"]) == wanted), [])


def _cell(run: Run, what: str, kind: str, name: str | None, length: int) -> str:
    values = _values(run, what, kind, name, length)
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return with_error(values) if values else ""


def _caption(runs: dict[tuple[str, str], Run], trunk: Run) -> str:
    first = next(iter(runs.values()))
    config = first["config"]
    check_alike([*runs.values()], but=("arm", "task", "rates"))
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


def _runs(results: Path) -> dict[tuple[str, str], Run]:
    runs = {(task, arm): _run(results / task / arm / "run") for task in TASKS for arm in ARMS}
    return {name: run for name, run in runs.items() if run}


def _run(folder: Path) -> Run | None:
    if not (folder / "metrics.json").exists():
        return None
    return {"config": settings_of(folder)} | json.loads((folder / "metrics.json").read_text())


MADE = {"unexplained": _unexplained, "regret": _regret, "knob": _knob, "learning": _learning}
