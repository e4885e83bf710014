"""The arms of `lqr_in_a_token`: layers that read a token, and a TTC layer with one switch each.

The changes of a switch are here and not in the layer; switches that help move there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ttcnet.lqr import ModulatedLQR, plan
from ttcnet.nn import TTCLayer
from ttcnet.nn.context import GROWTH, Context, TokenContext
from ttcnet.nn.inserted import Inserted
from ttcnet.nn.ttc import Problem

SWITCHES: dict[str, dict[str, int]] = {  # numbers that a head draws more: so many less than it has states
    "terminal-shared": {}, "terminal-none": {}, "fixed-scale": {}, "decay-per-state": {"decay_A": 0},
    "homogeneous-pure": {}, "homogeneous-bounded": {}, "target": {"target": 1}, "rank-one": {"p": 0, "q": 0},
}  # fmt: skip
SYSTEM: dict[str, Any] = {"heads": 2, "state_size": 8, "rank": 64, "context": "system"}  # a layer that writes systems
HORIZONS = {"fixed": "fixed:8", "one": "fixed:1", "system-one": "fixed:1"}  # in training; other arms draw theirs
UNDECAYED = {"undecayed-bases": ("bases_B", "bases_C")}  # weights that an arm spares from weight decay
ARMS = ("ttc", "head", "system", "mlp", "mlp-2.5", *HORIZONS, *SWITCHES, "homogeneous", *UNDECAYED)

OWN = 8  # the horizon that learning rates are chosen at, and arms are compared at


def trained_at(arm: str) -> int:
    """The default horizon that an arm is evaluated at."""
    return 1 if HORIZONS.get(arm) == "fixed:1" else OWN


def layer_of(arm: str, **size: Any) -> nn.Module:
    """The layer of an arm, drawn with torch's own random numbers. The size is that of a TTC layer."""
    if arm.startswith("mlp"):
        return Feedforward(2.5 if arm == "mlp-2.5" else 1.0, size)
    if arm in SWITCHES:
        return Switched(arm, **size)
    if arm.startswith("system"):
        return TTCLayer(**(size | SYSTEM))
    options: dict[str, Any] = {"context": "head"} if arm == "head" else {"time_homogeneous": arm == "homogeneous"}
    return TTCLayer(**size, **options)


class Feedforward(nn.Module):
    """An MLP in the place of a TTC layer, with `times` its parameters."""

    def __init__(self, times: float, like: dict[str, int]) -> None:
        super().__init__()
        inner: Any = Inserted("mlp", like, device="meta").mixer.inner
        self.branch = Inserted("mlp", like, inner=round(times * inner))

    def forward(self, x: Tensor, horizon: int) -> Tensor:
        return x + self.branch(x.unsqueeze(0)).squeeze(0)


@dataclass(frozen=True, eq=False)
class RankOne(ModulatedLQR):
    """Problems with dynamics A_t = 1 + exp(-t decay_A) (a + p q')."""

    p: Tensor
    q: Tensor


class Switched(TTCLayer):
    """A TTC layer with one of the SWITCHES."""

    def __init__(self, switch: str, **size: Any) -> None:
        super().__init__(**size)
        self.switch = switch
        self.context = SwitchedContext(switch, self.heads, self.state_size, self.context.rank)
        self.project = nn.Linear(self.width, self.context.inputs, bias=False)
        self.reset_parameters()

    def _answer(self, x: Tensor, problem: Problem, horizon: int) -> Tensor:
        if isinstance(problem, RankOne):
            action = plan_rank_one(problem, horizon).flatten(1)
            return self.out(self.action_norm(action)).view(x.shape)
        if self.switch == "fixed-scale":
            return self.out(plan(problem, horizon, check=False).flatten(1) * self.action_norm.weight).view(x.shape)
        return super()._answer(x, problem, horizon)


class SwitchedContext(TokenContext):
    """The context of a TTC layer with a switch."""

    def __init__(self, switch: str, heads: int, states: int, rank: int) -> None:
        Context.__init__(self, heads, states, states, rank, False)
        more = {name: states - less for name, less in SWITCHES[switch].items()}
        decays = {name: self.parts.pop(name) for name in ("decay_A", "decay_B", "decay_Q")}
        rest = {name: more[name] for name in more if name not in decays}
        self.parts |= rest | decays | {name: more[name] for name in more if name in decays}  # decays last, in order
        self.switch, self.drawn = switch, sum(self.parts.values())
        self.widths = [heads * states, heads * self.drawn, 2 * rank]
        self.inputs = sum(self.widths)
        self.bias = nn.Parameter(torch.empty(sum(self.widths[1:])))
        self.reset_parameters()

    def _write(self, h0: Tensor, drawn: Tensor, shared: Tensor) -> ModulatedLQR:
        problem = super()._write(h0, drawn, shared)
        own = dict(zip(self.parts, drawn.split(list(self.parts.values()), -1), strict=True))
        if self.switch == "terminal-shared":
            return replace(problem, Qf=problem.Q.unsqueeze(1).expand_as(problem.Qf))
        if self.switch == "terminal-none":
            return replace(problem, Qf=0 * problem.Qf)
        if self.switch.startswith("homogeneous"):
            none = {name: 0 * getattr(problem, name) for name in ("decay_A", "decay_B", "decay_Q")}
            return replace(problem, a=problem.a.clamp_max(0) if self.switch.endswith("bounded") else problem.a, **none)
        if self.switch == "target":
            return towards(problem, own["target"])
        if self.switch == "rank-one":
            bound = (GROWTH * problem.decay_A).clamp_max(1).sqrt()
            p, q = (bound * x * torch.rsqrt(1 + x.square().sum(-1, keepdim=True)) for x in (own["p"], own["q"]))
            return RankOne(**vars(problem), p=p, q=q)
        return problem


def towards(problem: ModulatedLQR, target: Tensor) -> ModulatedLQR:
    """The problem of being at `target`, (N, H, n - 1), instead of zero: the last state becomes the constant 1, on which
    no action has an effect, and h' Q h of the others becomes (h - target)' Q (h - target)."""
    last = torch.zeros(problem.state_size, device=target.device, dtype=target.dtype)
    last[-1] = 1
    one = torch.eye(problem.state_size, device=target.device, dtype=target.dtype)[:-1]
    E = one - target.unsqueeze(-1) * last
    return replace(
        problem,
        h0=problem.h0 * (1 - last) + last,
        a=problem.a * (1 - last),
        B=problem.B * (1 - last).unsqueeze(-1),
        decay_Q=problem.decay_Q * (1 - last),
        Q=E.mT @ problem.Q.unsqueeze(1)[..., :-1, :-1] @ E,
        Qf=E.mT @ problem.Qf[..., :-1, :-1] @ E,
    )


def plan_rank_one(problem: RankOne, horizon: int) -> Tensor:
    """The first actions, (N, H, m): the recursion of ttcnet.lqr.reference with such dynamics, in plain torch."""
    unit, B, P = problem.r_inv.sqrt(), problem.B.unsqueeze(1), problem.Qf
    one = torch.eye(unit.shape[-1], device=unit.device, dtype=unit.dtype)
    dynamics = torch.diag_embed(problem.a) + problem.p.unsqueeze(-1) * problem.q.unsqueeze(-2)
    identity = torch.eye(problem.state_size, device=unit.device, dtype=unit.dtype)
    for t in range(horizon, 0, -1):
        A = identity + torch.exp(-t * problem.decay_A).unsqueeze(-1) * dynamics
        B_t = B * (unit * torch.exp(-t * problem.decay_B)).unsqueeze(-2)
        pull = B_t.mT @ P
        gain = torch.linalg.solve_ex(one + pull @ B_t, pull @ A)[0]
        if t > 1:
            scale = torch.exp(-(t - 1) * problem.decay_Q)
            P = A.mT @ P @ (A - B_t @ gain)
            P = (P + P.mT) / 2 + scale.unsqueeze(-1) * scale.unsqueeze(-2) * problem.Q.unsqueeze(1)
    return -unit * (gain @ problem.h0.unsqueeze(-1)).squeeze(-1)
