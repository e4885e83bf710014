"""The largest error allowed in float32: 200 times the effect of a rounding of the inputs, or 1e-5 in u and 1e-4 in a
gradient.

Many small families, of all regimes, ranks of cost and scales of r_inv, are planned as one and measured one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ttcnet.lqr import LQR, ModulatedLQR, solve
from ttcnet.lqr.modulated import Family
from ttcnet.lqr.reference import backward, forward

from .errors import NAMES, Provider, cast, differentiate, rounded
from .regimes import COSTS, REGIMES, draw, with_costs

SHAPES = [(1, 1), (5, 1), (5, 3), (3, 5), (16, 16), (16, 7), (33, 20), (64, 64)]
HORIZONS = (1, 2, 8, 17, 40, 300)
SCALES = (1e-6, 1.0, 1e2, 1e3, 1e4)
Outputs = dict[str, Tensor]  # "u" and the gradients, by name
Compute = Callable[[ModulatedLQR, int, Tensor], Outputs]
Case = tuple[str, str, float]  # regime, rank of cost, scale of r_inv
Failure = tuple[Case, str, float, float]  # case, output, its error, the effect of a rounding


def cases(
    n: int, m: int, scales: Sequence[float] = SCALES, regimes: Sequence[str] = REGIMES, costs: Sequence[str] = COSTS
) -> tuple[list[Case], ModulatedLQR]:
    """All cases, and their problems as one family in float64."""
    what = list(product(regimes, costs, scales))
    families = []
    for k, (regime, cost, scale) in enumerate(what):
        family = with_costs(draw(regime, tokens=2, heads=2, n=n, m=m, seed=k % 7), cost, seed=k)
        families.append(replace(family, r_inv=family.r_inv * scale))
    return what, ModulatedLQR(**{name: torch.cat([getattr(x, name) for x in families]) for name in NAMES})


def truth_of(family: ModulatedLQR, horizon: int, g: Tensor) -> Outputs:
    """Outputs of the reference, in float64."""
    tensors = [getattr(family, name).detach() for name in NAMES]
    problems = Family(*tensors)
    u, points = forward(problems, horizon, True)
    grads = backward(problems, horizon, points, g.to(u))
    whole = [grad if grad.ndim == x.ndim else grad.sum(1) for grad, x in zip(grads, tensors, strict=True)]
    return {"u": u} | dict(zip(NAMES, whole, strict=True))


def case_errors(found: Outputs, truth: Outputs, count: int) -> Outputs:
    """Relative errors of every output and case: `relative_errors` for each of `count` cases."""
    size = {name: x.reshape(count, -1).norm(dim=1) for name, x in truth.items()}
    largest = torch.stack([x for name, x in size.items() if name != "u"]).amax(0)
    return {
        name: (found[name].to(x) - x).reshape(count, -1).norm(dim=1)
        / (size[name] if name == "u" else torch.maximum(size[name], 1e-6 * largest)).clamp_min(1e-37)
        for name, x in truth.items()
    }


def beyond(
    what: Sequence[Case], family: ModulatedLQR, horizon: int, compute: Compute, draws: int = 2, device: str = "cpu"
) -> list[Failure]:
    """The cases where `compute`, (family in float32, horizon, g) to outputs by name, is too far from the truth. The
    truth is computed on `device`."""
    single = cast(family, torch.float32)
    exact = cast(single, torch.float64)
    g = torch.randn(single.r_inv.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def truly(problems: ModulatedLQR) -> Outputs:
        found = truth_of(cast(problems, torch.float64, device), horizon, g.to(device))
        return {name: x.cpu() for name, x in found.items()}

    truth = truly(exact)
    moved = [truly(rounded(exact, seed)) for seed in range(draws)]
    return _too_far(what, {name: x.cpu() for name, x in compute(single, horizon, g).items()}, truth, moved)


def solve_beyond(
    what: Sequence[Case], family: ModulatedLQR, horizon: int, device: str = "cpu", draws: int = 2, **options: Any
) -> list[Failure]:
    """Test `solve` with these options on `device` as `beyond` tests `plan`. The problems are dense, and their matrices
    are rounded. The truth comes from method "kkt"."""
    given = {name: x.detach().contiguous() for name, x in cast(family, torch.float32).unroll(horizon).given().items()}
    g = torch.randn(family.r_inv.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def solved(fields: Outputs, dtype: torch.dtype, place: str = "cpu", **options: Any) -> Outputs:
        leaves = {name: x.to(place, dtype).requires_grad_() for name, x in fields.items()}
        u = solve(LQR(**leaves, horizon=horizon), check=False, **options).u[..., 0, :]
        grads = torch.autograd.grad((u * g.to(u)).sum(), list(leaves.values()), materialize_grads=True)
        return {"u": u.detach().cpu()} | {name: x.cpu() for name, x in zip(leaves, grads, strict=True)}

    def moved(seed: int) -> Outputs:
        generator = torch.Generator().manual_seed(seed)
        fields = {}
        for name, x in given.items():
            noise = 2 * torch.rand(x.shape, generator=generator, dtype=torch.float64) - 1
            noise = (noise + noise.mT) / 2 if name in ("Q", "Qf") else noise
            fields[name] = x.double() * (1 + 2**-24 * noise)
        return solved(fields, torch.float64, method="kkt")

    truth = solved(given, torch.float64, method="kkt")
    return _too_far(
        what, solved(given, torch.float32, device, **options), truth, [moved(seed) for seed in range(draws)]
    )


def _too_far(what: Sequence[Case], found: Outputs, truth: Outputs, moved: Sequence[Outputs]) -> list[Failure]:
    movements = [case_errors(x, truth, len(what)) for x in moved]
    errors = case_errors(found, truth, len(what))
    largest = torch.stack([x.reshape(len(what), -1).abs().amax(1) for x in truth.values()]).amax(0)
    there = largest < 1e37  # there is a minimum, and float32 can hold it
    failures = []
    for name, error in errors.items():
        movement = torch.stack([x[name] for x in movements]).amax(0)
        movement = torch.where(movement.isfinite(), movement, torch.inf)  # a rounding may leave no minimum
        most = (200 * movement).clamp_min(1e-5 if name == "u" else 1e-4)
        failures += [
            (what[k], name, float(error[k]), float(movement[k]))
            for k in torch.nonzero(there & ~(error <= most)).flatten().tolist()
        ]
    return failures


def by(plan: Provider) -> Compute:
    """Make a `compute` from a function like `plan`."""
    return lambda family, horizon, g: differentiate(plan, family, horizon, g)
