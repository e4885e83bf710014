"""How many digits a plan has lost, for `plan(check=True)`: its first actions again, in pairs of doubles.

All problems are planned in float64 by the plain recursion, which shows how many digits each of them costs: actions so
cheap that P° is far smaller than P, or a P that spans many orders of magnitude. Those that cost most are planned in
pairs of doubles, which have 32 digits, and once more with every input moved by a rounding: a plan may be off by what
the roundings of its inputs are worth, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .arithmetic import decayed, with_heads
from .modulated import Family

SPARE = 32.0  # a problem that costs no more than this factor cannot have lost digits that matter
MOST = 64  # problems that are planned in pairs
ROUNDINGS = 10  # of the inputs; an action that is off by more has lost digits. That of its gradients is larger.
FLOOR = {torch.float32: 1e-5, torch.float64: 2e-14}  # an error that is too small to count
STEP = 2.0**-40  # inputs in float64 are moved by this, of which a rounding is 2^-13: it shows, and is small enough


class Loss(NamedTuple):
    """Of the problems at `places` (of tokens and heads, flattened): the errors of their first actions and the effect of
    a rounding of the inputs, both relative to the size of the actions, and whether that is a loss."""

    places: Tensor
    error: Tensor
    moved: Tensor
    bad: Tensor


@torch.no_grad()
def measure(problems: Family, horizon: int, u: Tensor) -> Loss:
    """How far `u`, planned from these problems, is from their first actions."""
    if u.device.type == "mps":  # which has no float64
        problems, u = Family(*(x.cpu() for x in problems)), u.cpu()
    dtype = torch.float64 if u.dtype == torch.float64 else torch.float32
    every = torch.ones(u.shape[0] * u.shape[1], dtype=torch.bool, device=u.device)
    family = selected(problems, every)
    cost = _first_actions([Plain(x) for x in family], horizon)[1]
    cost = torch.where(cost.isfinite(), cost, torch.inf)
    places = cost.argsort(descending=True)[:MOST]
    places = places[cost[places] > SPARE]
    some = Family(*(x[places] for x in family))
    truth = _first_actions([Two(x, torch.zeros_like(x)) for x in some], horizon)[0]
    unit = STEP if dtype == torch.float64 else 2.0**-24
    moved = _first_actions(_moved(some, unit), horizon)[0] - truth
    size = truth.norm(dim=-1).clamp_min(torch.finfo(dtype).tiny)
    effect = moved.norm(dim=-1) / size * (2.0**-53 / unit if dtype == torch.float64 else 1)
    error = (u.detach().flatten(0, 1)[places].double() - truth).norm(dim=-1) / size
    bad = truth.isfinite().all(-1) & ~(error <= (ROUNDINGS * effect).clamp_min(FLOOR[dtype]))
    return Loss(places, error, effect, bad)


def selected(problems: Family, which: Tensor) -> Family:
    """These problems in float64, (problems, ...) without tokens and heads."""
    tokens, heads, n = problems.a.shape
    whole = problems._replace(
        B=with_heads(problems.B), Q=with_heads(problems.Q), decay_A=problems.decay_A.expand(tokens, heads, n)
    )
    return Family(*(x.expand(tokens, heads, *x.shape[2:]).flatten(0, 1)[which].double() for x in whole))


def _moved(family: Family, unit: float) -> list[Two]:
    """Every number moved by `unit` of its size, up or down at random."""
    generator = torch.Generator().manual_seed(0)

    def sign(x: Tensor) -> Tensor:
        found = (2 * torch.randint(0, 2, x.shape, generator=generator) - 1).to(x)
        return torch.tril(found) + torch.tril(found, -1).mT if x.ndim == 3 and x.shape[1] == x.shape[2] else found

    return [Two(x, unit * sign(x) * x).normal() for x in family]


Number = Any  # Plain or Two


def _first_actions(fields: Sequence[Number], horizon: int) -> tuple[Tensor, Tensor]:
    """u_1 of every problem, one action after the other, and by what factor its digits are spread."""
    a, B, Q, Qf, r_inv, decay_A, decay_B, decay_Q, h0 = fields
    one, half = a.like(1.0), a.like(0.5)
    P, Q = half * (Qf + Qf.mT), half * (Q + Q.mT)
    columns = [B[..., j] for j in range(B.shape[-1])]
    cost = torch.zeros_like(a.hi[..., 0])
    kept: list[tuple[Number, Number, Number]] = []
    for t in range(horizon, 0, -1):
        fade = decay_B.decayed(t)
        if t == 1:
            size = torch.diagonal(P.hi, dim1=-2, dim2=-1).amax(-1)
            weight = (r_inv.hi * fade.hi.square() * B.hi.square().sum(-2)).amax(-1)
            cost = torch.maximum(cost, weight * size)
        for j, b in enumerate(columns):
            rate = r_inv[..., j] * fade[..., j]
            v = (P * b[..., None, :]).sum()
            d = one + rate * fade[..., j] * (b * v).sum()
            P = P - v[..., :, None] * v[..., None, :] * (rate * fade[..., j] / d)[..., None, None]
            cost = torch.maximum(cost, torch.where(d.hi > 0, d.hi, torch.inf))
            if t == 1:
                kept.append((v, rate / d, b * fade[..., j, None]))
        if t > 1:
            A, scale = one + decay_A.decayed(t) * a, decay_Q.decayed(t - 1)
            P = (A[..., :, None] * A[..., None, :]) * P + (scale[..., :, None] * scale[..., None, :]) * Q
    x, actions = (one + decay_A.decayed(1) * a) * h0, []
    for v, gain, b in reversed(kept):
        u = -(gain * (v * x).sum())
        x = x + b * u[..., None]
        actions.append(u.hi)
    return torch.stack(actions[::-1], -1), cost


@dataclass(frozen=True)
class Plain:
    """A tensor, with the operations of Two."""

    hi: Tensor

    def like(self, value: float) -> Plain:
        return Plain(self.hi.new_tensor(value))

    @property
    def shape(self) -> torch.Size:
        return self.hi.shape

    @property
    def mT(self) -> Plain:
        return Plain(self.hi.mT)

    def __getitem__(self, place: Any) -> Plain:
        return Plain(self.hi[place])

    def __add__(self, other: Plain) -> Plain:
        return Plain(self.hi + other.hi)

    def __sub__(self, other: Plain) -> Plain:
        return Plain(self.hi - other.hi)

    def __neg__(self) -> Plain:
        return Plain(-self.hi)

    def __mul__(self, other: Plain) -> Plain:
        return Plain(self.hi * other.hi)

    def __truediv__(self, other: Plain) -> Plain:
        return Plain(self.hi / other.hi)

    def sum(self) -> Plain:
        return Plain(self.hi.sum(-1))

    def decayed(self, t: int) -> Plain:
        return Plain(decayed(self.hi, t))


@dataclass(frozen=True)
class Two:
    """The sum of two tensors; the second is the rounding error of the first."""

    hi: Tensor
    lo: Tensor

    def normal(self) -> Two:
        total = self.hi + self.lo
        return Two(total, self.lo - (total - self.hi))

    def like(self, value: float) -> Two:
        return Two(self.hi.new_tensor(value), self.hi.new_tensor(0.0))

    @property
    def shape(self) -> torch.Size:
        return self.hi.shape

    @property
    def mT(self) -> Two:
        return Two(self.hi.mT, self.lo.mT)

    def __getitem__(self, place: Any) -> Two:
        return Two(self.hi[place], self.lo[place])

    def __add__(self, other: Two) -> Two:
        total = self.hi + other.hi
        part = total - self.hi
        error = (self.hi - (total - part)) + (other.hi - part)
        return Two(total, error + (self.lo + other.lo)).normal()

    def __neg__(self) -> Two:
        return Two(-self.hi, -self.lo)

    def __sub__(self, other: Two) -> Two:
        return self + -other

    def __mul__(self, other: Two) -> Two:
        product, (a, b), (c, d) = self.hi * other.hi, _halves(self.hi), _halves(other.hi)
        error = ((a * c - product) + (a * d + b * c)) + b * d
        return Two(product, error + (self.hi * other.lo + self.lo * other.hi)).normal()

    def __truediv__(self, other: Two) -> Two:
        first = self.hi / other.hi
        rest = self - other * Two(first, torch.zeros_like(first))
        return Two(first, rest.hi / other.hi).normal()

    def sum(self) -> Two:
        """Over the last dimension, half by half."""
        if self.shape[-1] == 1:
            return self[..., 0]
        half = self.shape[-1] // 2
        total = self[..., :half] + self[..., half : 2 * half]
        if self.shape[-1] % 2:
            total = Two(torch.cat([total.hi, self.hi[..., -1:]], -1), torch.cat([total.lo, self.lo[..., -1:]], -1))
        return total.sum()

    def decayed(self, t: int) -> Two:
        """A decay that was moved by lo moves its factor by -t lo of its size, which is more than a double can show."""
        factor = decayed(self.hi, t)
        return Two(factor, -t * self.lo * factor)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two halves of the digits, whose products are exact."""
    large = 134217729.0 * x
    first = large - (large - x)
    return first, x - first
