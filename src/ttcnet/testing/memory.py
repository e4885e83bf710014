"""Make memory visible that a kernel should write and does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def unwritten_is_nan() -> Iterator[None]:
    """Inside the block, torch fills fresh memory with NaN (its setting for deterministic algorithms), so that
    memory that a kernel does not write is NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
