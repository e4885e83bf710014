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
    """A well-posed LQR with moderately unstable dynamics, with all the terms that an LQR can have if `affine`."""
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
    fields = {"A": A, "B": B, "Q": Q, "R": R, "h0": normal(n)}
    if affine:
        fields |= {"r": normal(T, m), "q": normal(T, n), "c": normal(T, n)}
        fields["N"] = _between(Q, torch.diag_embed(R) if diagonal_R else R, normal(T, n, m))
    return LQR(**{name: ready(x) for name, x in fields.items()})  # type: ignore[arg-type]


def _between(Q: Tensor, R: Tensor, X: Tensor) -> Tensor:
    """N along X, half as large as it may be for the cost of a state and the action that follows to be convex."""
    before = torch.cat([torch.eye(Q.shape[-1], dtype=Q.dtype).expand_as(Q[..., :1, :, :]), Q[..., :-1, :, :]], -3)
    roots = [torch.linalg.cholesky(x + 1e-9 * torch.eye(x.shape[-1])) for x in (before, R)]
    return 0.5 * roots[0] @ (X / torch.linalg.matrix_norm(X, 2, keepdim=True)) @ roots[1].mT
