"""One answer out of several samples: by the model's own likelihood, or by vote."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import combinations
from typing import Any

from ttcnet.tasks.math import Graders

from ..engines.base import FAILED, check_likelihood

Line = dict[str, Any]


def by_problem(lines: list[Line]) -> dict[int, list[Line]]:
    """Samples that got an answer, in order, by problem."""
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
    """Self-consistency: the answer that most samples give, equal answers in other words counted together."""

    def __init__(self, problems: dict[int, list[Line]], graders: Graders) -> None:
        pairs = sorted(
            {
                pair
                for samples in problems.values()
                for pair in combinations(dict.fromkeys(line["answer"] for line in samples if line["answer"]), 2)
            }
        )
        verdicts = graders.verdicts((one, f"\\boxed{{{other}}}") for one, other in pairs)
        self._same = {frozenset(pair) for pair, verdict in zip(pairs, verdicts, strict=True) if verdict.right}

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
