"""A task by its name, or by the file that holds it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

from ttcnet.errors import check_integer, fail
from ttcnet.settings import check_type
from ttcnet.storage.special import check_regular

from .countdown.task import Countdown
from .jsonl import JsonLines
from .math.benchmarks import BENCHMARKS
from .task import Task, asking

FIELDS = {"name": str, "temperature": float, "system": str, "system_no_cot": str}  # fields of a task, with their types
LEAST = {"horizon": 0, "samples": 1, "max_tokens": 1}
NAME = re.compile(r"\w[\w.+-]{0,99}")


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
    check_regular("benchmark", path)
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
    with asking(str(path)):
        spec.loader.exec_module(module)
        task = getattr(module, "task", None)
        if not isinstance(task, Task):
            remedy = "Write `task = YourTask()` at its end, of a subclass of ttcnet.tasks.Task."
            fail("benchmark", "must define `task`, a ttcnet.tasks.Task", str(path), remedy, "bad-task")
        for field, hint in FIELDS.items():
            check_type(hint, getattr(task, field), f"{path}: {field}")
        for field, least in LEAST.items():
            check_integer(f"{path}: {field}", getattr(task, field), least, "Correct it, or leave it out.")
        check_type(list[str], [*task.packages], f"{path}: packages")
        if not NAME.fullmatch(task.name):
            remedy = "Name it with letters, digits and dashes: a folder is called so."
            fail("benchmark", "must have a name", f"{task.name!r} in {path}", remedy, "bad-task")
    return task
