"""Settings of a run of `ttcnet data`, from a TOML file."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ttcnet.errors import fail

Parts = str | list[str]  # a field of a row, as in "messages.0.content", or several, whose texts are joined


@dataclass(frozen=True)
class Source:
    """Rows, and the fields that hold their parts. A part without a field is looked for under its usual names.

    Args:
        data: a JSON Lines file, plain or gzip, or owner/name of the Hub.
        name: its name in rows, counts and quotas; by default that of the file or dataset.
        subset: the subset of a dataset of the Hub.
        split: the split of a dataset of the Hub.
        revision: the revision of a dataset of the Hub.
        problem: the field that holds the problem, or several to be joined; "a.0.b" reaches into objects and lists.
        solution: the field of the solution, likewise.
        answer: the field of the answer, likewise.
    """

    data: str
    name: str = ""
    subset: str | None = None
    split: str = "train"
    revision: str | None = None
    problem: Parts | None = None
    solution: Parts | None = None
    answer: Parts | None = None

    def __post_init__(self) -> None:
        for part in ("problem", "solution", "answer"):
            if getattr(self, part) == []:
                fail(part, "must name a field, or several", "[]", "Name one, or leave it out.", "missing")
        object.__setattr__(self, "name", self.name or Path(self.data).name.partition(".")[0])
        if not re.fullmatch(r"[\w.-]+", self.name):
            remedy = "Give the source a name."
            fail("name", "must be made of letters, digits, dots and dashes", repr(self.name), remedy, "format")


@dataclass(frozen=True)
class Exact:
    """Drop copies: problems that differ in notation alone."""


@dataclass(frozen=True)
class Near:
    """Drop near copies: problems whose sets of three tokens in a row have at least this Jaccard similarity."""

    threshold: float = 0.7
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.5 <= self.threshold < 1:
            remedy = "Pass a similarity, such as 0.7."
            fail("near.threshold", "must lie in [0.5, 1)", self.threshold, remedy, "out-of-range")


@dataclass(frozen=True)
class Decontaminate:
    """Drop rows that share this many words in a row with a test problem."""

    tests: list[Source] = field(default_factory=list, metadata={"key": "test"})
    words: int = 13

    def __post_init__(self) -> None:
        _whole("decontaminate.words", self.words)
        _distinct("decontaminate.tests", self.tests)


@dataclass(frozen=True)
class Verify:
    """A model solves every problem up to `rounds` times. Rows that it answers as they do `agree` times are kept. The
    number of rounds is the paper's.

    Args:
        model: the model's name on the server.
        url: the address of a server with OpenAI's protocol. It can change when a run is resumed; so can `concurrent`.
        concurrent: how many problems are asked at a time.
    """

    model: str
    url: str = "http://localhost:8000/v1"
    rounds: int = 32
    agree: int = 32
    temperature: float = 1.0
    max_tokens: int = 8192
    concurrent: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rounds", "agree", "max_tokens", "concurrent"):
            _whole(f"verify.{name}", getattr(self, name))
        if self.agree > self.rounds:
            remedy = "Pass a smaller number."
            fail("verify.agree", f"must be at most verify.rounds, {self.rounds}", self.agree, remedy, "out-of-range")
        if self.rounds > 1 and not self.temperature > 0:
            rule = "must be above 0 with several rounds, or all answers are the same"
            fail("verify.temperature", rule, self.temperature, "Pass a temperature, such as 1.0.", "conflict")


@dataclass(frozen=True)
class Sample:
    """Draw at most `rows` rows at random, and of each source at most its quota; None is all."""

    rows: int | None = None
    seed: int = 0
    quotas: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rows is not None:
            _whole("sample.rows", self.rows)
        for name, quota in self.quotas.items():
            _whole(f"sample.quotas.{name}", quota)


@dataclass(frozen=True)
class Settings:
    """Settings of a run. A stage that is None is left out.

    Args:
        out: the folder of the run.
        sources: of the rows; of several copies, the first is kept.
    """

    out: str
    sources: list[Source] = field(default_factory=list, metadata={"key": "source"})
    near: Near | None = None
    decontaminate: Decontaminate | None = None
    verify: Verify | None = None
    sample: Sample = Sample()

    def __post_init__(self) -> None:
        _distinct("sources", self.sources)
        names = [source.name for source in self.sources]
        for name in self.sample.quotas:
            if name not in names:
                remedy = "Correct the name."
                fail("sample.quotas", f"must name sources among {', '.join(names)}", name, remedy, "unknown-field")


def fixed(stage: Any) -> dict[str, Any]:
    """The settings of a stage that must not change when a run resumes: all but the server's address."""
    return {name: value for name, value in asdict(stage).items() if name not in ("url", "concurrent")}


def _whole(name: str, value: int) -> None:
    if value < 1:
        fail(name, "must be a whole number of 1 or more", value, "Pass a larger number.", "too-small")


def _distinct(name: str, sources: list[Source]) -> None:
    names = [source.name for source in sources]
    if not names:
        fail(name, "must be given", "none", f"Add a table [[{name.removesuffix('s')}]] with data = ...", "missing")
    if twice := sorted({each for each in names if names.count(each) > 1}):
        fail(name, "must have names of their own", ", ".join(twice), "Give each a name = ...", "format")
