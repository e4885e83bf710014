"""The CUDA kernels: their source on the CPU, by the emulator, and themselves on a GPU (marked `gpu`).

Outputs are allocated full of NaN, so that whatever a kernel forgets to write shows.
"""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from tests.lqr import emulator
from ttcnet.lqr import plan
from ttcnet.lqr.kernels import fused_cuda
from ttcnet.lqr.modulated import Family
from ttcnet.testing.errors import NAMES, cast, differentiate, relative_errors, weights
from ttcnet.testing.memory import unwritten_is_nan
from ttcnet.testing.regimes import draw

needs_compiler = pytest.mark.skipif(emulator.COMPILER is None, reason="the emulator needs g++")
PLACES = [pytest.param("cpu", marks=needs_compiler), pytest.param("cuda", marks=pytest.mark.gpu)]


def run_kernels(family, horizon, g, place, **shape):
    """The first actions and all gradients, by the kernels; `shape` overrides lanes, threads and blocks."""
    if place == "cuda":
        from ttcnet.lqr.kernels.nvrtc import run
    else:
        run = emulator.run
    ready = Family(**{name: getattr(family, name).detach().to(place).contiguous() for name in NAMES})
    fused_cuda._shaped.cache_clear()
    with (
        patch.object(fused_cuda, "_lanes", (lambda *_: shape["lanes"]) if shape else fused_cuda._lanes),
        unwritten_is_nan(),
    ):
        u, kept = fused_cuda.forward(ready, horizon, True, run)
        grads = fused_cuda.backward(ready, horizon, kept, g.to(u), run)
    whole = [grad if grad.ndim == x.ndim else grad.sum(1) for grad, x in zip(grads, ready, strict=True)]
    return {"u": u.cpu()} | {name: grad.cpu() for name, grad in zip(NAMES, whole, strict=True)}


def reference(family, horizon):
    return plan(family, horizon, backend="reference", check=False)


def errors_of(family, horizon, place, **shape):
    g = weights(family)
    truth = differentiate(reference, cast(family, torch.float64), horizon, g)
    return relative_errors(run_kernels(family, horizon, g, place, **shape), truth)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("n", "m", "horizon", "per_head"),
    [
        (4, 4, 1, False),
        (1, 1, 5, True),
        (5, 3, 9, False),
        (3, 5, 17, True),
        (8, 8, 70, False),
        (4, 4, 300, False),
        (16, 4, 6, False),
    ],
)
def test_exact_in_float64(place, n, m, horizon, per_head):
    """Every size of horizon: one stretch, several, and both levels of check-points."""
    family = draw("slow" if m >= n else "trained", tokens=3, heads=3, n=n, m=m, per_head=per_head)
    errors = errors_of(cast(family, torch.float64), horizon, place)
    assert max(errors.values()) < 1e-11, errors


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("regime", ["fresh", "trained", "slow", "constant", "singular"])
def test_accurate_in_float32(place, regime):
    errors = errors_of(cast(draw(regime, tokens=2, heads=3), torch.float32), 9, place)
    assert errors["u"] < 2e-6
    assert max(errors.values()) < 2e-5, errors


@pytest.mark.parametrize("place", PLACES)
def test_decay_of_A_per_state(place):
    family = draw("trained", tokens=2, heads=2, n=4)
    family = replace(family, decay_A=family.decay_A * torch.linspace(0.5, 1.5, 4, dtype=torch.float64))
    errors = errors_of(cast(family, torch.float64), 6, place)
    assert max(errors.values()) < 1e-11, errors


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("lanes", [(1, 32, 1), (2, 32, 1), (4, 64, 1), (8, 32, 1)])
def test_any_number_of_lanes(place, lanes):
    errors = errors_of(cast(draw("trained", tokens=5, heads=3, n=8), torch.float64), 6, place, lanes=lanes)
    assert max(errors.values()) < 1e-11, errors


@pytest.mark.parametrize("place", PLACES)
def test_expensive_actions(place):
    family = draw("trained", tokens=2, heads=2, n=4, m=3)
    family = replace(family, r_inv=family.r_inv * torch.tensor([1.0, 0.0, 1e-20]))
    errors = errors_of(cast(family, torch.float32), 6, place)
    assert max(errors.values()) < 1e-5, errors


@pytest.mark.parametrize("place", PLACES)
def test_a_bad_problem_stays_by_itself(place):
    family = cast(draw("trained", tokens=3, heads=2, n=4), torch.float32)
    g = weights(family)
    clean = run_kernels(family, 6, g, place)
    spoiled = family.h0.detach().clone()
    spoiled[1, 0, 2] = float("nan")
    dirty = run_kernels(replace(family, h0=spoiled), 6, g, place)
    assert dirty["u"][1, 0].isnan().all()
    for name in ("u", "a", "r_inv", "Qf", "h0"):
        assert torch.equal(dirty[name][1, 1], clean[name][1, 1]), name
        assert torch.equal(dirty[name][[0, 2]], clean[name][[0, 2]]), name


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_problem_without_a_minimum_gives_nan(place, dtype):
    family = draw("trained", tokens=2, heads=2, n=1)
    Qf = family.Qf.clone()
    Qf[1, 0] -= 1e6
    family = cast(replace(family, Qf=Qf), dtype)
    u = run_kernels(family, 1, weights(family), place)["u"]
    assert u[1, 0].isnan().all()
    assert u[0].isfinite().all()
    assert u[1, 1].isfinite().all()


@pytest.mark.parametrize("horizon", [1, 2, 7, 8, 16, 17, 63, 64, 65, 256, 257, 511, 2048])
@pytest.mark.parametrize("kept", [4, 16])
def test_check_points_are_few(horizon, kept):
    steps = fused_cuda.kept_steps(horizon, kept)
    assert steps.stride % steps.kept == 0
    if not steps.at_once:
        assert steps.points + steps.inner_points <= max(16, 2.5 * (horizon / kept) ** 0.5)
