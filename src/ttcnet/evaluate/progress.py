"""A run that can be watched: how far it is, how much is right, how long it will take."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn

from ttcnet.bars import Bar, Description
from ttcnet.tasks.math import Graders

from .engine import FAILED, Engine
from .run import Plan, run
from .summary import summarise


def run_watched(engine: Engine, plan: Plan, folder: Path, graders: Graders) -> dict[str, Any] | None:
    """This process's share of a run, with a bar by the first one. The summary; None while other processes work."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    columns = (Description(), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), disable=rank > 0) as progress:
        task = progress.add_task(plan.name, total=len(plan.keys()[rank::world]))
        seen = Counter[str]()

        def report(done: float, lines: list[dict[str, Any]]) -> None:
            seen.update(line["verdict"] for line in lines)
            graded, failed = seen.total() - seen[FAILED], f", {seen[FAILED]:,} failed" if seen[FAILED] else ""
            right = f", {100 * seen['right'] / graded:.1f} % right" if graded else ""
            progress.update(task, completed=done, description=plan.name + right + failed)

        missing = run(engine, plan, folder, graders, rank=rank, world=world, report=report)
    return summarise(folder) if missing == 0 else None
