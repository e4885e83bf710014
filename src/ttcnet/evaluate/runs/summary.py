"""Figures of an evaluation: accuracies with intervals, answers that could not be graded, tokens and seconds."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from rich.table import Table

from ttcnet.environment import provenance
from ttcnet.storage.writing import write_json
from ttcnet.tasks import Task, Verdict
from ttcnet.tasks.statistics import Mean
from ttcnet.tasks.task import asking
from ttcnet.terminal.console import foreign

from ..engines.base import CUT, FAILED
from .storage import SUMMARY, Line, evaluation_settings, generations


def summarise(folder: Path, task: Task) -> dict[str, Any]:
    """The figures of every horizon, with settings and provenance; written to summary.json too."""
    settings, by_horizon = evaluation_settings(folder), defaultdict[int | None, list[Line]](list)
    for line in generations(folder):
        by_horizon[line["horizon"]].append(line)
    results = [{"horizon": horizon} | figures(lines, settings, task) for horizon, lines in by_horizon.items()]
    content = {"settings": settings, "results": results} | provenance(*task.packages)
    write_json(folder / SUMMARY, content)
    return content


def figures(lines: list[Line], settings: dict[str, Any], task: Task) -> dict[str, Any]:
    """Counts, the metrics of the task with their intervals, and costs. Answers that failed are left out of the metrics,
    and counted."""
    kinds = Counter(line["verdict"] for line in lines)
    found: dict[str, Any] = {"problems": settings["problems"], "samples": len(lines)}
    found |= {"missing": settings["samples"] * settings["problems"] - len(lines)}
    found |= {kind: kinds[kind] for kind in ("right", "wrong", "unparsable", FAILED)}
    found |= {"truncated": sum(line["finish"] == CUT for line in lines)}
    for name, mean in metrics(lines, settings["samples"], task).items():
        found |= {name: mean and mean.mean, f"{name}_interval": mean and [mean.low, mean.high]}
    for name in ("prompt_tokens", "new_tokens", "seconds"):
        found[name] = round(sum(line[name] or 0 for line in lines), 3)
    found["unparsable_answers"] = [
        [line["problem"], line["sample"]] for line in lines if line["verdict"] == "unparsable"
    ]
    reasons = Counter(line["note"] for line in lines if line["verdict"] == FAILED)
    found["failures"] = [[reason, count] for reason, count in reasons.most_common(3)]
    return found


def metrics(lines: list[Line], samples: int, task: Task) -> dict[str, Mean | None]:
    """The task's metrics, over all answers that did not fail."""
    answered = defaultdict[int, list[Verdict]](list)
    for line in lines:
        if line["verdict"] != FAILED:
            right = line["verdict"] == "right"
            answered[line["problem"]].append(Verdict(right, line["answer"], line["note"], line.get("scores", {})))
    with asking(task.name, "must give its metrics"):
        found = dict(task.metrics([*answered.values()], samples))
        if odd := [each for each in found.values() if not isinstance(each, Mean | None)]:
            raise TypeError(f"metrics() gave {odd[0]!r:.40}, which is no Mean")
        return found


def table(summaries: list[dict[str, Any]]) -> Table:
    made = Table(box=None, padding=(0, 2, 0, 0))
    made.add_column("benchmark", no_wrap=True)
    own = list(dict.fromkeys(name for summary in summaries for name in _own_metrics(summary)))
    names = ("T", "accuracy, %", "pass@k, %", *(f"{name}, %" for name in own))
    for name in (*names, "unpars-\nable", "cut", "failed", "tokens", "seconds"):
        made.add_column(name, justify="right", no_wrap=True)
    for summary in summaries:
        settings = summary["settings"]
        for row in summary["results"]:
            shown = ("accuracy", f"pass@{settings['samples']}", *own)
            made.add_row(
                foreign(settings["name"] if row is summary["results"][0] else ""),
                "" if row["horizon"] is None else str(row["horizon"]),
                *(percent(row, name) if name in row else "" for name in shown),
                *(f"{row[name]:,}" for name in ("unparsable", "truncated", FAILED, "new_tokens")),
                f"{row['seconds']:,.0f}",
            )  # fmt: skip
    return made


def _own_metrics(summary: dict[str, Any]) -> list[str]:
    """The metrics that not every task has."""
    common = ("accuracy", f"pass@{summary['settings']['samples']}")
    found = (name.removesuffix("_interval") for row in summary["results"] for name in row if name.endswith("_interval"))
    return [name for name in found if name not in common]


def percent(row: dict[str, Any], name: str) -> str:
    if row[name] is None:
        return "no answers"
    low, high = row[f"{name}_interval"]
    return f"{100 * row[name]:.1f} ({100 * low:.0f}-{100 * high:.0f})"
