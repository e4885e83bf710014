"""The launch of a kernel: its source, the sizes that it is compiled for, its blocks and its shared memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..modulated import Family

SIZES = (4, 8, 16, 32, 64)
LARGEST = SIZES[-1]
_PADDED = tuple(next(known for known in SIZES if known >= size) for size in range(LARGEST + 1))


@dataclass(frozen=True, eq=False)  # each is made once and then known by its identity, which is quick to look up
class Launch:
    """A kernel of a file beside this one and how to start it: `defines` go to the compiler, `shared_bytes` is dynamic
    shared memory, `summed` the heads whose gradients it adds up."""

    source: str
    kernel: str
    defines: tuple[tuple[str, str], ...]
    blocks: int
    threads: int
    shared_bytes: int
    summed: int = 1


Argument = int | Tensor | None
Run = Callable[[Launch, torch.device, list[Argument]], None]


class Kind(NamedTuple):
    """The properties of a family that a launch depends on."""

    problems: int
    heads: int
    n: int
    m: int
    shared_B: bool
    shared_Q: bool
    one_decay_A: bool
    dtype: torch.dtype


def kind_of(family: Family) -> Kind:
    tokens, heads, n = family.a.shape
    shared = family.B.ndim == 3, family.Q.ndim == 3
    return Kind(
        tokens * heads, heads, n, family.r_inv.shape[-1], *shared, family.decay_A.shape[-1] == 1, family.a.dtype
    )


def padded(size: int) -> int:
    """The size that the kernels are compiled for."""
    return _PADDED[int(size)]  # int: torch.compile may have a symbol there


def arguments(family: Family, horizon: int) -> list[Argument]:
    """The first arguments of every kernel."""
    tokens, heads, n = family.a.shape
    return [*family, tokens * heads, heads, n, family.r_inv.shape[-1], horizon]


def launch(
    source: str,
    kernel: str,
    kind: Kind,
    lanes: tuple[int, int, int],
    of_group: int,
    of_B: int,
    of_Q: int,
    summed: int = 1,
    more: dict[str, int] | None = None,
) -> Launch:
    """A launch for so many lanes a problem, threads a block and blocks at once. A block's shared memory holds
    `of_group` numbers for each of its problems, and `of_B` and `of_Q` for each B and Q that these have between them.
    `more` is for the compiler."""
    each, threads, resident = lanes
    groups = threads // each
    tokens = min(groups, (groups - 1) // kind.heads + 2)
    numbers = groups * of_group
    numbers += (tokens if kind.shared_B else groups) * of_B + (tokens if kind.shared_Q else groups) * of_Q
    defines = {
        "N": padded(kind.n),
        "M": padded(kind.m),
        "LANES": each,
        "THREADS": threads,
        "BLOCKS": resident,
        "SHARED_B": int(kind.shared_B),
        "SHARED_Q": int(kind.shared_Q),
        "ONE_DECAY_A": int(kind.one_decay_A),
        "real": "double" if kind.dtype == torch.float64 else "float",
    }
    defines |= more or {}
    text = tuple((name, str(value)) for name, value in defines.items())
    blocks = math.ceil(kind.problems / groups)
    return Launch(source, kernel, text, blocks, threads, numbers * kind.dtype.itemsize, summed)
