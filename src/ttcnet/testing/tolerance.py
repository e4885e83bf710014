"""The largest error allowed: 200 times the effect of a rounding of the inputs, or 1e-5 in u and 1e-4 in a gradient. In
float64, these two are 2e-14 and 2e-13.

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
FEW = [(6, 1), (8, 1), (12, 2), (16, 3)]  # few actions for many states: the truth is `exact_plan`, the reference is off
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


def long_cases(n: int, m: int) -> tuple[list[Case], ModulatedLQR]:
    """Fewer cases, for long horizons of large problems."""
    return cases(n, m, scales=(1e-6, 1.0, 1e4), regimes=("slow", "constant"), costs=("full", "low"))


def few_cases(n: int, m: int) -> tuple[list[Case], ModulatedLQR]:
    """Where few actions hold many states, for the slow `exact_plan`."""
    return cases(n, m, scales=(1e3, 1e4), regimes=("slow", "constant"), costs=("full", "none"))


def truth_of(family: ModulatedLQR, horizon: int, g: Tensor) -> Outputs:
    """Outputs of the reference, in float64."""
    tensors = [getattr(family, name).detach() for name in NAMES]
    problems = Family(*tensors)
    u, points = forward(problems, horizon, True)
    grads = backward(problems, horizon, points, g.to(u))
    whole = [grad if grad.ndim == x.ndim else grad.sum(1) for grad, x in zip(grads, tensors, strict=True)]
    return {"u": u} | dict(zip(NAMES, whole, strict=True))


def case_errors(found: Outputs, truth: Outputs, count: int) -> Outputs:
    """Relative errors of every output and case: `relative_errors` for each of `count` cases. What is below 1e-18
    counts as zero: problems that need no action have nothing else."""
    size = {name: x.reshape(count, -1).norm(dim=1) for name, x in truth.items()}
    largest = torch.stack([x for name, x in size.items() if name != "u"]).amax(0)
    return {
        name: (found[name].to(x) - x).reshape(count, -1).norm(dim=1)
        / (size[name] if name == "u" else torch.maximum(size[name], 1e-6 * largest)).clamp_min(1e-18)
        for name, x in truth.items()
    }


Judge = Callable[[ModulatedLQR, int, Tensor], Outputs]


def beyond(
    what: Sequence[Case],
    family: ModulatedLQR,
    horizon: int,
    compute: Compute,
    draws: int = 2,
    device: str = "cpu",
    judge: Judge = truth_of,
    dtype: torch.dtype = torch.float32,
    unrolled: bool = False,
) -> list[Failure]:
    """The cases where `compute`, (family in `dtype`, horizon, g) to outputs by name, is too far from the truth. The
    truth is found by `judge`, on `device`. If `unrolled`, `compute` solves `family.unroll(horizon)` in float32, and ten
    times the effect of storing the problem and its gradients so is allowed too."""
    given = cast(family, dtype)
    exact = cast(given, torch.float64)
    g = torch.randn(given.r_inv.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    g = g.to(dtype).double()

    def truly(problems: ModulatedLQR) -> Outputs:
        found = judge(cast(problems, torch.float64, device), horizon, g.to(device))
        return {name: x.cpu() for name, x in found.items()}

    truth = truly(exact)
    moved = [truly(rounded(exact, seed, torch.finfo(dtype).eps / 2)) for seed in range(draws)]
    there = cast(given, torch.float64, device)
    stored = [_stored(there, horizon, g.to(device), seed) for seed in range(draws if unrolled else 0)]
    found = {name: x.cpu() for name, x in compute(given, horizon, g).items()}
    return _too_far(what, found, truth, moved, dtype, stored)


def _stored(family: ModulatedLQR, horizon: int, g: Tensor, seed: int) -> Outputs:
    """Outputs of the unrolled family in float64, with every number of its problem and every gradient of these moved by
    a rounding of float32. It matters where gradients of the steps cancel in their sum."""
    generator = torch.Generator(family.a.device).manual_seed(seed)

    def noise(name: str, size: Sequence[int]) -> Tensor:
        x = 2 * torch.rand(size, generator=generator, dtype=torch.float64, device=family.a.device) - 1
        return 1 + 2**-24 * ((x + x.mT) / 2 if name == "Q" else x)

    def moved(name: str, x: Tensor) -> Tensor:
        once = [1 if step == 0 else size for size, step in zip(x.shape, x.stride(), strict=True)]
        of_gradient, y = noise(name, x.shape), x * noise(name, once)
        y.register_hook(lambda grad: grad * of_gradient)
        return y

    def first(family: ModulatedLQR, horizon: int) -> Tensor:
        problem = family.unroll(horizon)
        fields = {name: moved(name, x) for name, x in problem.given().items()}
        return solve(LQR(**fields, horizon=horizon), check=False).u[..., 0, :]

    return {name: x.cpu() for name, x in differentiate(first, family, horizon, g).items()}


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


def _too_far(
    what: Sequence[Case],
    found: Outputs,
    truth: Outputs,
    moved: Sequence[Outputs],
    dtype: torch.dtype = torch.float32,
    stored: Sequence[Outputs] = (),
) -> list[Failure]:
    scale = torch.finfo(dtype).eps / torch.finfo(torch.float32).eps
    movements = [case_errors(x, truth, len(what)) for x in moved]
    effects = [case_errors(x, truth, len(what)) for x in stored]
    errors = case_errors(found, truth, len(what))
    largest = torch.stack([x.reshape(len(what), -1).abs().amax(1) for x in truth.values()]).amax(0)
    there = largest < 1e37  # there is a minimum, and float32 can hold it
    failures = []
    for name, error in errors.items():
        movement = torch.stack([x[name] for x in movements]).amax(0)
        movement = torch.where(movement.isfinite(), movement, torch.inf)  # a rounding may leave no minimum
        most = (200 * movement).clamp_min(scale * (1e-5 if name == "u" else 1e-4))
        for effect in effects:
            most = torch.maximum(most, (10 * effect[name]).nan_to_num(0, 0, 0))
        failures += [
            (what[k], name, float(error[k]), float(movement[k]))
            for k in torch.nonzero(there & ~(error <= most)).flatten().tolist()
        ]
    return failures


def by(plan: Provider) -> Compute:
    """Make a `compute` from a function like `plan`."""
    return lambda family, horizon, g: differentiate(plan, family, horizon, g)
