"""A progress bar with the time left, for boards that a model reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from torch import nn

from ttcnet.terminal.progress_bars import Bar


@contextmanager
def watched(model: nn.Module, label: str, boards: int) -> Iterator[None]:
    """A progress bar of the boards that a model reads, as long as it lasts."""
    with Bar(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=boards)
        hook = model.register_forward_hook(lambda _, inputs, __: progress.advance(task, len(inputs[0])))
        try:
            yield
        finally:
            hook.remove()
