"""A progress bar with the time left, for boards that a model reads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from torch import nn

from ttcnet.terminal.progress_bars import Bar

PAUSE = 1.0  # seconds between two signs of life within a pass


@contextmanager
def watched(model: nn.Module, label: str, boards: int) -> Iterator[None]:
    """A progress bar of the boards that a model reads, as long as it lasts."""
    with Bar(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=boards)
        loops, told = 0, time.monotonic()

        def read(_: nn.Module, inputs: tuple[Any, ...], __: object) -> None:
            nonlocal loops
            loops = 0
            progress.advance(task, len(inputs[0]))

        def looped(*_: object) -> None:  # the only sign of life where a pass takes many loops
            nonlocal loops, told
            loops += 1
            if time.monotonic() - told > PAUSE:
                told = time.monotonic()
                progress.update(task, description=f"{label}, {loops} loops of a pass" if loops > 1 else label)

        hooks = [model.register_forward_hook(read)]
        hooks += [block.register_forward_hook(looped) for block in _first_block(model)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _first_block(model: nn.Module) -> list[nn.Module]:
    blocks = getattr(getattr(model, "model", None), "layers", None)
    return [blocks[0]] if isinstance(blocks, nn.ModuleList) else []
