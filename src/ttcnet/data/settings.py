"""What a run of `ttcnet data` is made of: a configuration that a TOML file fills in."""

from __future__ import annotations

import re
import tomllib
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from ttcnet.errors import fail

Made = TypeVar("Made")
_KINDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "Parts": "the name of a field, or a list of names",
    "dict[str, int]": "a table of whole numbers",
}
_SINGULAR = {"sources": "source", "tests": "test"}  # what is a list here is many tables [[...]] of one name in TOML
Parts = str | list[str]  # a field of a row, as in "messages.0.content", or several, whose texts are joined


@dataclass(frozen=True)
class Source:
    """Rows, and where they hold what. A part that is not named is looked for under its usual names.

    Args:
        data: JSON Lines file, plain or gzip, or owner/name of the Hub.
        name: by which rows, counts and quotas call it; the name of the file or dataset if not given.
        subset: of a dataset of the Hub.
        split: likewise.
        revision: likewise.
        problem: the field that holds it, or several to be joined; "a.0.b" reaches into objects and lists.
        solution: likewise.
        answer: likewise.
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
        object.__setattr__(self, "name", self.name or Path(self.data).name.partition(".")[0])
        if not re.fullmatch(r"[\w.-]+", self.name):
            remedy = "Give the source a name."
            fail("name", "must be made of letters, digits, dots and dashes", repr(self.name), remedy, "format")


@dataclass(frozen=True)
class Exact:
    """Copies that differ in looks alone."""


@dataclass(frozen=True)
class Near:
    """Near copies: problems whose sets of three tokens in a row have this Jaccard similarity."""

    threshold: float = 0.7
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.5 <= self.threshold < 1:
            remedy = "Pass a similarity, such as 0.7."
            fail("near.threshold", "must lie in [0.5, 1)", self.threshold, remedy, "out-of-range")


@dataclass(frozen=True)
class Decontaminate:
    """Rows that share so many words in a row with a test problem are dropped."""

    tests: list[Source]
    words: int = 13

    def __post_init__(self) -> None:
        _whole("decontaminate.words", self.words)
        _distinct("decontaminate.tests", self.tests)


@dataclass(frozen=True)
class Verify:
    """A model solves every problem anew, up to `rounds` times; rows with `agree` answers like theirs are kept. The
    number of rounds is the paper's.

    Args:
        url: of a server that speaks OpenAI's protocol; may change between runs, as may `concurrent`.
        model: its name there.
        concurrent: problems at a time.
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
            rule = "must be above 0 where there are several rounds, or all are the same"
            fail("verify.temperature", rule, self.temperature, "Pass a temperature, such as 1.0.", "conflict")


@dataclass(frozen=True)
class Sample:
    """At most `rows` rows, drawn at random after at most so many of a source as `quotas` says; None: all."""

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
    """A run. A stage that is None is left out.

    Args:
        out: folder of the run.
    """

    out: str
    sources: list[Source]
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
    """The settings of a stage that must not change when a run resumes: all but where a server is."""
    return {name: value for name, value in asdict(stage).items() if name not in ("url", "concurrent")}


def settings(path: Path, out: str | None = None) -> Settings:
    """A run from a TOML file; `out` goes before what the file says."""
    if not path.is_file():
        remedy = "Name a TOML file; the documentation says how to write one."
        fail("settings", "must be a file", f"{str(path)!r}, which is none", remedy, "not-found")
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        fail(str(path), "must be TOML", error, "Correct the file.", "format")
    if out is not None:
        values["out"] = out
    values["source"] = _sources(values.get("source", []), f"{path}: source")
    if "decontaminate" in values:
        inner = _table(values["decontaminate"], f"{path}: decontaminate")
        inner["test"] = _sources(inner.get("test", []), f"{path}: decontaminate.test")
        values["decontaminate"] = _made(Decontaminate, inner, f"{path}: decontaminate")
    for name, kind in (("near", Near), ("verify", Verify), ("sample", Sample)):
        if name in values:
            values[name] = _made(kind, values[name], f"{path}: {name}")
    return _made(Settings, values, str(path))


def _sources(tables: Any, place: str) -> list[Source]:
    if not isinstance(tables, list):
        fail(place, "must be tables, each under [[...]]", repr(tables), "Use two brackets on each side.", "format")
    return [_made(Source, table, place) for table in tables]


def _table(values: Any, place: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        fail(place, "must be a table", repr(values), "Write it as a table of TOML, [...].", "format")
    return dict(values)


def _made(kind: type[Made], values: Any, place: str) -> Made:
    """An object from a table: fields that are unknown, missing or of a wrong type are errors."""
    table = _table(values, place)
    known = {_SINGULAR.get(item.name, item.name): item for item in fields(kind)}  # type: ignore[arg-type]
    if extra := sorted(set(table) - set(known)):
        remedy = "Correct or remove them."
        fail(place, f"must hold fields among {', '.join(known)}", ", ".join(extra), remedy, "unknown-field")
    for name, item in known.items():
        required = item.default is MISSING and item.default_factory is MISSING
        if required and name not in table:
            fail(place, f"must say {name}", f"only {', '.join(table) or 'nothing'}", f"Add {name} = ...", "missing")
        if name in table and not _fits(table[name], _kind(item)):
            fail(f"{place}.{name}", f"must be {_KINDS[_kind(item)]}", repr(table[name]), "Correct it.", "format")
    return kind(**{item.name: table[name] for name, item in known.items() if name in table})


def _kind(item: Any) -> str:
    return str(item.type).removesuffix(" | None")


def _fits(value: Any, kind: str) -> bool:
    if kind == "dict[str, int]":
        return isinstance(value, dict) and all(_fits(each, "int") for each in value.values())
    if kind == "Parts" and isinstance(value, list):
        return bool(value) and all(isinstance(part, str) for part in value)
    if kind not in _KINDS:
        return True  # made by `settings`
    wanted: type | tuple[type, ...] = {"int": (int,), "float": (int, float)}.get(kind, str)
    return isinstance(value, wanted) and not isinstance(value, bool)  # which Python takes for a number


def _whole(name: str, value: int) -> None:
    if value < 1:
        fail(name, "must be a whole number of 1 or more", value, "Pass a larger number.", "too-small")


def _distinct(name: str, sources: list[Source]) -> None:
    names = [source.name for source in sources]
    if not names:
        fail(name, "must be given", "none", f"Add a table [[{name.removesuffix('s')}]] with data = ...", "missing")
    if twice := sorted({each for each in names if names.count(each) > 1}):
        fail(name, "must have names of their own", ", ".join(twice), "Give each a name = ...", "format")
