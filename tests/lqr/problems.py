"""Random general problems for the tests."""

import torch

from ttcnet.lqr import LQR


def random_problem(
    batch,
    T,
    n,
    m,
    diagonal_A=False,
    diagonal_R=False,
    affine=False,
    *,
    seed=0,
    dtype=torch.float64,
    requires_grad=False,
):
    """A well-posed LQR with moderately unstable dynamics."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*batch, *shape, generator=generator, dtype=torch.float64)

    def covariance(size):
        root = normal(T, size, size)
        return root @ root.mT / size**0.5

    fields = dict(
        A=1 + 0.3 * normal(T, n) if diagonal_A else torch.eye(n) + 0.3 * normal(T, n, n),
        B=normal(T, n, m),
        Q=covariance(n),
        R=0.5 + normal(T, m).abs() if diagonal_R else covariance(m) + 0.5 * torch.eye(m),
        h0=normal(n),
        r=normal(T, m) if affine else None,
    )
    ready = {k: None if v is None else v.to(dtype).requires_grad_(requires_grad) for k, v in fields.items()}
    return LQR(**ready)
