"""Dense problems on a CUDA device: dense.cu, compiled at run time for the sizes at hand.

A field that problems or steps share is neither expanded nor copied. The gradient of a field that all problems share is
a product of trajectories, summed by a matrix product. `run` starts a kernel: nvrtc.run on a GPU; tests pass one that
emulates a GPU on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..arithmetic import full_precision
from . import nvrtc
from .launch import Argument, Launch, Run

__all__ = ["LARGEST", "Given", "backward", "forward", "obstacle", "read"]

FIELDS = ("A", "B", "Q", "R", "h0", "r", "q", "c", "N", "Qf")
LARGEST = 64  # states or actions
KEPT = 4 << 30  # bytes that a pass may keep; the backward pass recomputes the rest
BLOCK = 48 * 1024  # bytes of shared memory up to which a block has several problems
C_NAMES = {torch.float32: "float", torch.float64: "double"}


class Given(NamedTuple):
    """Fields as tensors, (count, steps, ...), and for every problem the index of its own among the `count`: the same
    for all, its own number, or a row of `rows`, (fields, problems)."""

    tensors: dict[str, Tensor]
    forms: dict[str, tuple[bool, int]]  # whether all problems share a field, and its steps, before it was narrowed
    rows: Tensor | None
    own: int  # bits of FIELDS: which have more than one row, and which more than one step
    timed: int
    problems: int
    horizon: int
    n: int
    m: int

    def of(self, index: Tensor | None) -> Given:
        """The problems `index` alone; None means all."""
        if index is None:
            return self
        rows = index.expand(len(FIELDS), -1) if self.rows is None else self.rows[:, index]
        return self._replace(rows=rows.contiguous(), problems=len(index))

    @property
    def given(self) -> torch.dtype:
        return self.tensors["B"].dtype

    @property
    def arguments(self) -> list[Argument]:
        """The first arguments of both kernels, but for the problems of this launch."""
        return [*(self.tensors.get(name) for name in FIELDS), self.rows, self.own, self.timed, self.problems]


def obstacle(n: int, m: int, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the kernels cannot solve problems of this size here, or None if they can."""
    why = nvrtc.why_not()
    if why is not None:
        return why
    if torch.cuda.is_current_stream_capturing():
        return "they read how many digits were lost, which is impossible while a CUDA graph is captured"
    room = nvrtc.most_shared_bytes(torch.cuda.current_device() if device.index is None else device.index)
    needed = 8 * _shared(n, m)  # float32 may have to be solved again in float64
    if needed > room:
        return f"they need {needed} bytes of shared memory for {n} states and {m} actions, and {device} has {room}"
    return None


def read(fields: dict[str, Tensor], batch: torch.Size, horizon: int) -> Given:
    """A and R are matrices; leading dimensions are as many in every field, and as large as in `batch`, or 1."""
    lead, problems = len(batch), batch.numel()
    n, m = fields["B"].shape[-2:]
    tensors, forms, counts = {}, {}, {}
    own = timed = 0
    for bit, name in enumerate(FIELDS):
        if name not in fields:
            continue
        x = fields[name].detach()
        if name in ("h0", "Qf"):
            x = x.unsqueeze(lead)
        forms[name] = x.shape[:lead].numel() == 1 and problems > 1, x.shape[lead]
        x = x[tuple(slice(0, 1) if x.stride(d) == 0 else slice(None) for d in range(lead + 1))]
        counts[name] = x.shape[:lead]
        own |= (x.shape[:lead].numel() > 1) << bit
        timed |= (x.shape[lead] > 1) << bit
        tensors[name] = x.reshape(-1, *x.shape[lead:]).contiguous()
    rows = None
    if any(count.numel() not in (1, problems) for count in counts.values()):
        rows = torch.zeros(len(FIELDS), problems, dtype=torch.int64, device=fields["B"].device)
        for bit, name in enumerate(FIELDS):
            if name in counts:
                place = torch.arange(counts[name].numel(), device=rows.device).reshape(counts[name])
                rows[bit] = place.expand(batch).flatten()
    return Given(tensors, forms, rows, own, timed, problems, horizon, n, m)


def forward(
    given: Given, work: torch.dtype, keep: bool, gains: bool, run: Run | None = None
) -> tuple[dict[str, Tensor], Tensor | None, Tensor, Tensor]:
    """The solution (u, h, costate, cost, and K, k, P, p if `gains`), the numbers kept for `backward`, and for every
    problem the largest d (or as much for other lost digits) and the violation of its conditions. `work` is the dtype
    to compute in."""
    count, T, n, m = given.problems, given.horizon, given.n, given.m
    like = given.tensors["B"]
    sizes = {"u": (count, T, m), "h": (count, T + 1, n), "costate": (count, T + 1, n), "cost": (count,)}
    if gains:
        sizes |= {"K": (count, T, m, n), "k": (count, T, m), "P": (count, T + 1, n, n), "p": (count, T + 1, n)}
    out = {name: _room(like, work, *size) for name, size in sizes.items()}
    lost, unmet = _room(like, work, count), _room(like, work, count)
    at_once = _at_once(given, work)
    kept = _room(like, work, at_once, T, _entries(n, m))
    affine = gains or any(name in given.tensors for name in ("r", "q", "c"))
    slopes = _room(like, work, at_once, T, n + m) if affine else None
    order = ("u", "h", "costate", "cost", "K", "k", "P", "p")
    _launch_all("dense_forward", given, work, at_once, [kept, slopes, *(out.get(x) for x in order), lost, unmet], run)
    narrow = {name: x.to(given.given) for name, x in out.items()}
    return narrow, kept if keep and at_once == count else None, lost, unmet


def backward(
    given: Given, work: torch.dtype, kept: Tensor | None, solution: Sequence[Tensor], grads: Sequence[Tensor | None],
    wanted: tuple[str, ...], run: Run | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """The gradients of the `wanted` fields: for every problem, or summed if all problems share the field. `grads`
    are those of u, h, costate and cost; None stands for zero."""
    count, T, n, m = given.problems, given.horizon, given.n, given.m
    like = given.tensors["B"]
    stores: dict[str, Tensor] = {}
    steps = 0
    for bit, name in enumerate(FIELDS):
        if name in wanted and (name == "h0" or not given.forms[name][0]):
            length = given.forms[name][1]
            stores[name] = _room(like, work, count, length, *given.tensors[name].shape[2:])
            if T == 1 and name == "Q" and "Qf" in given.tensors:
                stores[name].zero_()  # no step has this cost
            steps |= (length > 1) << bit
    shared = [name for name in wanted if name not in stores]
    at_once = count if kept is not None else _at_once(given, work)
    again = kept is None
    if kept is None:
        kept = _room(like, work, at_once, T, _entries(n, m))
    slopes = _room(like, work, at_once, T, n + m)
    dual: list[Tensor | None] = [None, None, None]
    if shared:
        dual = [_room(like, work, count, *size) for size in ((T, m), (T + 1, n), (T, n))]
    where = [kept, int(again), slopes, *solution, *grads, steps, *(stores.get(name) for name in FIELDS), *dual]
    _launch_all("dense_backward", given, work, at_once, where, run)
    if shared:
        with full_precision(like.device):
            stores |= {name: x for name, x in _summed(given, work, solution, grads[3], dual) if name in shared}
    return stores


def _summed(
    given: Given, work: torch.dtype, solution: Sequence[Tensor], dcost: Tensor | None, dual: Sequence[Tensor | None]
) -> list[tuple[str, Tensor]]:
    """The gradients of every field, summed over the problems; steps that share one are summed as well."""
    u, h, costate = (x.to(work) for x in solution)
    u2, h2, lam2 = dual
    assert u2 is not None
    assert h2 is not None
    assert lam2 is not None
    before, after, lam, before2, after2 = h[:, :-1], h[:, 1:], costate[:, 1:], h2[:, :-1], h2[:, 1:]
    half = torch.zeros_like(lam[:, 0, 0]) if dcost is None else dcost.to(work) / 2

    def total(name: str, *pairs: tuple[Tensor, Tensor]) -> tuple[str, Tensor]:
        if name not in given.forms:
            return name, u2
        form = "pti,ptj->tij" if given.forms[name][1] > 1 else "pti,ptj->ij"
        whole = sum((torch.einsum(form, x, y) for x, y in pairs), torch.zeros((), dtype=work, device=u.device))
        return name, whole if whole.ndim == 3 else whole.unsqueeze(0)

    def even(name: str, x: Tensor, y: Tensor) -> tuple[str, Tensor]:
        whole = total(name, (x, y))[1]
        return name, (whole + whole.mT) / 2

    def linear(name: str, x: Tensor, y: Tensor) -> tuple[str, Tensor]:
        whole = x.sum(0) + torch.einsum("p,pti->ti", half, y)
        return name, whole if name in given.forms and given.forms[name][1] > 1 else whole.sum(0, keepdim=True)

    ends = slice(None, -1) if "Qf" in given.forms else slice(None)
    found = [
        total("A", (lam, before2), (lam2, before)),
        total("B", (lam, u2), (lam2, u)),
        total("N", (before, u2), (before2, u)),
        even("Q", after[:, ends], after2[:, ends]),
        even("R", u, u2),
        ("Qf", ((x := torch.einsum("pi,pj->ij", after[:, -1], after2[:, -1])) + x.mT).unsqueeze(0) / 2),
        linear("r", u2, u),
        linear("q", after2, after),
        linear("c", lam2, lam),
    ]
    return [(name, x.unsqueeze(0)) for name, x in found]


def _room(like: Tensor, dtype: torch.dtype, *size: int) -> Tensor:
    return torch.empty(size, dtype=dtype, device=like.device)


def _entries(n: int, m: int) -> int:
    """Numbers that a step keeps: ENTRIES of dense.cuh."""
    return n * (n + 1) // 2 + m * n + m


def _shared(n: int, m: int) -> int:
    """Entries of shared memory of a problem: SHARED of dense.cuh."""
    return (2 * n + max(n, m) + 2 * m) * (n | 1) + m * (m | 1) + 9 * n + 3 * m


def _at_once(given: Given, work: torch.dtype) -> int:
    """Problems of one launch: as many as may be kept."""
    size = given.horizon * (_entries(given.n, given.m) + given.n + given.m) * work.itemsize
    return max(1, min(given.problems, KEPT // size))


def _launch_all(
    kernel: str, given: Given, work: torch.dtype, at_once: int, rest: Sequence[Argument], run: Run | None
) -> None:
    device = given.tensors["B"].device
    for first in range(0, given.problems, at_once):
        last = min(first + at_once, given.problems)
        about = 1 << (last - first - 1).bit_length()  # few numbers of blocks; those past the end have nothing to do
        chosen = _launch(kernel, given.n, given.m, about, given.given, work)
        (run or nvrtc.run)(chosen, device, [*given.arguments, first, last, given.horizon, *rest])


@cache
def _launch(kernel: str, n: int, m: int, problems: int, given: torch.dtype, work: torch.dtype) -> Launch:
    """A group of lanes for every problem: one lane for each row of a matrix, more if problems are few, and a whole
    block for a large problem. A block has several groups if its shared memory stays small."""
    lanes = 128 if n > 32 else max(4, 1 << (n - 1).bit_length())
    if lanes < 32 and n > 4 and problems < 16384:
        lanes = 32
    size = _shared(n, m) * work.itemsize
    groups = max(32 // min(lanes, 32), min(128 // lanes, BLOCK // size))
    groups = 1 << (groups.bit_length() - 1)
    threads = lanes * groups
    defines = {
        "N": n,
        "M": m,
        "LANES": lanes,
        "THREADS": threads,
        "BLOCKS": min(
            16, (512 if work == torch.float64 else 1024) // threads
        ),  # on a multiprocessor: 64 or 128 registers
        "real": C_NAMES[work],
        "given": C_NAMES[given],
    }
    text = tuple((name, str(value)) for name, value in defines.items())
    return Launch("dense.cu", kernel, text, math.ceil(problems / groups), threads, groups * size)
