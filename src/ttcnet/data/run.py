"""The stages of `ttcnet data`, one after another, each on the rows that the one before it kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ttcnet.environment import provenance
from ttcnet.storage.locking import owned
from ttcnet.terminal.console import foreign
from ttcnet.terminal.progress_bars import Bar, Description

from .contamination import decontaminate
from .duplicates import exact, near
from .sampling import sample
from .settings import Decontaminate, Exact, Settings, Source
from .sources import check, fetch
from .stages import RESULT, Content, StageFolder, StageSpec
from .verification import verify

PACKAGES = ("datasets", "rensa", "math-verify")


def run(settings: Settings) -> Path:
    """Run all stages that are not done yet. The folder gets data.jsonl, counts.json, and the kept and dropped rows
    of every stage."""
    with owned(Path(settings.out)):
        return _run(settings)


def _run(settings: Settings) -> Path:
    facts = {"settings": asdict(settings)} | provenance(*PACKAGES)
    specs = list(stages(settings))
    folder = StageFolder(Path(settings.out), specs, facts)
    left = [spec for spec in specs if not folder.done(spec)]
    for spec in left:  # faults that can be found early are reported before any work
        for source in _sources(spec.settings):
            check(source)
    columns = (Description(), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Bar(*columns, *times, console=Console(stderr=True), transient=True) as progress:
        for spec in left:
            folder.do(spec, progress)
    Console().print(table(folder.counts["stages"]))
    return folder.path / RESULT


def stages(settings: Settings) -> Iterator[StageSpec]:
    """All stages, each on the rows that the one before it kept. Verification comes late, because it is expensive."""
    before = []
    for source in settings.sources:
        before.append(f"fetch-{source.name}")
        yield StageSpec(before[-1], source, [], partial(fetch, source=source), [source.data])
    later: list[tuple[str, Any, Any]] = [
        ("exact", Exact(), exact),
        ("near", settings.near, near),
        ("decontaminate", settings.decontaminate, decontaminate),
        ("verify", settings.verify, verify),
        ("sample", settings.sample, sample),
    ]
    for name, own, work in later:
        if own is not None:
            yield StageSpec(name, own, before, partial(work, settings=own), [each.data for each in _sources(own)])
            before = [name]


def _sources(settings: object) -> list[Source]:
    """The sources that a stage reads."""
    if isinstance(settings, Decontaminate):
        return settings.tests
    return [settings] if isinstance(settings, Source) else []


def table(counted: dict[str, Content]) -> Table:
    """The counts of all stages as a table."""
    shown = Table("stage", box=None)
    for title in ("read", "kept", "dropped", "seconds"):
        shown.add_column(title, justify="right")
    shown.add_column("why")
    for name, counts in counted.items():
        reasons = ", ".join(f"{reason} {number:,}" for reason, number in counts["dropped"].items())
        numbers = (counts["read"], counts["kept"], counts["read"] - counts["kept"])
        figures = (*(f"{number:,}" for number in numbers), f"{counts['seconds']:.1f}")
        shown.add_row(foreign(name), *figures, foreign(reasons))
    return shown
