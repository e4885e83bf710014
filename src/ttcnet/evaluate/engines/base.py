"""What answers questions: a model here, or a server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ttcnet.errors import fail, not_finite

FAILED = "failed"  # the finish of what got no answer
CUT = "length"  # of what ran out of tokens


@dataclass(frozen=True)
class Ask:
    """A conversation to go on with, from `prefix` on if the answer has begun. Sampling depends on the seed alone.
    Messages call it by its name."""

    messages: list[dict[str, str]]
    seed: int
    prefix: str = ""
    name: str = "a question"


@dataclass(frozen=True)
class Answer:
    """What was generated, prefix not included. `finish` is stop, length or failed; `mean_logprob` the mean
    log-likelihood of its tokens under the model, at temperature 1."""

    text: str
    prompt_tokens: int | None
    new_tokens: int | None
    finish: str
    mean_logprob: float | None = None
    note: str = ""


class Engine(Protocol):
    """Answers in groups as they are made, each with the number of its question. `watch` hears how many answers the
    group in the making amounts to."""

    @property
    def plans(self) -> bool:
        """Whether the horizon can be set."""

    def answers(
        self,
        asks: Sequence[Ask],
        *,
        max_tokens: int,
        temperature: float,
        horizon: int | None = None,
        stop: tuple[str, ...] = (),
        watch: Callable[[float], None] = lambda _: None,
    ) -> Iterator[list[tuple[int, Answer]]]: ...

    def check(self, asks: Sequence[Ask], max_tokens: int) -> None:
        """An error if the questions do not fit."""

    def facts(self) -> dict[str, str]:
        """What answers, for the record."""


def check_likelihood(mean: float | None, tokens: int | None, where: str) -> None:
    """Of an answer that is to be chosen by it. An answer of no tokens has none, and is never chosen before another."""
    if mean is None and tokens != 0:
        remedy = "Choose by vote, or use a server that returns logprobs."
        rule = "must know the likelihood of every answer"
        fail("best-of-n", rule, f"none from the server for {where}", remedy, "conflict")
    if mean is not None and not math.isfinite(mean):
        not_finite(where)
