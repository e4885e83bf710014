"""Forms of the fused CUDA kernels, and which of them plans a family: the one place that chooses form and lanes.

A choice rests on a measurement. `ttcnet bench forms` measures every form on a GPU; edit `CHOSEN` by its output.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Form:
    """A way to run both passes.

    halves: check-points hold the lower half of the symmetric P: less memory, and rows that are put together again.
    whole: P of every step is kept if there is room, so that the backward pass recomputes nothing.
    fours: four actions are absorbed together if a lane has one row of 16 or 32, that is, if problems are few.
    """

    halves: bool = False
    whole: bool = False
    fours: bool = False


FORMS = {
    "plain": Form(),
    "halves": Form(halves=True),
    "whole": Form(whole=True),
    "whole halves": Form(halves=True, whole=True),
    "fours": Form(fours=True),
    "whole fours": Form(whole=True, fours=True),
    "all": Form(halves=True, whole=True, fours=True),
}
CHOSEN = FORMS["whole fours"]
SHARE = 16  # P of every step may take a sixteenth of the GPU's memory
EMULATED = 5 * 2**29  # bytes, on a GPU that is emulated
_forced: Form | None = None


def choose() -> Form:
    return _forced or CHOSEN


def room(device: torch.device) -> int:
    """Bytes that P of every step may take."""
    return torch.cuda.get_device_properties(device).total_memory // SHARE if device.type == "cuda" else EMULATED


@contextmanager
def forced(form: Form) -> Iterator[None]:
    """Every plan inside the block, and its gradients, use this form. Benchmarks and tests need it."""
    global _forced
    before, _forced = _forced, form
    try:
        yield
    finally:
        _forced = before


def kept_size(N: int, halves: bool) -> int:
    """Numbers of a matrix that is kept: KEPT_SIZE of fused.cuh."""
    return 2 * N * (N // 4 + 1) if halves else N * N


def lanes(problems: int, N: int, backward: bool) -> tuple[int, int, int]:
    """Lanes that share a problem, threads in a block, and blocks that a multiprocessor must hold at once. Few lanes
    waste the least; many lanes answer soonest. Measured on an H200 for N = 16."""
    if N == 64:
        return 32, 32, 1
    if backward and N == 16:
        return 16, 128, 4
    if problems < 16384:
        return {4: 4, 8: 8, 16: 16, 32: 32}[N], 32, 1
    if not backward:
        return {4: (1, 128, 1), 8: (2, 128, 1), 16: (4, 128, 3), 32: (16, 128, 1)}[N]
    return {4: (2, 64, 1), 8: (4, 64, 1), 32: (32, 64, 1)}[N]


@dataclass(frozen=True)
class KeptSteps:
    """The steps whose value matrices are stored as check-points.

    The backward pass needs those of `kept` steps at a time, in forward order. If that is the whole horizon, the forward
    pass keeps them all. Otherwise it keeps one in `stride` steps, and the backward pass recomputes the others: a
    stretch of `stride` steps that is longer than `kept` first recomputes one in `kept`.
    """

    horizon: int
    kept: int
    stride: int

    @property
    def at_once(self) -> bool:
        return self.horizon <= self.kept

    @property
    def points(self) -> int:
        """Matrices that the forward pass keeps for each problem, if not all."""
        return -(-self.horizon // self.stride) - 1

    @property
    def inner_points(self) -> int:
        """Matrices that the backward pass keeps for each problem while in a stretch."""
        return self.stride // self.kept - 1


def kept_steps(form: Form, problems: int, N: int, horizon: int, itemsize: int, most: int) -> KeptSteps:
    """If P of all steps takes more than `most` bytes, horizons up to `kept` are recomputed not at all, up to 16 `kept`
    once, and longer ones twice."""
    kept = {64: 4, 32: 8}.get(N, 16)
    if form.whole and horizon * problems * (kept_size(N, form.halves) + 1) * itemsize <= most:
        return KeptSteps(horizon, horizon, horizon)
    if horizon <= 16 * kept:  # written so that torch.compile, for which the horizon is a symbol, learns nothing of it
        return KeptSteps(horizon, kept, kept)
    return KeptSteps(horizon, kept, kept * math.ceil(math.sqrt(horizon / kept)))
