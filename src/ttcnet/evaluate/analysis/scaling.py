"""Compare ways to spend compute at test time: longer horizons, more samples, a tree search; each with chain of thought,
without, or both. `ttcnet eval scaling`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from ttcnet.environment import provenance
from ttcnet.errors import fail
from ttcnet.storage.writing import write_csv, write_json
from ttcnet.tasks import Example, Task

from ..engines.base import Engine
from ..engines.tree import Tree
from ..runs.run import RunConfig, missing
from ..runs.storage import generations
from .scaling_table import METHODS, Row, draw, horizon_rows, sample_rows, tree_rows


@dataclass(frozen=True)
class ScalingConfig:
    """The comparison. The method horizon runs at all `horizons`; the other methods run at `horizon`, or at the task's.
    `system` replaces the task's system prompt with chain of thought."""

    methods: tuple[str, ...]
    horizons: tuple[int, ...]
    horizon: int | None
    n: int
    temperature: float
    breadth: int
    depth: int
    cot: str
    system: str | None
    max_tokens: int | None
    seed: int

    def __post_init__(self) -> None:
        for method in self.methods:
            if method not in METHODS:
                remedy = "Name one of them."
                fail("method", f"must be one of {', '.join(METHODS)}", repr(method), remedy, "unknown-name")
        if self.cot not in ("on", "off", "both"):
            fail("cot", "must be on, off or both", repr(self.cot), "Pass one of them.", "unknown-name")


@dataclass(frozen=True)
class MethodRun:
    """The run of one method, in a folder of its own."""

    kind: str
    cot: bool
    engine: Engine
    config: RunConfig
    folder: Path


def method_runs(
    engine: Engine, task: Task, examples: list[Example], out: Path, settings: ScalingConfig
) -> list[MethodRun]:
    if settings.horizon is not None and not engine.plans:
        remedy = "Leave it out. The horizon of a server is set at its start."
        rule = "must not be given: there are no TTC layers here to set it"
        fail("horizon", rule, settings.horizon, remedy, "no-layers")
    if settings.methods == ("horizon",) and not engine.plans:
        remedy = "Compare other methods, or run `ttcnet eval math` for the accuracy alone."
        rule = "must not be given: there are no TTC layers here to set it"
        fail("method horizon", rule, "no others", remedy, "no-layers")
    own = task.horizon if settings.horizon is None else settings.horizon
    at: tuple[int | None, ...] = (own,) if engine.plans else (None,)
    kinds: list[tuple[str, Engine, tuple[int | None, ...], int, float]] = []
    if "horizon" in settings.methods:
        kinds.append(("horizon", engine, settings.horizons if engine.plans else at, task.samples, task.temperature))
    if {"best-of-n", "self-consistency"} & {*settings.methods}:
        kinds.append(("samples", engine, at, settings.n, settings.temperature))
    if "tree" in settings.methods:
        kinds.append(("tree", Tree(engine, settings.breadth, settings.depth), at, 1, settings.temperature))
    limit, made = settings.max_tokens or task.max_tokens, []
    for cot in (True, False) if settings.cot == "both" else (settings.cot == "on",):
        for kind, how, horizons, samples, temperature in kinds:
            name, given = f"{task.name} {kind}", settings.system if cot else None
            system = (task.system if cot else task.system_no_cot) if given is None else given
            config = RunConfig(name, task, examples, horizons, samples, temperature, limit, system, settings.seed)
            made.append(MethodRun(kind, cot, how, config, out / ("cot" if cot else "no-cot") / kind))
    return made


def compare(found: list[MethodRun], settings: ScalingConfig, out: Path) -> list[Row]:
    """The rows of all runs, also in scaling.json, scaling.csv and scaling.png; none while other processes work."""
    if any(missing(each.config, each.folder) for each in found):
        return []
    rows = [row for each in found for row in _rows(each, settings)]
    if not rows:  # nothing was answered
        return []
    runs = {f"{each.folder.parent.name}/{each.kind}": each.config.settings() for each in found}
    plain = [asdict(row) for row in rows]
    content = {"settings": asdict(settings), "rows": plain, "runs": runs}
    write_json(out / "scaling.json", content | provenance(*found[0].config.task.packages))
    write_csv(out / "scaling.csv", plain)
    draw(rows, found[0].config.name.rpartition(" ")[0], out / "scaling.png")
    return rows


def _rows(each: MethodRun, settings: ScalingConfig) -> list[Row]:
    lines = generations(each.folder)
    if each.kind == "horizon":
        return horizon_rows(lines, each.cot, each.config.samples, each.config.task)
    if each.kind == "samples":
        return sample_rows(lines, each.cot, settings.methods, settings.n, each.config.task)
    return tree_rows(lines, each.cot)
