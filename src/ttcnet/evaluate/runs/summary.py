"""Figures of an evaluation: accuracies with intervals, what could not be graded, tokens and seconds."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from ttcnet.console import foreign
from ttcnet.environment import circumstances
from ttcnet.tasks.statistics import bootstrap, pass_at_k, wilson
from ttcnet.writing import write_json

from ..engines.base import CUT, FAILED
from .storage import SUMMARY, generations, settings_of

GRADERS = ("math-verify", "antlr4-python3-runtime")


def summarise(folder: Path) -> dict[str, Any]:
    """The figures of every horizon, with what made them; written to summary.json too."""
    settings, by_horizon = settings_of(folder), defaultdict[int | None, list[dict[str, Any]]](list)
    for line in generations(folder):
        by_horizon[line["horizon"]].append(line)
    results = [{"horizon": horizon} | figures(lines, settings) for horizon, lines in by_horizon.items()]
    content = {"settings": settings, "results": results} | circumstances(*GRADERS)
    write_json(folder / SUMMARY, content)
    return content


def figures(lines: list[dict[str, Any]], settings: dict[str, Any]) -> dict[str, Any]:
    """Accuracy is the mean over problems of the share of right answers; what failed is left out of it, and counted. Of
    pass@k take part the problems with at least k answers."""
    kinds, answered = Counter(line["verdict"] for line in lines), defaultdict[int, list[bool]](list)
    for line in lines:
        if line["verdict"] != FAILED:
            answered[line["problem"]].append(line["verdict"] == "right")
    k = settings["samples"]
    found: dict[str, Any] = {"problems": settings["problems"], "samples": len(lines)}
    found |= {"missing": k * settings["problems"] - len(lines)}
    found |= {kind: kinds[kind] for kind in ("right", "wrong", "unparsable", FAILED)}
    found |= {"truncated": sum(line["finish"] == CUT for line in lines)}
    found |= _mean("accuracy", [fmean(verdicts) for verdicts in answered.values()])
    if k > 1:
        whole = [verdicts for verdicts in answered.values() if len(verdicts) >= k]
        found |= _mean(f"pass@{k}", [pass_at_k(len(verdicts), sum(verdicts), k) for verdicts in whole])
    for name in ("prompt_tokens", "new_tokens", "seconds"):
        found[name] = round(sum(line[name] or 0 for line in lines), 3)
    found["unparsable_answers"] = [
        [line["problem"], line["sample"]] for line in lines if line["verdict"] == "unparsable"
    ]
    reasons = Counter(line["note"] for line in lines if line["verdict"] == FAILED)
    found["failures"] = [[reason, count] for reason, count in reasons.most_common(3)]
    return found


def _mean(name: str, values: list[float]) -> dict[str, Any]:
    if not values:
        return {name: None, f"{name}_interval": None}
    return {name: fmean(values), f"{name}_interval": list(interval_of(values))}


def interval_of(values: list[float]) -> tuple[float, float]:
    """The 95 % interval of a mean: Wilson's where every problem is right or wrong, else a bootstrap over problems."""
    binary = all(value in (0.0, 1.0) for value in values)
    return wilson(round(sum(values)), len(values)) if binary else bootstrap(values)


def table(summaries: list[dict[str, Any]]) -> Table:
    made = Table(box=None, padding=(0, 2, 0, 0))
    made.add_column("benchmark", no_wrap=True)
    for name in ("T", "accuracy, %", "pass@k, %", "unpars-\nable", "cut", "failed", "tokens", "seconds"):
        made.add_column(name, justify="right", no_wrap=True)
    for summary in summaries:
        settings = summary["settings"]
        for row in summary["results"]:
            passed = f"pass@{settings['samples']}"
            made.add_row(
                foreign(settings["name"] if row is summary["results"][0] else ""),
                "" if row["horizon"] is None else str(row["horizon"]),
                percent(row, "accuracy"), percent(row, passed) if passed in row else "",
                *(f"{row[name]:,}" for name in ("unparsable", "truncated", FAILED, "new_tokens")),
                f"{row['seconds']:,.0f}",
            )  # fmt: skip
    return made


def percent(row: dict[str, Any], name: str) -> str:
    if row[name] is None:
        return "no answers"
    low, high = row[f"{name}_interval"]
    return f"{100 * row[name]:.1f} ({100 * low:.0f}-{100 * high:.0f})"
