"""Dense problems on the CPU: dense_cpu_loops.py over torch's threads.

A field that problems or steps share is neither expanded nor copied. A pass over the problems is cut into pieces of
whole blocks, so that Ctrl-C is answered between them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .fused_cpu import PIECE, in_pieces, why_not

__all__ = ["LARGEST", "Given", "backward", "forward", "obstacle", "read"]

FIELDS = ("A", "B", "Q", "R", "h0", "r", "q", "c", "N", "Qf")
LARGEST = 64  # states or actions
CACHE = 1 << 18  # bytes that a matrix of all problems of a block may take
NUMPY: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}
KEPT = 1 << 30  # bytes that the forward pass may keep for the backward pass, which recomputes the rest


class Given(NamedTuple):
    """Fields as arrays, (count, steps, ...), and for every problem the index of its own among the `count`. An expanded
    field is read once."""

    arrays: dict[str, Any]
    forms: dict[str, tuple[bool, int]]  # whether all problems share a field, and its steps, before it was narrowed
    which: Any
    problems: int
    horizon: int
    n: int
    m: int

    def of(self, index: Tensor | None) -> Given:
        """The problems `index` alone; None means all."""
        if index is None:
            return self
        return self._replace(which=self.which[:, index.numpy()].copy(), problems=len(index))


def obstacle(n: int, m: int, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the compiled passes cannot run here, or None if they can."""
    return why_not()


def read(fields: dict[str, Tensor], batch: torch.Size, horizon: int) -> Given:
    """A and R are matrices; leading dimensions are as many in every field, and as large as in `batch`, or 1."""
    lead, problems = len(batch), batch.numel()
    n, m = fields["B"].shape[-2:]
    arrays, forms, which = {}, {}, np.zeros((len(FIELDS), problems), np.int64)
    dtype = fields["B"].dtype
    for row, name in enumerate(FIELDS):
        x = fields.get(name)
        if x is None:
            shape = (0, 1, 1, 1) if name in ("N", "Qf") else (0, 1, 1)
            arrays[name] = np.zeros(shape, torch.zeros((), dtype=dtype).numpy().dtype)
            continue
        x = x.detach()
        if name in ("h0", "Qf"):
            x = x.unsqueeze(lead)
        forms[name] = x.shape[:lead].numel() == 1 and problems > 1, x.shape[lead]
        x = x[tuple(slice(0, 1) if x.stride(d) == 0 else slice(None) for d in range(lead + 1))]
        rows = torch.arange(x.shape[:lead].numel()).reshape(x.shape[:lead])
        which[row] = rows.expand(batch).flatten().numpy()
        arrays[name] = x.reshape(-1, *x.shape[lead:]).contiguous().numpy()
    return Given(arrays, forms, which, problems, horizon, n, m)


def _width(given: Given, itemsize: int) -> int:
    """Problems side by side: as many as the cache holds, in powers of two, and no more than there are."""
    room = CACHE // (max(given.n, given.m) * given.n * itemsize)
    width = 128
    while width > 16 and (width > room or width > given.problems):
        width //= 2
    return max(1, min(width, given.problems))


def _work(given: Given, dtype: Any) -> tuple[int, tuple[int, ...]]:
    """The number of problems side by side, and the shape of the kept numbers of all of them."""
    width = _width(given, np.dtype(dtype).itemsize)
    entries = given.n * (given.n + 1) // 2 + given.m * given.n + given.m
    return width, (-(-given.problems // width), given.horizon, entries, width)


def _spread(given: Given, width: int, compute: Callable[[int, int, int], None]) -> None:
    """Call compute(first, last, piece) for all problems, in the pieces of `pieces`."""
    shares = list(pairwise(pieces(given, width)))
    if len(shares) == 1 and _effort(given, width) <= PIECE:
        compute(*shares[0], 0)
        return
    numbers = {share: k for k, share in enumerate(shares)}
    in_pieces(lambda first, last: compute(first, last, numbers[first, last]), shares, torch.get_num_threads())


def pieces(given: Given, width: int) -> list[int]:
    """Begin and end of the pieces of the work: whole blocks, a share for every thread, none too long."""
    blocks, workers = -(-given.problems // width), torch.get_num_threads()
    size = max(1, min(-(-blocks // workers), PIECE // _effort(given, width)))
    return [min(k * size * width, given.problems) for k in range(-(-blocks // size) + 1)]


def _effort(given: Given, width: int) -> int:
    """An estimate of the multiplications that a block of `width` problems takes."""
    return given.horizon * (2 * given.n**3 + 4 * given.n**2 * given.m + 100) * width


def forward(given: Given, work: torch.dtype, keep: bool, gains: bool) -> tuple[dict[str, Tensor], Any, Tensor, Tensor]:
    """The solution (u, h, costate, cost, and K, k, P, p if `gains`), the numbers kept for `backward`, and for every
    problem the largest d (or as much for other lost digits) and the violation of its conditions. `work` is the dtype
    to compute in."""
    N, T, n, m = given.problems, given.horizon, given.n, given.m
    dtype, kind = given.arrays["B"].dtype, NUMPY[work]
    width, shape = _work(given, kind)
    keep = keep and int(np.prod(shape)) * np.dtype(kind).itemsize <= KEPT
    kept = np.empty(shape if keep else (0, 1, 1, width), kind)
    sizes = {"u": (N, T, m), "h": (N, T + 1, n), "costate": (N, T + 1, n), "cost": (N,)}
    more = {"K": (N, T, m, n), "k": (N, T, m), "P": (N, T + 1, n, n), "p": (N, T + 1, n)}
    out = {name: np.empty(size, dtype) for name, size in sizes.items()}
    out |= {name: np.empty(size if gains else (0,) * len(size), dtype) for name, size in more.items()}
    lost, unmet = np.empty(N, kind), np.empty(N, kind)
    run, fields = _compiled("forward", dtype, kind), tuple(given.arrays.values())
    results = tuple(out.values())
    _spread(
        given, width, lambda first, last, piece: run(
            first, last, piece, width, T, gains, given.which, *fields, kept, *results, lost, unmet)
    )  # fmt: skip
    found = {name: torch.from_numpy(x) for name, x in out.items() if gains or name in sizes}
    return found, kept if keep else None, torch.from_numpy(lost), torch.from_numpy(unmet)


def backward(
    given: Given, work: torch.dtype, kept: Any, solution: Sequence[Tensor], grads: Sequence[Tensor | None],
    wanted: tuple[str, ...],
) -> dict[str, Tensor]:  # fmt: skip
    """The gradients of the `wanted` fields: for every problem, or summed if all problems share the field. `grads`
    are those of u, h, costate and cost; None stands for zero."""
    N, T = given.problems, given.horizon
    dtype, kind = given.arrays["B"].dtype, NUMPY[work]
    kept = np.empty((0, 1, 1, 1), kind) if kept is None else kept
    width, _ = _work(given, kind)
    parts = len(pieces(given, width)) - 1
    stores, sums = {}, {}
    for name in FIELDS:
        x = given.arrays[name]
        matrix = x.shape[2:] if x.ndim == 4 else (*x.shape[2:], 1)
        shared, steps = given.forms[name] if name in wanted else (False, 0)
        stores[name] = np.zeros((N, steps, *matrix) if steps and not shared else (0, 1, 1, 1), dtype)
        sums[name] = np.zeros((parts, steps, *matrix) if shared else (0, 1, 1, 1), kind)
    none = (np.zeros((0, 1, 1), dtype), np.zeros((0, 1, 1), dtype), np.zeros((0, 1, 1), dtype), np.zeros(0, dtype))
    given_grads = tuple(other if x is None else x.numpy() for x, other in zip(grads, none, strict=True))
    points = tuple(x.numpy() for x in solution)
    matrices = tuple(given.arrays[name] for name in ("A", "B", "Q", "R", "N", "Qf"))
    run, rows, lost = _compiled("backward", dtype, kind), np.arange(N), np.empty(0, kind)
    outputs = (*stores.values(), *sums.values())
    _spread(
        given, width, lambda first, last, piece: run(
            first, last, piece, width, T, given.which, rows, *matrices, kept, *points, *given_grads, *outputs, lost)
    )  # fmt: skip
    found = {name: sums[name].sum(0, keepdims=True) if sums[name].shape[0] else stores[name] for name in wanted}
    return {name: torch.from_numpy(x) for name, x in found.items()}


@cache
def _compiled(name: str, dtype: Any, work: Any) -> Callable[..., None]:
    """A function of dense_cpu_loops; logs a line if it has to be compiled, which takes long."""
    from . import dense_cpu_loops  # imports numba

    run: Callable[..., None] = getattr(dense_cpu_loops, name)
    notice = "ttcnet: compiling the %s pass of dense problems for the CPU, once on this machine (about 20 s) ..."

    def first_time(*arguments: Any) -> None:
        timer = threading.Timer(2.0, logging.getLogger("ttcnet").warning, (notice, name))
        timer.start()
        try:
            run(0, 0, *arguments[2:])  # over no problem at all
        finally:
            timer.cancel()

    done = threading.Event()
    lock = threading.Lock()

    def called(*arguments: Any) -> None:
        if not done.is_set():
            with lock:
                if not done.is_set():
                    first_time(*arguments)
                    done.set()
        run(*arguments)

    return called
