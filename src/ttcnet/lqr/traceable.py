"""plan in elementary operations, for graphs that leave PyTorch: ONNX knows no Cholesky factor.

The actions of a step are absorbed into P one by one, as in kernels/fused_cpu_loops.py, with nothing but products and
one division each. With w = r_inv exp(-2 t decay_B), v = P b and d = 1 + w b'v, the gain of an action is k = v w / d,
and

    P <- (I - k b') P (I - b k') + v v' w / d²

which is P - k v' in a form that keeps its digits if actions are cheap. The actions of the first step are then decided
in reverse order. The horizon is the number of iterations of one loop in the graph, and may be an input of the graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop

from .arithmetic import apply, decayed, outer, symmetrise, with_heads
from .modulated import Family
from .stationary import StationaryLQR


def first_actions(family: Family, horizon: int) -> Tensor:
    """The first actions, as from `plan`, without derivatives. The horizon is at least 1, and may be a symbol of
    torch.export."""
    a, B, Q, P, r_inv, decay_A, decay_B, decay_Q, h0 = (x.detach() for x in family)
    B, Q, P = with_heads(B), symmetrise(with_heads(Q)), symmetrise(P)

    def step_back(t: Tensor, P: Tensor) -> tuple[Tensor, Tensor]:
        P, _, _ = _absorb(P, B, r_inv * decayed(decay_B, t) ** 2)
        A, scale = 1 + decayed(decay_A, t) * a, decayed(decay_Q, t - 1)
        return t - 1, outer(A, A) * P + outer(scale, scale) * Q

    P = _back(step_back, horizon, P)
    one = decayed(decay_B, 1)
    return _decide(P, B * one.unsqueeze(-2), r_inv, (1 + decayed(decay_A, 1) * a) * h0)


def first_actions_of_system(family: StationaryLQR, horizon: int) -> Tensor:
    """The first actions of stationary problems, in float64, as stationary.py computes them."""
    A, B, Q, r_inv, h0 = (x.detach().double() for x in (family.A, family.B, family.Q, family.r_inv, family.h0))
    A, B, Q = with_heads(A), with_heads(B), symmetrise(with_heads(Q))
    P = Q if family.Qf is None else symmetrise(with_heads(family.Qf.detach().double()))

    def step_back(t: Tensor, P: Tensor) -> tuple[Tensor, Tensor]:
        P, _, _ = _absorb(P, B, r_inv)
        return t - 1, symmetrise((P @ A).mT @ A) + Q

    P = _back(step_back, horizon, P.expand(*h0.shape, -1).clone())
    return _decide(P, B, r_inv, apply(A, h0)).to(family.A.dtype)


def _back(step: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], horizon: int, P: Tensor) -> Tensor:
    """P of the first step, from that of the last."""
    # a tensor made of the horizon, not of a constant, so that it may be an input of the graph
    t = torch.full((), horizon, dtype=torch.int64, device=P.device)
    found: Tensor = while_loop(lambda t, P: t > 1, step, (t, P))[1]
    return found


def _decide(P: Tensor, B: Tensor, r_inv: Tensor, x: Tensor) -> Tensor:
    """The actions that follow the state x when they cost r_inv^-1 and P is behind them."""
    _, reached, divisors = _absorb(P, B, r_inv)
    actions = list[Tensor]()
    for j in reversed(range(len(reached))):
        u = -r_inv[..., j] / divisors[j] * (reached[j] * x).sum(-1)
        x = x + B[..., j] * u.unsqueeze(-1)
        actions.append(u)
    return torch.stack(actions[::-1], -1)


def _absorb(P: Tensor, B: Tensor, w: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """P after all actions with the weights w (N, H, m), and of each v and d."""
    reached, divisors = [], []
    for b, weight in zip(B.unbind(-1), w.unbind(-1), strict=True):
        v = apply(P, b)
        d = 1 + weight * (b * v).sum(-1)
        k = (weight / d).unsqueeze(-1) * v
        G = P - outer(k, v)
        P = symmetrise(G - outer(apply(G, b), k) + outer(k, v / d.unsqueeze(-1)))
        reached.append(v)
        divisors.append(d)
    return P, reached, divisors
