"""backend="fused" on the CPU: the stable recursion by numba, problems spread over torch's threads and over SIMD.

Work that takes a core longer than a moment is done in pieces, on separate threads, while the caller waits: so Ctrl-C is
answered at once, and pieces that have not begun are dropped.

As in fused_forward.cu, the actions of a step are absorbed into P one by one. A step keeps its P, and v = P b of each
action before it was absorbed; the closed loop then decides the actions in reverse order, which costs no digits. If
actions are so cheap that P loses digits, float32 is solved again in float64, and float64 by the reference.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib.util import find_spec
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import reference
from ..arithmetic import with_heads
from ..modulated import Family
from ..pairs import selected
from ..reference import limit_of, stretch_length

PIECE = 200_000_000  # multiplications: between a twentieth and half of a second of a core
BLOCK = 128  # problems that fused_cpu_loops has side by side


@cache
def why_not() -> str | None:
    """Why this backend cannot run here, or None if it can."""
    return None if find_spec("numba") else "the package numba is not installed (pip install numba)"


def checkpoints(family: Family, horizon: int) -> tuple[int, ...]:
    """The shape of the array that `forward` keeps: the lower half of P_t at every multiple of about √T below T."""
    tokens, heads, n = family.a.shape
    return -(-horizon // stretch_length(horizon)) - 1, n * (n + 1) // 2, tokens * heads


def forward(family: Family, horizon: int, keep: bool) -> tuple[Tensor, Tensor]:
    """The first actions, and the check-points for `backward` (none if not `keep`)."""
    return _forward(family, horizon, keep, limit_of(family))


def _forward(family: Family, horizon: int, keep: bool, limit: float) -> tuple[Tensor, Tensor]:
    u = torch.empty_like(family.r_inv)
    points = u.new_empty(checkpoints(family, horizon) if keep else (0, 0, 0))
    lost = _nothing_lost(family)
    arguments = (horizon, stretch_length(horizon), keep, _flat(u), points.numpy(), lost.numpy())
    _spread(_compiled("forward", u.dtype), family, arguments)
    hard = _hard(family, lost, limit)
    if hard.any():
        some = _some(family, hard)
        way = reference.forward if u.dtype == torch.float64 else partial(_forward, limit=limit)
        u.flatten(0, 1)[hard] = way(some, horizon, False)[0].flatten(0, 1).to(u.dtype)
    return u, points


def backward(family: Family, horizon: int, checkpoints: Tensor, g: Tensor) -> list[Tensor]:
    """The gradients of all fields, those of B and Q for every head, given the gradient g of the first actions."""
    return _backward(family, horizon, checkpoints, g, limit_of(family))


def _backward(family: Family, horizon: int, checkpoints: Tensor, g: Tensor, limit: float) -> list[Tensor]:
    heads = family.a.shape[1]
    grads = [torch.zeros_like(x) for x in family]
    for k, x in ((1, family.B), (2, family.Q)):
        if x.ndim == 3:
            grads[k] = x.new_zeros(x.shape[0], heads, *x.shape[1:])
    grads[5] = torch.zeros_like(family.a)  # the gradient of decay_A, for every state
    lost = _nothing_lost(family)
    arguments = (horizon, stretch_length(horizon), checkpoints.numpy(), _flat(g), *(_flat(x) for x in grads))
    _spread(_compiled("backward", g.dtype), family, (*arguments, lost.numpy()))
    if family.r_inv.shape[-1] == 1:  # without cancellation: see fused_backward.cu
        total = (with_heads(family.Q) * grads[2] + family.Qf * grads[3]).sum((-2, -1))
        grads[4] = total.unsqueeze(-1) / family.r_inv
    hard = _hard(family, lost, limit) | ~grads[0].isfinite().all(-1).flatten()  # states beyond float32
    if hard.any():
        some, pull = _some(family, hard), g.flatten(0, 1)[hard].unsqueeze(1).double()
        if g.dtype == torch.float64:
            found = reference.backward(some, horizon, reference.forward(some, horizon, True)[1], pull)
        else:
            found = _backward(some, horizon, _forward(some, horizon, True, limit)[1], pull, limit)
        for grad, x in zip(grads, found, strict=True):
            grad.flatten(0, 1)[hard] = x.flatten(0, 1).to(grad.dtype)
    if family.decay_A.shape[-1] == 1:
        grads[5] = grads[5].sum(-1, keepdim=True)
    return grads


def _nothing_lost(family: Family) -> Tensor:
    """A buffer of zeros in which loops note the largest 1 + w b' P b of every problem."""
    return torch.zeros(family.a.shape[0] * family.a.shape[1], dtype=torch.float64)


def _hard(family: Family, lost: Tensor, limit: float) -> Tensor:
    """The problems that have lost more digits than they can spare. Those in float32 are solved again in float64, those
    in float64 by the reference, which has a careful way.

    P - v v' w / (1 + w b' v) loses as many digits as 1 + w b' v has. Many small steps lose digits too, and make P
    smaller along b than elsewhere: so w |b|^2 max(P) / 32 at the first step counts as well (careful.cuh says when it
    counts more).
    """
    return ~(lost <= (max(64, 4 * family.a.shape[-1]) if family.a.dtype == torch.float32 else limit))  # NaN, too


def _some(family: Family, which: Tensor) -> Family:
    """These problems alone, in float64, each as a token with one head."""
    return Family(*(x.unsqueeze(1) for x in selected(family, which)))


def _flat(x: Tensor) -> Any:
    """An array without copy, tokens and heads as one dimension of problems."""
    return x.detach().flatten(0, 1).numpy()


def _spread(compute: Callable[..., None], family: Family, arguments: tuple[Any, ...]) -> None:
    """Run compute(first, last, ...) over all problems, a share of them on every thread."""
    tokens, heads, n = family.a.shape
    problems = tokens * heads
    if problems == 0:
        return
    B, Q = with_heads(family.B), with_heads(family.Q)
    per_matrix = heads // B.shape[1], heads // Q.shape[1]  # problems that share one
    fields = family._replace(B=B, Q=Q, decay_A=family.decay_A.expand(tokens, heads, n).contiguous())
    arrays = tuple(_flat(x) for x in fields)
    workers = max(1, min(torch.get_num_threads(), problems // 8))  # fewer than eight on a thread leave SIMD idle
    effort = arguments[0] * (n * n * family.r_inv.shape[-1] + 100)  # multiplications of a problem
    if problems * effort > PIECE:
        size = min(max(1, PIECE // effort // BLOCK) * BLOCK, -(-problems // workers))
        pieces = [(first, min(first + size, problems)) for first in range(0, problems, size)]
        in_pieces(lambda first, last: compute(first, last, *per_matrix, *arrays, *arguments), pieces, workers)
        return
    if workers == 1:
        compute(0, problems, *per_matrix, *arrays, *arguments)
        return
    edges = [problems * k // workers for k in range(workers + 1)]
    pool = _pool(workers)
    for done in [pool.submit(compute, *share, *per_matrix, *arrays, *arguments) for share in pairwise(edges)]:
        done.result()


def in_pieces(compute: Callable[[int, int], None], pieces: list[tuple[int, int]], workers: int) -> None:
    """Call compute(first, last) for all pieces. An interrupt does not wait for pieces that have begun; their threads
    are daemons, which do not keep a process alive, and nobody else uses the memory that they write to."""
    done: SimpleQueue[BaseException | None] = SimpleQueue()
    stopped = threading.Event()

    def work(piece: tuple[int, int]) -> None:
        try:
            if not stopped.is_set():
                compute(*piece)
            done.put(None)
        except BaseException as error:
            done.put(error)

    try:
        for piece in pieces:
            _daemons(workers).put(partial(work, piece))
        for _ in pieces:
            error = done.get()
            if error is not None:
                raise error
    finally:
        stopped.set()


@cache
def _daemons(workers: int) -> SimpleQueue[Callable[[], None]]:
    """A queue of work for `workers` threads that stay alive: new threads for every call would leak memory."""
    todo: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def work() -> None:
        while True:
            todo.get()()

    for _ in range(workers):
        threading.Thread(target=work, name="ttcnet", daemon=True).start()
    return todo


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="ttcnet")


if hasattr(os, "register_at_fork"):
    for of_threads in (_pool, _daemons):  # a forked process has no threads of its parent
        os.register_at_fork(after_in_child=of_threads.cache_clear)


@cache
def _compiled(name: str, dtype: torch.dtype) -> Callable[..., None]:
    """A function of fused_cpu_loops, compiled for `dtype` or found on disk; logs a line if compiling takes long."""
    from . import fused_cpu_loops  # imports numba

    notice = "ttcnet: compiling the %s pass for the CPU in %s, once on this machine (about 10 s) ..."
    timer = threading.Timer(2.0, logging.getLogger("ttcnet").warning, (notice, name, dtype))
    timer.start()
    try:
        run: Callable[..., None] = getattr(fused_cpu_loops, name)
        vector, matrix = torch.zeros(1, 1, 1, dtype=dtype), torch.zeros(1, 1, 1, 1, dtype=dtype)
        family = [_flat(x) for x in (vector, matrix, matrix, matrix, *[vector] * 5)]
        if name == "forward":  # over no problem at all
            run(0, 0, 1, 1, *family, 1, 1, False, _flat(vector), vector.numpy(), np.zeros(1))
        else:
            run(0, 0, 1, 1, *family, 1, 1, vector.numpy(), _flat(vector), *family, np.zeros(1))
    finally:
        timer.cancel()
    return run
