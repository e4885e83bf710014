"""A task by its name, or by the file that holds it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from ttcnet.errors import fail

from .countdown.task import Countdown
from .jsonl import JsonLines
from .math.benchmarks import BENCHMARKS
from .task import Task


def _sudoku(path: Path | None = None) -> Task:
    from .sudoku.task import Sudoku  # late: it imports numpy

    return Sudoku(path)


MADE: dict[str, Callable[[], Task]] = {"countdown": Countdown, "sudoku": _sudoku}  # need no data
NAMES = (*BENCHMARKS, *MADE)


def find(name: str, data: Path | None = None) -> Task:
    """The task of that name, or in that file.

    Args:
        name: one of NAMES; a JSON Lines file; a CSV file of Sudoku boards; or a Python file that defines `task`.
        data: a folder with the files of benchmarks. Without it they come from the Hub.
    """
    if name in BENCHMARKS:
        return BENCHMARKS[name].located(data)
    if name in MADE:
        return MADE[name]()
    path = Path(name)
    if not path.is_file():
        remedy = f"Pass a file with problem and answer in every line, or a name: {', '.join(NAMES)}."
        fail("benchmark", "must be a known name or a file", repr(name), remedy, "not-found")
    if path.suffix == ".py":
        return _own(path)
    return _sudoku(path) if path.name.endswith((".csv", ".csv.gz")) else JsonLines(path)


def _own(path: Path) -> Task:
    """The task that a Python file defines."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    task = getattr(module, "task", None)
    if not isinstance(task, Task):
        remedy = "Write `task = YourTask()` at its end, of a subclass of ttcnet.tasks.Task."
        fail("benchmark", "must define `task`, a ttcnet.tasks.Task", str(path), remedy, "bad-task")
    return task
