"""Decontamination: no training problem shares a run of words with a test problem."""

from __future__ import annotations

from ttcnet.errors import fail

from .settings import Decontaminate, Source
from .sources import opened, parts
from .stages import Stage
from .text import tokens, words

Key = tuple[str, ...]


class Index:
    """Test problems, as runs of words. A test problem of fewer words counts as found if all its tokens, operators
    included, occur in a row: "2 + 3" is not "2 - 3"."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._runs: dict[Key, str] = {}
        self._short: dict[Key, list[tuple[Key, str]]] = {}  # by their first two tokens

    def add(self, problem: str, place: str) -> None:
        parts = tokens(problem)
        run = words(parts)
        if len(run) >= self.length:
            for start in range(len(run) - self.length + 1):
                self._runs.setdefault(tuple(run[start : start + self.length]), place)
        elif len(parts) > 1:
            self._short.setdefault(tuple(parts[:2]), []).append((tuple(parts), place))
        else:
            remedy = "Correct it, or take it out of the test set."
            fail("a test problem", "must have two words at least", f"{problem!r} in {place}", remedy, "bad-data")

    def find(self, problem: str) -> tuple[str, str] | None:
        """The test set in which a problem is found, and the shared words."""
        parts = tokens(problem)
        run = words(parts)
        for start in range(len(run) - self.length + 1):
            shared = tuple(run[start : start + self.length])
            if (place := self._runs.get(shared)) is not None:
                return place, " ".join(shared)
        for start in range(len(parts) - 1) if self._short else ():
            for short, place in self._short.get(tuple(parts[start : start + 2]), ()):
                if tuple(parts[start : start + len(short)]) == short:
                    return place, " ".join(short)
        return None


def decontaminate(stage: Stage, settings: Decontaminate) -> None:
    """Drop rows whose problem shares words with a test problem."""
    tests = Index(settings.words)
    for source in settings.tests:
        stage.notes[f"problems of {source.name}"] = read(tests, source)
    for row in stage.rows():
        found = tests.find(row["problem"])
        if found is None:
            stage.keep(row)
        else:
            stage.drop(row["id"], f"in {found[0].partition('/')[0]}", test=found[0], words=found[1])


def read(tests: Index, source: Source) -> int:
    """Add a test set. Returns its number of problems."""
    number = 0
    for number, row in enumerate(opened(source), 1):
        problem = parts(row.content, source)["problem"]
        if problem is None:
            remedy = "Correct the row."
            fail("a test set", "must have a problem in every row", f"none in {row.place}", remedy, "bad-data")
        tests.add(problem, f"{source.name}/{number}")
    return number
