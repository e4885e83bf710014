"""Random general problems."""

from __future__ import annotations

import torch
from torch import Tensor

from ttcnet.lqr import LQR


def random_problem(
    batch: tuple[int, ...],
    T: int,
    n: int,
    m: int,
    diagonal_A: bool = False,
    diagonal_R: bool = False,
    affine: bool = False,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    requires_grad: bool = False,
) -> LQR:
    """A well-posed LQR with moderately unstable dynamics."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*batch, *shape, generator=generator, dtype=torch.float64)

    def covariance(size: int) -> Tensor:
        root = normal(T, size, size)
        return root @ root.mT / size**0.5

    def ready(x: Tensor) -> Tensor:
        return x.to(dtype).requires_grad_(requires_grad)

    A = 1 + 0.3 * normal(T, n) if diagonal_A else torch.eye(n) + 0.3 * normal(T, n, n)
    B, Q = normal(T, n, m), covariance(n)
    R = 0.5 + normal(T, m).abs() if diagonal_R else covariance(m) + 0.5 * torch.eye(m)
    h0, r = normal(n), ready(normal(T, m)) if affine else None
    return LQR(A=ready(A), B=ready(B), Q=ready(Q), R=ready(R), h0=ready(h0), r=r)
