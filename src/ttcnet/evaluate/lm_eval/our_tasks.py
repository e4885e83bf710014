"""Tasks of ttcnet as tasks of lm_eval, for those that lm_eval has not by its own name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ttcnet.extras import require
from ttcnet.tasks import NAMES, Task, Verdict, find
from ttcnet.tasks.task import asking, graded, read_examples

FILES = (".py", ".jsonl", ".jsonl.gz", ".csv", ".csv.gz")


def is_ours(name: str) -> bool:
    """Whether `ttcnet.tasks` has a task of that name, or in that file."""
    return name in NAMES or (name.endswith(FILES) and Path(name).is_file())


def config(name: str, data: str | None = None) -> dict[str, Any]:
    """The configuration of a task for lm_eval, which asks every example `task.samples` times, grades by the task, and
    sums up by its metrics.

    Args:
        name: of a task, or a file that holds one.
        data: a folder with the files of benchmarks. Without it they come from the Hub.
    """
    task = find(name, None if data is None else Path(data))
    examples, samples = read_examples(task), task.samples

    def dataset(**_: Any) -> dict[str, Any]:
        rows = [{"number": each.number, "prompt": task.prompt(each), "answer": each.answer} for each in examples]
        return {"test": require("datasets", "lm", "ttcnet eval lm").Dataset.from_list(rows)}

    def verdicts(row: dict[str, Any], results: list[list[str]]) -> dict[str, list[dict[str, Any]]]:
        found = [asdict(graded(task, examples[row["number"] - 1], text)) for text in results[0]]
        return dict.fromkeys(names, found)

    with asking(task.name, "must give its metrics"):
        names = [*task.metrics([], samples)]
    sampling = {"do_sample": True, "temperature": task.temperature, "top_k": 0, "top_p": 1.0}
    return {
        "task": task.name,
        "custom_dataset": dataset,
        "test_split": "test",
        "output_type": "generate_until",
        "description": task.system and f"{task.system}\n",
        "doc_to_text": "{{prompt}}\n",
        "doc_to_target": "{{answer}}",
        "process_results": verdicts,
        "repeats": samples,
        "generation_kwargs": {"max_gen_toks": task.max_tokens, "until": []} | (sampling if task.temperature else {}),
        "filter_list": [{"name": "samples", "filter": [{"function": "take_first_k", "k": samples}]}],
        "metric_list": [{"metric": each, "aggregation": _mean(task, each), "higher_is_better": True} for each in names],
        "num_fewshot": 0,
        "metadata": {"version": 2.0},
    }


def _mean(task: Task, name: str) -> Callable[[list[list[dict[str, Any]]]], float]:
    def mean(found: list[list[dict[str, Any]]]) -> float:
        figure = task.metrics([[Verdict(**each) for each in answers] for answers in found], task.samples)[name]
        return float("nan") if figure is None else figure.mean

    return mean
