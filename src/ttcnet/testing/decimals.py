"""The first action and all gradients in decimal numbers of eighty digits, as the judge of every other way.

The plain recursion, with digits to lose. It shares no code with the library, whose reference is off itself where few
actions hold many unstable states.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ttcnet.lqr import ModulatedLQR

from .errors import NAMES

DIGITS = 80
Numbers = Any  # numpy arrays of Decimal


def exact_plan(family: ModulatedLQR, horizon: int, g: Tensor, digits: int = DIGITS) -> dict[str, Tensor]:
    """ "u" and the gradients of (g * u).sum() by name, in float64: what `errors.differentiate` returns."""
    with localcontext() as context:
        context.prec = digits
        return _exact_plan(family, horizon, g)


def _exact_plan(family: ModulatedLQR, horizon: int, g: Tensor) -> dict[str, Tensor]:
    tokens, heads = family.a.shape[:2]

    def numbers(x: Tensor) -> Numbers:
        x = x.detach().double()
        flat = np.array([Decimal(v) for v in x.flatten().tolist()], dtype=object).reshape(tuple(x.shape))
        return flat.reshape(tokens * heads, *x.shape[2:])

    def of_head(x: Tensor) -> Tensor:
        return x if x.ndim == 4 else x.unsqueeze(1).expand(tokens, heads, *x.shape[1:])

    a, r_inv, decay_A, decay_B, decay_Q, h0 = (numbers(getattr(family, k)) for k in (NAMES[0], *NAMES[4:]))
    B, Q, Qf = (numbers(of_head(getattr(family, k))) for k in ("B", "Q", "Qf"))
    pull = numbers(g)
    Q, Qf = (x / 2 + np.swapaxes(x, 1, 2) / 2 for x in (Q, Qf))
    exp = np.vectorize(Decimal.exp, otypes=[object])
    faded = [[exp(-t * x) for x in (decay_A, decay_B, decay_Q)] for t in range(1, horizon + 1)]

    values, absorbed, P = [Qf], [], Qf
    for t in range(horizon, 0, -1):
        fade_A, fade_B, _ = faded[t - 1]
        for j in range(B.shape[-1]):
            b, w = B[:, :, j], r_inv[:, j] * fade_B[:, j] ** 2
            v = _times(P, b)
            P = P - _outer(v, v) * (w / (1 + w * (b * v).sum(-1)))[:, None, None]
        absorbed.append(P)
        if t > 1:
            A, scale = 1 + fade_A * a, faded[t - 2][2]
            P = _outer(A, A) * P + _outer(scale, scale) * Q
            values.append(P)

    grad = {k: x * 0 for k, x in zip(NAMES, (a, B, Q, Qf, r_inv, a, decay_B, decay_Q, h0), strict=True)}
    h, h_, first = h0, h0 * 0, None
    for t in range(1, horizon + 1):
        P_after, P_before = values.pop(), absorbed.pop()
        fade_A, fade_B, scale = faded[t - 1]
        A, g_t = 1 + fade_A * a, pull if t == 1 else pull * 0
        x, x_ = A * h, A * h_
        reach = fade_B * _times(np.swapaxes(B, 1, 2), _times(P_before, x))
        forced = x_ - _times(B, fade_B * r_inv * g_t)
        reach_ = fade_B * _times(np.swapaxes(B, 1, 2), _times(P_before, forced))
        u, u_ = -r_inv * reach, -r_inv * (reach_ + g_t)
        before, before_, h, h_ = h, h_, x + _times(B, fade_B * u), x_ + _times(B, fade_B * u_)
        lam, lam_ = _times(P_after, h), _times(P_after, h_)
        first = u if first is None else first
        through = fade_A * (lam * before_ + lam_ * before)
        grad["a"] = grad["a"] + through
        grad["decay_A"] = grad["decay_A"] - t * a * through
        grad["B"] = grad["B"] + _outer(lam, fade_B * u_) + _outer(lam_, fade_B * u)
        grad["r_inv"] = grad["r_inv"] - reach * (reach_ + g_t)
        grad["decay_B"] = grad["decay_B"] - t * (reach * u_ + reach_ * u)
        if t == 1:
            grad["h0"] = A * lam_
        if t == horizon:
            grad["Qf"] = (_outer(h, h_) + _outer(h_, h)) / 2
        else:
            s, s_ = scale * h, scale * h_
            grad["Q"] = grad["Q"] + (_outer(s, s_) + _outer(s_, s)) / 2
            grad["decay_Q"] = grad["decay_Q"] - t * (s * _times(Q, s_) + s_ * _times(Q, s))
    if family.decay_A.shape[-1] == 1:
        grad["decay_A"] = grad["decay_A"].sum(-1, keepdims=True)

    def tensor(x: Numbers) -> Tensor:
        return torch.from_numpy(x.astype(np.float64))

    found = {"u": tensor(first)} | {k: tensor(x) for k, x in grad.items()}
    found = {k: x.unflatten(0, (tokens, heads)) for k, x in found.items()}
    for k in ("B", "Q"):
        if getattr(family, k).ndim == 3:  # shared by the heads of a token
            found[k] = tensor(grad[k].reshape(tokens, heads, *grad[k].shape[1:]).sum(1))
    return found


def _times(matrix: Numbers, vector: Numbers) -> Numbers:
    return (matrix * vector[:, None, :]).sum(-1)


def _outer(x: Numbers, y: Numbers) -> Numbers:
    return x[:, :, None] * y[:, None, :]
