"""Measures of error: relative errors of the action and of every gradient against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import torch
from torch import Tensor

from ttcnet.lqr import ModulatedLQR

Provider = Callable[[ModulatedLQR, int], Tensor]
NAMES = tuple(field.name for field in fields(ModulatedLQR))


def cast(
    family: ModulatedLQR, dtype: torch.dtype, device: str | torch.device = "cpu", tokens: int | None = None
) -> ModulatedLQR:
    """The family in another dtype or on another device, repeated to `tokens` tokens, as leaves with gradients."""

    def leaf(x: Tensor) -> Tensor:
        return fill(x.detach().to(device, dtype), len(x) if tokens is None else tokens).requires_grad_()

    return ModulatedLQR(**{name: leaf(getattr(family, name)) for name in NAMES})


def fill(x: Tensor, count: int) -> Tensor:
    """A copy of x, over and over, cut to `count` along its first dimension."""
    return x.repeat(-(-count // len(x)), *[1] * (x.ndim - 1))[:count].clone()


def differentiate(provider: Provider, family: ModulatedLQR, horizon: int, g: Tensor) -> dict[str, Tensor]:
    """The first action, under "u", and the gradient of (g * u).sum() with respect to every field, by its name."""
    u = provider(family, horizon)
    inputs = [getattr(family, name) for name in NAMES]
    grads = torch.autograd.grad((u * g.to(u)).sum(), inputs, allow_unused=True)
    found = {name: torch.zeros_like(x) if d is None else d for name, x, d in zip(NAMES, inputs, grads, strict=True)}
    return {"u": u.detach()} | found


def relative_errors(found: dict[str, Tensor], truth: dict[str, Tensor]) -> dict[str, float]:
    """Norm of the difference over the norm of the truth, by name. A gradient is measured against the larger of its
    own norm and 1e-6 of the largest gradient's, so that one that vanishes does not divide by zero."""
    largest = max(float(truth[name].norm()) for name in NAMES)
    floors = {name: 1e-6 * largest if name in NAMES else 0.0 for name in truth}
    return {
        name: float((found[name].to(x) - x).norm()) / max(float(x.norm()), floors[name], torch.finfo(x.dtype).tiny)
        for name, x in truth.items()
    }


def weights(family: ModulatedLQR) -> Tensor:
    """A random gradient of the action, the same for every provider."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(family.r_inv.shape, generator=generator, dtype=torch.float64)


def rounded(family: ModulatedLQR, seed: int, unit: float = 2**-24) -> ModulatedLQR:
    """The family with every number moved by one rounding, up or down at random; Q and Qf stay symmetric."""
    generator = torch.Generator().manual_seed(seed)

    def moved(name: str) -> Tensor:
        x = getattr(family, name).detach()
        sign = 2 * torch.randint(0, 2, x.shape, generator=generator).to(x) - 1
        x = x * (1 + unit * sign)
        if name in ("Q", "Qf"):
            x = torch.tril(x) + torch.tril(x, -1).mT
        return x.requires_grad_()

    return ModulatedLQR(**{name: moved(name) for name in NAMES})
