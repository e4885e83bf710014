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
    """A well-posed LQR with moderately unstable dynamics, with all the terms that an LQR can have if `affine`."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*batch, *shape, generator=generator, dtype=torch.float64)

    def covariance(size):
        root = normal(T, size, size)
        return root @ root.mT / size**0.5

    def between(Q, R):
        """N, half as large as it may be for the costs of a state and the action that follows to be convex."""
        R = torch.diag_embed(R) if diagonal_R else R
        before = torch.cat([torch.eye(n, dtype=torch.float64).expand_as(Q[..., :1, :, :]), Q[..., :-1, :, :]], -3)
        roots = [torch.linalg.cholesky(x + 1e-9 * torch.eye(x.shape[-1])) for x in (before, R)]
        X = normal(T, n, m)
        return 0.5 * roots[0] @ (X / torch.linalg.matrix_norm(X, 2, keepdim=True)) @ roots[1].mT

    fields = dict(
        A=1 + 0.3 * normal(T, n) if diagonal_A else torch.eye(n) + 0.3 * normal(T, n, n),
        B=normal(T, n, m),
        Q=covariance(n),
        R=0.5 + normal(T, m).abs() if diagonal_R else covariance(m) + 0.5 * torch.eye(m),
        h0=normal(n),
    )
    if affine:
        linear = dict(r=normal(T, m), q=normal(T, n), c=normal(T, n), N=between(fields["Q"], fields["R"]))
        fields |= linear
    ready = {k: v.to(dtype).requires_grad_(requires_grad) for k, v in fields.items()}
    return LQR(**ready)
