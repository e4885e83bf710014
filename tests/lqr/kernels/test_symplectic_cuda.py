"""The CUDA kernels of the symplectic iteration: their source on the CPU, by the emulator, and themselves on a GPU
(marked `gpu`).

Outputs are allocated full of NaN, so that whatever a kernel forgets to write shows. Exactness is tested where the
iteration has digits to keep; where it loses them, so must the kernels, and no more than the same iteration in PyTorch.
"""

import math
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from tests.lqr import emulator
from ttcnet.lqr import ops, plan
from ttcnet.lqr.kernels import fused_cuda, nvrtc, symplectic_cuda
from ttcnet.lqr.modulated import Family
from ttcnet.lqr.plan import _has_symplectic_kernels
from ttcnet.testing.errors import NAMES, cast, differentiate, relative_errors, weights
from ttcnet.testing.memory import unwritten_is_nan
from ttcnet.testing.regimes import draw

needs_compiler = pytest.mark.skipif(emulator.COMPILER is None, reason="the emulator needs g++")
PLACES = [pytest.param("cpu", marks=needs_compiler), pytest.param("cuda", marks=pytest.mark.gpu)]


def run_kernels(family, horizon, g, place, lanes=None):
    """The first actions and all gradients, by the kernels; `lanes` overrides lanes, threads and blocks."""
    if place == "cuda":
        from ttcnet.lqr.kernels.nvrtc import run
    else:
        run = emulator.run
    ready = Family(**{name: getattr(family, name).detach().to(place).contiguous() for name in NAMES})
    symplectic_cuda._shaped.cache_clear()
    with (
        patch.object(symplectic_cuda, "_lanes", (lambda *_: lanes) if lanes else symplectic_cuda._lanes),
        unwritten_is_nan(),
    ):
        u, kept = symplectic_cuda.forward(ready, horizon, True, run)
        without, nothing = symplectic_cuda.forward(ready, horizon, False, run)
        grads = symplectic_cuda.backward(ready, horizon, kept, g.to(u), run)
    symplectic_cuda._shaped.cache_clear()
    assert kept.shape == symplectic_cuda.checkpoints(ready, horizon)
    assert torch.equal(u.nan_to_num(), without.nan_to_num())
    assert not nothing.numel()
    whole = [grad if grad.ndim == x.ndim else grad.sum(1) for grad, x in zip(grads, ready, strict=True)]
    return {"u": u.cpu()} | {name: grad.cpu() for name, grad in zip(NAMES, whole, strict=True)}


def reference(family, horizon):
    return plan(family, horizon, backend="reference", check=False)


def symplectic(family, horizon):
    return plan(family, horizon, backend="symplectic", check=False)


def errors_of(family, horizon, place, lanes=None):
    g = weights(family)
    truth = differentiate(reference, cast(family, torch.float64), horizon, g)
    return relative_errors(run_kernels(family, horizon, g, place, lanes), truth)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("regime", "n", "m", "horizon", "per_head"),
    [
        ("trained", 4, 4, 1, False),
        ("trained", 1, 1, 5, True),
        ("trained", 5, 3, 4, False),
        ("trained", 3, 5, 4, True),
        ("trained", 2, 40, 3, False),
        ("fresh", 4, 4, 1, True),
        ("fresh", 5, 3, 33, False),
        ("fresh", 8, 8, 17, False),
        ("fresh", 16, 4, 8, True),
        ("fresh", 16, 16, 8, False),
    ],
)
def test_exact_in_float64(place, regime, n, m, horizon, per_head):
    family = draw(regime, tokens=3, heads=3, n=n, m=m, per_head=per_head)
    errors = errors_of(cast(family, torch.float64), horizon, place)
    assert max(errors.values()) < 1e-11, errors


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("n", "m"), [(32, 32), (64, 33)])
def test_large_problems(place, n, m):
    errors = errors_of(cast(draw("fresh", tokens=1, heads=2, n=n, m=m), torch.float64), 3, place)
    assert max(errors.values()) < 1e-11, errors


@pytest.mark.parametrize("place", PLACES)
def test_accurate_in_float32_where_plans_hardly_act(place):
    errors = errors_of(cast(draw("fresh", tokens=2, heads=3), torch.float32), 8, place)
    assert max(errors.values()) < 2e-6, errors


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("regime", "horizon"), [("trained", 4), ("slow", 2)])
def test_loses_no_more_digits_than_in_pytorch(place, regime, horizon):
    """The mean digits of a few draws, because a single one says little where many digits are lost."""
    digits = {"kernels": 0.0, "pytorch": 0.0}
    for seed in range(4):
        family = cast(draw(regime, tokens=4, heads=4, seed=seed), torch.float32)
        g = weights(family)
        truth = differentiate(reference, cast(family, torch.float64), horizon, g)
        found = {
            "kernels": run_kernels(family, horizon, g, place),
            "pytorch": differentiate(symplectic, family, horizon, g),
        }
        for name, values in found.items():
            digits[name] -= math.log10(max(relative_errors(values, truth).values())) / 4
    assert digits["kernels"] > digits["pytorch"] - math.log10(2), digits


@pytest.mark.parametrize("place", PLACES)
def test_decay_of_A_per_state(place):
    family = draw("trained", tokens=2, heads=2, n=4)
    family = replace(family, decay_A=family.decay_A * torch.linspace(0.5, 1.5, 4, dtype=torch.float64))
    errors = errors_of(cast(family, torch.float64), 4, place)
    assert max(errors.values()) < 1e-11, errors


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("n", "lanes"),
    [(8, (1, 32, 1)), (8, (2, 32, 1)), (8, (4, 64, 1)), (8, (8, 32, 1)), (16, (4, 128, 1)), (16, (8, 128, 1))],
)
def test_any_number_of_lanes(place, n, lanes):
    """Five tokens of three heads leave some groups of the last block without a problem."""
    errors = errors_of(cast(draw("trained", tokens=5, heads=3, n=n, m=n - 2), torch.float64), 3, place, lanes)
    assert max(errors.values()) < 1e-11, errors


@pytest.mark.parametrize("place", PLACES)
def test_expensive_actions(place):
    family = draw("trained", tokens=2, heads=2, n=4, m=3)
    family = replace(family, r_inv=family.r_inv * torch.tensor([1.0, 0.0, 1e-20]))
    errors = errors_of(cast(family, torch.float64), 4, place)
    assert max(errors.values()) < 1e-11, errors


@pytest.mark.parametrize("place", PLACES)
def test_gradients_of_Q_and_Qf_are_symmetric(place):
    family = cast(draw("trained", tokens=2, heads=2, n=5, m=3), torch.float32)
    found = run_kernels(family, 4, weights(family), place)
    assert torch.equal(found["Q"], found["Q"].mT)
    assert torch.equal(found["Qf"], found["Qf"].mT)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("horizon", [1, 6])
@pytest.mark.parametrize("name", ["h0", "a"])
def test_a_bad_problem_leaves_the_others_alone(place, horizon, name):
    """A NaN in h0, and a zero on the diagonal of A, which this method divides by."""
    family = draw("trained", tokens=3, heads=2, n=4)
    family = cast(replace(family, decay_A=0 * family.decay_A), torch.float32)
    g = weights(family)
    clean = run_kernels(family, horizon, g, place)
    spoiled = getattr(family, name).detach().clone()
    spoiled[1, 0, 2] = -1 if name == "a" else float("nan")
    dirty = run_kernels(replace(family, **{name: spoiled}), horizon, g, place)
    assert not dirty["u"][1, 0].isfinite().any()
    for field in ("u", "a", "r_inv", "Qf", "h0", "decay_Q"):
        assert torch.equal(dirty[field][1, 1], clean[field][1, 1]), field
        assert torch.equal(dirty[field][[0, 2]], clean[field][[0, 2]]), field


@needs_compiler
# torch 2.15 reads the gradients of what it traces, and warns itself of that
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_the_operator_runs_them():
    """All the way from plan's operator to the kernels and back: autograd, fake tensors, schema."""
    family = cast(draw("trained", tokens=2, heads=2, n=5, m=3), torch.float64)
    g = weights(family)
    with patch.object(nvrtc, "run", emulator.run), patch.object(ops, "_module", lambda *_: symplectic_cuda):
        found = differentiate(lambda family, horizon: ops.plan(family, horizon, "symplectic"), family, 3, g)
        single = [getattr(cast(family, torch.float32), name) for name in NAMES]
        torch.library.opcheck(torch.ops.ttcnet.plan, (*single, 3, True, "symplectic"))
        u, kept = torch.ops.ttcnet.plan(*single, 3, True, "symplectic")
        detached = [x.detach() for x in (*single, kept, u)]
        torch.library.opcheck(torch.ops.ttcnet.plan_backward, (*detached, 3, "symplectic"))
    errors = relative_errors(found, differentiate(reference, family, 3, g))
    assert max(errors.values()) < 1e-11, errors


@pytest.mark.parametrize(
    ("device", "size", "checked", "taken"),
    [("cuda", 64, False, True), ("cuda", 65, False, False), ("cuda", 16, True, False), ("cpu", 16, False, False)],
)
def test_where_plan_takes_them(device, size, checked, taken):
    family = SimpleNamespace(a=SimpleNamespace(device=torch.device(device)), state_size=size, action_size=4)
    with patch.object(fused_cuda, "why_not", lambda: None):
        assert _has_symplectic_kernels(family, checked) == taken
    with patch.object(fused_cuda, "why_not", lambda: "there is no GPU"):
        assert not _has_symplectic_kernels(family, checked)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_plan_takes_the_kernels_on_a_gpu(dtype):
    family = cast(draw("trained", n=8, m=4), dtype, "cuda")
    g = weights(family)
    with patch.object(symplectic_cuda, "forward", wraps=symplectic_cuda.forward) as forward:
        found = differentiate(symplectic, family, 4, g)
    forward.assert_called_once()
    assert {x.dtype for x in found.values()} == {dtype}
    truth = differentiate(reference, cast(family, torch.float64, "cuda"), 4, g)
    tolerance = {torch.bfloat16: 8e-3, torch.float32: 5e-5, torch.float64: 1e-12}[dtype]
    assert max(relative_errors(found, truth).values()) < tolerance
    again = differentiate(symplectic, family, 4, g)
    assert all(torch.equal(found[name], again[name]) for name in found)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_waits_for_the_gpu():
    family = cast(draw("fresh"), torch.float32, "cuda")
    g = weights(family).to("cuda", torch.float32)
    differentiate(symplectic, family, 8, g)
    try:
        torch.cuda.set_sync_debug_mode("error")
        differentiate(symplectic, family, 8, g)
    finally:
        torch.cuda.set_sync_debug_mode("default")
