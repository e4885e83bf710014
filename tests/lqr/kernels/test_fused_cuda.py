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
from ttcnet.lqr.kernels.fused_forms import CHOSEN, FORMS, Form, forced, kept_size, kept_steps
from ttcnet.lqr.modulated import Family
from ttcnet.testing.errors import NAMES, cast, differentiate, relative_errors, weights
from ttcnet.testing.memory import unwritten_is_nan
from ttcnet.testing.regimes import draw

needs_compiler = pytest.mark.skipif(emulator.COMPILER is None, reason="the emulator needs g++")
PLACES = [pytest.param("cpu", marks=needs_compiler), pytest.param("cuda", marks=pytest.mark.gpu)]


def run_kernels(family, horizon, g, place, form=FORMS["plain"], **shape):
    """The first actions and all gradients, by the kernels; `shape` overrides lanes, threads and blocks."""
    if place == "cuda":
        from ttcnet.lqr.kernels.nvrtc import run
    else:
        run = emulator.run
    ready = Family(**{name: getattr(family, name).detach().to(place).contiguous() for name in NAMES})
    fused_cuda._shaped.cache_clear()
    with (
        patch.object(fused_cuda, "lanes", (lambda *_: shape["lanes"]) if shape else fused_cuda.lanes),
        forced(form),
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
def test_a_bad_problem_leaves_the_others_alone(place):
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


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("n", "m", "horizon", "lanes", "dtype"),
    [
        (5, 8, 20, (2, 32, 1), torch.float64),
        (16, 5, 18, (16, 32, 1), torch.float32),
        (16, 5, 3, (4, 32, 1), torch.float32),
    ],
)
def test_halves_of_check_points_give_the_same_bits(place, n, m, horizon, lanes, dtype):
    """P is symmetric to the bit, so nothing is lost, by problems that are solved again with twice the digits either."""
    family = draw("trained", tokens=2, heads=2, n=n, m=m)
    family = cast(replace(family, r_inv=family.r_inv * torch.tensor([1.0, 1e4])[:, None]), dtype)
    g = weights(family)
    plain, halves = (run_kernels(family, horizon, g, place, FORMS[name], lanes=lanes) for name in ("plain", "halves"))
    for name, x in plain.items():
        assert torch.equal(x, halves[name]), name


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", [name for name in FORMS if name != "plain"])
def test_every_form_is_exact(place, form):
    """Beyond 64 steps, all kept or not."""
    family, horizon = draw("trained", tokens=3, heads=3, n=5, m=3), 70
    errors = errors_of(cast(family, torch.float64), horizon, place, form=FORMS[form])
    assert max(errors.values()) < 1e-11, errors


@pytest.mark.parametrize("horizon", [1, 2, 7, 8, 16, 17, 63, 64, 65, 256, 257, 511, 2048])
@pytest.mark.parametrize("N", [16, 64])
def test_check_points_are_few(horizon, N):
    steps = kept_steps(Form(), 1024, N, horizon, 4, 0)
    assert steps.stride % steps.kept == 0
    if not steps.at_once:
        assert steps.points + steps.inner_points <= max(16, 2.5 * (horizon / steps.kept) ** 0.5)


@pytest.mark.parametrize(("problems", "horizon", "whole"), [(1024, 2048, True), (65536, 64, True), (65536, 65, False)])
def test_all_steps_are_kept_where_there_is_room(problems, horizon, whole):
    most = 65536 * 64 * (16**2 + 1) * 4
    assert kept_steps(CHOSEN, problems, 16, horizon, 4, most).at_once == whole
    assert not kept_steps(FORMS["plain"], problems, 16, horizon, 4, most).at_once


def test_a_half_is_not_much_more_than_half():
    assert [kept_size(N, True) / N**2 for N in (4, 8, 16, 64)] == [1, 0.75, 0.625, 0.53125]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("n", "m", "lanes"), [(16, 16, (16, 32, 1)), (13, 20, (16, 64, 1)), (20, 7, (32, 32, 1))])
def test_four_actions_at_once(place, n, m, lanes):
    """More actions than lanes too, and a row of 32."""
    family = cast(draw("trained", tokens=2, heads=3, n=n, m=m), torch.float64)
    errors = errors_of(family, 5, place, form=FORMS["fours"], lanes=lanes)
    assert max(errors.values()) < 1e-11, errors
