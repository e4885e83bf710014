"""Choose one of several samples: by likelihood (best of n) or by vote (self-consistency)."""

from __future__ import annotations

import math
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

from ttcnet.tasks import Task
from ttcnet.tasks.task import asking

from ..engines.base import FAILED, check_likelihood
from ..runs.run import GRADING_THREADS
from ..runs.storage import Line


def by_problem(lines: list[Line]) -> dict[int, list[Line]]:
    """The samples that have an answer, in order, by example."""
    found = defaultdict[int, list[Line]](list)
    for line in sorted(lines, key=lambda line: line["sample"]):
        if line["verdict"] != FAILED:
            found[line["problem"]].append(line)
    return found


def best_of(samples: list[Line]) -> Line:
    """The sample with the highest mean log-likelihood of its tokens under the model that wrote it."""
    for line in samples:
        where = f"problem {line['problem']}, sample {line['sample']}"
        check_likelihood(line["mean_logprob"], line["new_tokens"], where)
    return max(samples, key=lambda line: -math.inf if line["mean_logprob"] is None else line["mean_logprob"])


class Vote:
    """Self-consistency: the answer that most samples give. Answers that mean the same count together."""

    def __init__(self, problems: dict[int, list[Line]], task: Task) -> None:
        pairs = sorted(
            {
                pair
                for samples in problems.values()
                for pair in combinations(dict.fromkeys(line["answer"] for line in samples if line["answer"]), 2)
            }
        )
        with ThreadPoolExecutor(GRADING_THREADS) as threads:
            same = threads.map(lambda pair: task.same(*pair), pairs)
            with asking(task.name, "must compare answers"):
                self._same = {frozenset(pair) for pair, equal in zip(pairs, same, strict=True) if equal}

    def winner(self, samples: list[Line]) -> Line:
        """A sample of the largest camp, the earlier one of two equal camps; the first sample if none could be read."""
        camps: list[list[Line]] = []
        for line in samples:
            if line["answer"] is not None:
                camp = next((camp for camp in camps if self._agree(camp[0]["answer"], line["answer"])), None)
                camps.append([line]) if camp is None else camp.append(line)
        return max(camps, key=len)[0] if camps else samples[0]

    def _agree(self, one: str, other: str) -> bool:
        return one == other or frozenset((one, other)) in self._same
