"""The protocol of engines, with their questions, answers and options of sampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ttcnet.errors import fail, not_finite

FAILED = "failed"  # finish of a sample without an answer
CUT = "length"  # finish of an answer that ran out of tokens


@dataclass(frozen=True)
class Ask:
    """A conversation to answer. The answer continues `prefix`. Sampling depends on the seed alone. Error messages use
    the name."""

    messages: list[dict[str, str]]
    seed: int
    prefix: str = ""
    name: str = "a question"


@dataclass(frozen=True)
class Answer:
    """A generated text, without the prefix. `finish` is stop, length or failed. `mean_logprob` is the mean
    log-likelihood of its tokens under the model at temperature 1."""

    text: str
    prompt_tokens: int | None
    new_tokens: int | None
    finish: str
    mean_logprob: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Sampling:
    """How answers are generated.

    Args:
        max_tokens: of an answer.
        temperature: 0 is greedy.
        horizon: of the TTC layers; None leaves it as it is.
        stop: texts that end an answer.
    """

    max_tokens: int
    temperature: float
    horizon: int | None = None
    stop: tuple[str, ...] = ()


Groups = Iterator[list[tuple[int, Answer]]]  # groups of answers, each with the index of its question
Watch = Callable[[float], None]  # is told how many answers the current group amounts to so far


def unwatched(_: float) -> None:
    """The default: nothing is shown."""


class Engine(Protocol):
    """Yields answers in groups."""

    @property
    def plans(self) -> bool:
        """Whether the horizon can be set."""

    def answers(self, asks: Sequence[Ask], how: Sampling, watch: Watch = unwatched) -> Groups: ...

    def check(self, asks: Sequence[Ask], max_tokens: int) -> None:
        """Fail if the questions do not fit."""

    def facts(self) -> dict[str, str]:
        """The identity of the model, for settings.json."""


def check_likelihood(mean: float | None, tokens: int | None, where: str) -> None:
    """Fail if an answer cannot be chosen by its likelihood. An answer of no tokens has none, and is chosen last."""
    if mean is None and tokens != 0:
        remedy = "Choose by vote, or use a server that returns logprobs."
        rule = "must know the likelihood of every answer"
        fail("best-of-n", rule, f"none from the server for {where}", remedy, "conflict")
    if mean is not None and not math.isfinite(mean):
        not_finite(where)
