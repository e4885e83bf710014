"""Progress bars that can be followed in a file too."""

from __future__ import annotations

import time
from typing import Any

from rich.progress import Progress, TaskID

PAUSE = 20.0  # seconds between two lines


class Bar(Progress):
    """rich's progress bars. Where there is no terminal, on which those would say nothing until the end, a line now and
    then."""

    def __init__(self, *columns: Any, **options: Any) -> None:
        super().__init__(*columns, **options)
        self._spoken = time.monotonic()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._speak()

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._speak()

    def _speak(self) -> None:
        if not self.disable and not self.console.is_terminal and time.monotonic() - self._spoken > PAUSE:
            self._spoken = time.monotonic()
            self.console.print(self.make_tasks_table(self.tasks))
