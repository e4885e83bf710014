"""Progress bars that are readable in a file too."""

from __future__ import annotations

import time
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from .console import plain

PAUSE = 20.0  # seconds between two lines


class Description(TextColumn):
    """The description of a task. It may hold names from others, so it is shown without markup."""

    def __init__(self) -> None:
        super().__init__("{task.description}", markup=False)


class Bar(Progress):
    """rich's progress bars, with the number of steps and the time left. Without a terminal, where bars would show
    nothing until the end, they print a line now and then."""

    def __init__(self, *columns: Any, **options: Any) -> None:
        super().__init__(*columns, **options)
        self._spoken = time.monotonic()

    @classmethod
    def get_default_columns(cls) -> tuple[ProgressColumn, ...]:
        return Description(), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()

    def add_task(self, description: str, *args: Any, **options: Any) -> TaskID:
        return super().add_task(plain(description), *args, **options)

    def update(self, task_id: TaskID, **changes: Any) -> None:
        if changes.get("description") is not None:
            changes["description"] = plain(changes["description"])
        super().update(task_id, **changes)
        self._speak()

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._speak()

    def _speak(self) -> None:
        if not self.disable and not self.console.is_terminal and time.monotonic() - self._spoken > PAUSE:
            self._spoken = time.monotonic()
            self.console.print(self.make_tasks_table(self.tasks))
