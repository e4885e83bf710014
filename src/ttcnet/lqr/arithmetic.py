"""The arithmetic of the solvers. Settings of the caller, such as autocast and TF32, do not change it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")

# Where torch calls MKL for vector mathematics, the first float32 exp of a process may run on several threads before MKL
# is ready, and all but one then answer with four digits instead of seven (seen with torch 2.13 in one process of five).
# One exp on one thread first prevents it.
torch.exp(torch.zeros(1, dtype=torch.float32, device="cpu"))


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float64 for float64, float32 for everything below."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Inside the block, products have the dtype of their factors. The meta device, with shapes alone, needs no care."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Switch off autocast and TF32 inside the block: a solver that multiplies in bf16 or TF32 has no digits left after
    a few steps."""
    with without_autocast(device):
        if device.type != "cuda":
            yield
            return
        matmul = torch.backends.cuda.matmul
        # torch 2.9 renamed the switch, and reading the old name fails once the new one was set
        name, exact = ("fp32_precision", "ieee") if hasattr(matmul, "fp32_precision") else ("allow_tf32", False)
        before = getattr(matmul, name)
        setattr(matmul, name, exact)
        try:
            yield
        finally:
            setattr(matmul, name, before)


def exactly(compute: Callable[P, T]) -> Callable[P, T]:
    """Have `compute` run in full precision, on the device of the first tensor of its first argument."""

    @wraps(compute)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        with full_precision(args[0][0].device):  # type: ignore[index]
            return compute(*args, **kwargs)

    return guarded


def symmetrise(matrix: Tensor) -> Tensor:
    """The symmetric part. Rounds both halves alike, so that the result is symmetric to the bit."""
    return (matrix + matrix.mT) / 2


def apply(matrix: Tensor, vector: Tensor) -> Tensor:
    """The batched matrix-vector product, (..., i, j) and (..., j) to (..., i)."""
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def outer(x: Tensor, y: Tensor) -> Tensor:
    """The batched outer product, (..., i) and (..., j) to (..., i, j)."""
    return x.unsqueeze(-1) * y.unsqueeze(-2)


def with_heads(matrix: Tensor) -> Tensor:
    """A matrix for every head, (N, H, i, j), from one that the heads of a token may share, (N, i, j)."""
    return matrix if matrix.ndim == 4 else matrix.unsqueeze(1)


def per_step(value: Tensor | None, count: int, otherwise: Any) -> Sequence[Any]:
    """(..., count, k) as `count` vectors, or `otherwise` at every step. One unbind, because under autograd slicing in
    a loop makes the backward pass quadratic in the horizon."""
    return (otherwise,) * count if value is None else value.unbind(-2)


def decayed(rate: Tensor, t: int | Tensor) -> Tensor:
    """exp(-t rate), the modulation of a matrix at step t.

    After the first step, values whose products are too small for normal numbers are taken as zero: they would make
    processors crawl. At any rate, each is less than 2e-9 of its value at the first step (exp(-t rate) is at most
    the square root of itself times exp(-rate)).
    """
    value = torch.exp(-t * rate)
    smallest = 16 * torch.finfo(value.dtype).tiny ** 0.5
    later = t > 1
    if isinstance(later, bool):
        return torch.where(value < smallest, 0, value) if later else value
    return torch.where(later & (value < smallest), 0, value)
