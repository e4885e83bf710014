"""AMC as a task of lm_eval, which has none: `amc.yaml` beside this file. As in the paper, 8 answers to a problem."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ttcnet.extras import require
from ttcnet.tasks.math import BENCHMARKS, grade


def problems(amc: str = BENCHMARKS["amc"].source, **_: Any) -> dict[str, Any]:
    """Those of a JSON Lines file, with problem and answer, or of the Hub."""
    require("math_verify", "eval", "The task amc")
    datasets = require("datasets", "lm", "The task amc")
    found = replace(BENCHMARKS["amc"], source=amc).examples()
    return {"test": datasets.Dataset.from_list([{"problem": each.text, "answer": each.answer} for each in found])}


def scores(problem: dict[str, Any], results: list[list[str]]) -> dict[str, float]:
    """The share of answers that are right, and whether any is."""
    right = [grade(problem["answer"], text) for text in results[0]]
    return {"acc@8": sum(right) / len(right), "pass@8": float(any(right))}
