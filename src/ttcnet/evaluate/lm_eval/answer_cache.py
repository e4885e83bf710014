"""Answers of a model, stored as they come, so that an interrupted evaluation is resumed."""

from __future__ import annotations

import json
import math
from collections import defaultdict, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lm_eval.api.model import hash_args

from ttcnet.storage.reading import read_bytes


def _is_answer(content: Any) -> bool:
    """Whether a line holds a key, and a text, a likelihood, or a likelihood and whether it is the greedy answer."""
    if not isinstance(content, list) or len(content) != 2 or not isinstance(content[0], str):
        return False
    answer = content[1]
    if isinstance(answer, list):
        return len(answer) == 2 and _is_number(answer[0]) and isinstance(answer[1], bool)
    return isinstance(answer, str) or _is_number(answer)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


class AnswerCache:
    """A cache hook of lm_eval, over one JSON Lines file per process.

    A request that is made several times, to sample several answers, has as many answers here, and each is handed out
    once.
    """

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.answers: dict[str, deque[Any]] = defaultdict(deque)
        self.found = 0
        for path in sorted(folder.glob("answers-*.jsonl")):
            for line in read_bytes(path).splitlines():
                try:
                    content = json.loads(line)
                except (ValueError, RecursionError):
                    continue  # the half of a line that a killed process left, or none
                if not _is_answer(content):
                    continue  # it will be made again
                key, answer = content
                self.answers[key].append(tuple(answer) if isinstance(answer, list) else answer)
                self.found += 1
        self.path = folder / f"answers-{rank}.jsonl"

    def take(self, kind: str, request: Iterable[Any]) -> Any:
        """An answer that is known already, or None."""
        known = self.answers.get(hash_args(kind, request))
        return known.popleft() if known else None

    def add_partial(self, kind: str, request: Iterable[Any], answer: Any) -> None:
        with self.path.open("a") as file:
            file.write("\n" + json.dumps([hash_args(kind, request), answer]))  # never behind the half of a line
