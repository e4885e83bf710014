"""Parameter regimes to test and measure the planner in.

fresh     as a newly initialised layer has them: small B and Q, so that plans hardly act
trained   of order one, as after training: the cost matters and the loop is strongly closed
slow      like trained, with decays near zero, so that the whole horizon counts
constant  like trained, with no decay at all: the problem is the same at every step
singular  like constant, with zeros on the diagonal of A

and ranks of their costs, Q and Qf

full      full rank
low       a Q of rank 1, and a Qf of half the rank
none      no Q at all: only the terminal cost counts
axes      Q on every other axis, Qf on those between
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

from ttcnet.errors import fail
from ttcnet.lqr import ModulatedLQR

REGIMES = ("fresh", "trained", "slow", "constant", "singular")
COSTS = ("full", "low", "none", "axes")


def check_regime(name: str) -> None:
    """Fail if there is no such regime."""
    if name not in REGIMES:
        fail("regime", f"must be one of {', '.join(REGIMES)}", repr(name), "Use one of those.", "unknown-name")


def draw(
    regime: str,
    tokens: int = 4,
    heads: int = 2,
    n: int = 16,
    m: int | None = None,
    *,
    seed: int = 0,
    per_head: bool = False,
) -> ModulatedLQR:
    """A family in the given regime, float64, on the CPU. per_head gives every head its own B and Q."""
    check_regime(regime)
    m = n if m is None else m
    generator = torch.Generator().manual_seed(seed)
    small = regime == "fresh"

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def covariance(*lead: int) -> Tensor:
        root = normal(*lead, n, n) * (0.02 if small else 1.0)
        return root @ root.mT / n**0.5

    def decay(size: int) -> Tensor:
        rate = softplus(normal(tokens, heads, size) - (4.0 if regime == "slow" else 0.0))
        return torch.zeros_like(rate) if regime in ("constant", "singular") else rate

    shared = (tokens, heads) if per_head else (tokens,)
    a = normal(tokens, heads, n)
    a = normalize(a, dim=-1) if small else 0.5 * a
    if regime == "singular":
        a[..., ::3] = -1.0
    r_inv = softplus(normal(tokens, heads, m))
    return ModulatedLQR(
        a=a,
        B=normal(*shared, n, m) * (0.02 if small else 0.3),
        Q=covariance(*shared),
        Qf=covariance(tokens, heads),
        r_inv=normalize(r_inv, dim=-1) if small else r_inv,
        decay_A=decay(1),
        decay_B=decay(m),
        decay_Q=decay(n),
        h0=normal(tokens, heads, n),
    )


def with_costs(family: ModulatedLQR, costs: str, seed: int = 0) -> ModulatedLQR:
    """The family with costs of another rank, one of COSTS."""
    generator, n, Q, Qf = torch.Generator().manual_seed(seed), family.state_size, family.Q, family.Qf

    def of_rank(like: Tensor, rank: int) -> Tensor:
        root = torch.randn(*like.shape[:-1], rank, generator=generator, dtype=torch.float64)
        return root @ root.mT / n**0.5

    if costs == "low":
        Q, Qf = of_rank(Q, 1), of_rank(Qf, max(1, n // 2))
    if costs == "none":
        Q = torch.zeros_like(Q)
    if costs == "axes" and n > 1:
        even = (torch.arange(n) % 2 == 0).double()
        Q, Qf = Q * even * even.unsqueeze(-1), Qf * (1 - even) * (1 - even).unsqueeze(-1)
    return replace(family, Q=Q, Qf=Qf)
