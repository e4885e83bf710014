"""AMC as a task of lm_eval, which has none: `lm_tasks/amc.yaml`. As in the paper, 8 answers to a problem."""

from __future__ import annotations

from typing import Any

from ttcnet.errors import fail
from ttcnet.records import rows

HUB = "AI-MO/aimo-validation-amc"  # 83 problems of AMC 12, 2022 and 2023


def problems(amc: str = HUB, **_: Any) -> dict[str, Any]:
    """The problems of a JSON Lines file, with problem and answer, or of the Hub."""
    from datasets import Dataset

    found = []
    for place, content in rows(amc):
        for field in ("problem", "answer"):
            if str(content.get(field) or "").strip() == "":
                rule = "must have a problem and an answer in every row"
                fail("amc", rule, f"{place}: no {field}", "Correct the row.")
        answer = content["answer"]
        whole = isinstance(answer, float) and answer.is_integer()
        found.append({"problem": content["problem"], "answer": str(int(answer) if whole else answer)})
    return {"test": Dataset.from_list(found)}


def scores(problem: dict[str, Any], results: list[list[str]]) -> dict[str, float]:
    """The share of answers that are right, and whether any is."""
    from ttcnet.tasks.math import grade

    right = [grade(problem["answer"], text) for text in results[0]]
    return {"acc@8": sum(right) / len(right), "pass@8": float(any(right))}
