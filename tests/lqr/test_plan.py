"""`plan`: right in float64, accurate in float32, and the same whatever surrounds it."""

from dataclasses import replace
from functools import partial
from importlib import import_module

import pytest
import torch
from torch.autograd import forward_ad

from tests.raising import raises
from ttcnet.lqr import ModulatedLQR, backends, solve
from ttcnet.lqr import plan as plan_with
from ttcnet.testing.errors import NAMES, cast, differentiate, relative_errors, weights
from ttcnet.testing.regimes import REGIMES, draw

SHAPES = [(1, 1), (5, 3), (3, 5), (16, 16), (2, 1)]


@pytest.fixture(params=["reference", "fused"])
def plan(request):
    """Every test here holds for every backend that claims to be exact."""
    return partial(plan_with, backend=request.param)


def by_riccati(family, horizon):
    return solve(family.unroll(horizon)).u[..., 0, :]


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_equals_autograd_through_riccati(plan, regime, per_head, n, m):
    family = cast(draw(regime, tokens=3, heads=2, n=n, m=m, per_head=per_head), torch.float64)
    g = weights(family)
    for horizon in (1, 2, 3, 9, 17):
        errors = relative_errors(differentiate(plan, family, horizon, g), differentiate(by_riccati, family, horizon, g))
        assert max(errors.values()) < 1e-9, (horizon, errors)


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(plan, name):
    family = draw("trained", tokens=2, heads=2, n=3, m=2)

    def first_action(value):
        if name in ("Q", "Qf"):
            value = (value + value.mT) / 2
        return plan(replace(family, **{name: value}), 5, check=False)

    assert torch.autograd.gradcheck(first_action, (getattr(family, name).clone().requires_grad_(),))


@pytest.mark.parametrize("size", ["(N, H, n)", "(N, H, 1)"])
def test_decay_of_A_per_state_or_per_head(plan, size):
    family = draw("trained", n=4)
    rate = family.decay_A.expand(-1, -1, 4).clone() if size == "(N, H, n)" else family.decay_A
    family = cast(replace(family, decay_A=rate), torch.float64)
    g = weights(family)
    errors = relative_errors(differentiate(plan, family, 6, g), differentiate(by_riccati, family, 6, g))
    assert max(errors.values()) < 1e-9, errors


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("horizon", [1, 2, 3, 8, 31, 64, 256])
def test_float32_is_accurate(plan, regime, horizon):
    for seed in range(3 if horizon < 256 else 1):
        single = cast(draw(regime, tokens=8, heads=4, seed=seed), torch.float32)
        exact, g = cast(single, torch.float64), weights(single)
        errors = relative_errors(differentiate(plan, single, horizon, g), differentiate(plan, exact, horizon, g))
        assert errors.pop("u") <= 1e-5
        assert max(errors.values()) <= 1e-4, errors


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-12, 1e-6])
def test_actions_that_cost_too_much(plan, scale):
    """r_inv of zero and nearly zero: no action, and a finite, exact gradient of r_inv itself."""
    family = draw("trained", n=4, m=3)
    r_inv = family.r_inv.clone()
    r_inv[..., 1] *= scale
    family = cast(replace(family, r_inv=r_inv), torch.float64)
    g = weights(family)
    found = differentiate(plan, family, 6, g)
    assert found["u"].isfinite().all()
    assert (found["u"][..., 1].abs() <= scale * 1e3).all()
    truth = differentiate(by_riccati, family, 6, g)
    if scale == 0.0:  # where the gradient of 1 / r_inv does not exist, a one-sided difference does
        step = 1e-6 * torch.eye(3, dtype=torch.float64)[1]
        ahead = plan(replace(family, r_inv=family.r_inv + step), 6) - found["u"]
        slope = (g * ahead).sum(-1) / 1e-6
        torch.testing.assert_close(found["r_inv"][..., 1], slope, rtol=1e-4, atol=1e-8)
        found["r_inv"], truth["r_inv"] = (x["r_inv"][..., [0, 2]] for x in (found, truth))
    assert max(relative_errors(found, truth).values()) < 1e-7


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e6])
def test_gradient_of_r_inv_where_the_loop_is_closed_hard(plan, scale):
    """B'λ~ + g is nearly zero when actions are cheap against the state's cost: it must not be found as a sum."""
    family = draw("trained", n=5, m=3, seed=5)
    single = cast(replace(family, Q=scale * family.Q, Qf=scale * family.Qf), torch.float32)
    exact, g = cast(single, torch.float64), weights(single)
    errors = relative_errors(differentiate(plan, single, 1, g), differentiate(plan, exact, 1, g))
    assert errors["r_inv"] < 1e-5


def test_unrolling_r_inv_next_to_zero():
    family = draw("trained", n=4, m=3)
    for tiny in (1e-40, 4e-39, 1e-38):
        single = cast(replace(family, r_inv=family.r_inv * tiny), torch.float32)
        assert solve(single.unroll(4)).u.abs().max() < 1e-30


def test_long_horizons(plan):
    for regime in ("slow", "constant", "singular"):
        single = cast(draw(regime, n=5, m=3), torch.float32)
        exact, g = cast(single, torch.float64), weights(single)
        errors = relative_errors(differentiate(plan, single, 512, g), differentiate(by_riccati, exact, 512, g))
        assert errors["u"] < 1e-4
        assert max(errors.values()) < 1e-3, errors


def test_horizon_zero_plans_nothing(plan):
    family = cast(draw("trained"), torch.float32)
    u = plan(family, 0)
    assert u.shape == family.r_inv.shape
    assert not u.any()
    u.sum().backward()  # part of the graph, like any other plan
    assert not family.r_inv.grad.any()


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize(("tokens", "heads"), [(0, 2), (2, 0), (0, 0)])
def test_no_problems_at_all(plan, tokens, heads, per_head):
    family = draw("trained", tokens, heads, n=4, m=3, per_head=per_head)
    family.Q.requires_grad_()
    u = plan(family, 5)
    assert u.shape == (tokens, heads, 3)
    u.sum().backward()
    assert family.Q.grad.shape == family.Q.shape
    assert solve(family.unroll(5)).u.shape == (tokens, heads, 5, 3)


def test_shapes_alone_on_the_meta_device():
    family = ModulatedLQR(**{name: x.to("meta") for name, x in vars(draw("trained", n=4, m=3)).items()})
    assert plan_with(family, 5).shape == family.r_inv.shape


def test_forward_mode_is_refused_and_not_dropped(plan):
    family = draw("trained", n=4)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(family.h0.detach(), torch.ones_like(family.h0))
        with raises("no-derivative", "plan", "jvp"):
            plan(ModulatedLQR(**{**vars(family), "h0": dual}), 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_in_float32_inside(plan, dtype):
    half = cast(draw("trained"), dtype)
    g = weights(half)
    found = differentiate(plan, half, 8, g)
    truth = differentiate(plan, cast(half, torch.float64), 8, g)
    assert {x.dtype for x in found.values()} == {dtype}
    eps = torch.finfo(dtype).eps
    for name, error in relative_errors(found, truth).items():
        assert error < eps, name  # nothing is lost but the rounding of inputs and outputs


def test_autocast_around_it_changes_nothing(plan):
    family = cast(draw("trained"), torch.float32)
    g = weights(family)
    plain = differentiate(plan, family, 8, g)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = differentiate(plan, family, 8, g)
        states = solve(family.unroll(8)).h
    for name, value in plain.items():
        assert torch.equal(mixed[name], value), name
    assert torch.equal(states, solve(family.unroll(8)).h)


def test_gradients_of_Q_and_Qf_are_symmetric(plan):
    family = cast(draw("trained"), torch.float32)
    found = differentiate(plan, family, 8, weights(family))
    assert torch.equal(found["Q"], found["Q"].mT)
    assert torch.equal(found["Qf"], found["Qf"].mT)


def test_same_bits_twice(plan):
    family = cast(draw("slow"), torch.float32)
    first, second = (differentiate(plan, family, 33, weights(family)) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_memory_between_the_passes_grows_with_the_root_of_the_horizon(plan):
    def stored(horizon):
        sizes = []

        def pack(tensor):
            sizes.append(tensor.numel())
            return tensor

        family = cast(draw("trained"), torch.float32)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            plan(family, horizon)
        return sum(sizes) - sum(getattr(family, name).numel() for name in NAMES)

    one = draw("trained").Qf.numel()
    assert stored(4) <= 2 * one
    assert stored(100) <= 10 * one
    assert stored(400) <= 20 * one


@pytest.mark.parametrize("poison", ["a", "B", "Q", "Qf", "r_inv", "decay_A", "decay_B", "decay_Q", "h0"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_problem_leaves_the_others_alone(plan, poison, value):
    """Unchecked, a NaN or an infinity in one token spoils that token only, and all of it."""
    family = cast(draw("trained", tokens=3, n=4), torch.float32)
    clean = plan(family, 6)
    spoiled = getattr(family, poison).detach().clone()
    spoiled[1].flatten()[0] = value
    dirty = plan(replace(family, **{poison: spoiled}), 6, check=False)
    assert torch.equal(dirty[[0, 2]], clean[[0, 2]])
    if value != value:
        assert dirty[1, 0].isnan().all()


def test_an_indefinite_cost_is_reported(plan):
    family = draw("trained", n=4)
    family = replace(family, Qf=family.Qf - 100 * torch.eye(4))
    with raises("not-positive", "Qf", r"no minimum in problem \(0, 0\)"):
        plan(family, 4)
    assert plan(family, 4, check=False).isnan().all()
    family = draw("trained", n=1)
    assert plan(replace(family, Qf=family.Qf - 1e6), 1, check=False).isnan().all()  # a single action, too


def test_backends_agree():
    family = draw("trained", n=4)
    truth = plan_with(family, 8, backend="reference")
    torch.testing.assert_close(plan_with(family, 8, backend="symplectic"), truth, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(plan_with(family, 8, backend="auto"), truth, rtol=1e-7, atol=1e-9)
    assert set(backends()) == {"reference", "fused on cuda", "fused on cpu", "symplectic", "symplectic on cuda"}


# torch 2.15 reads the gradients of what it traces, and warns itself of that
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_operators_are_well_behaved():
    """Schema, fake tensors, autograd registration and tracing, checked by torch itself."""
    family = cast(draw("trained", tokens=2, heads=2, n=4, m=3), torch.float32)
    tensors = [getattr(family, name) for name in NAMES]
    torch.library.opcheck(torch.ops.ttcnet.plan, (*tensors, 5, True, "reference"))
    u, kept = torch.ops.ttcnet.plan(*tensors, 5, True, "reference")
    detached = [x.detach() for x in (*tensors, kept, u)]
    torch.library.opcheck(torch.ops.ttcnet.plan_backward, (*detached, 5, "reference"))


def test_compiled_training_plans_once(monkeypatch):
    """The backward pass uses the check-points of the forward pass, and does not plan again."""
    backend, asked = import_module("ttcnet.lqr.reference"), []
    forward = backend.forward
    monkeypatch.setattr(backend, "forward", lambda *args: asked.append(args[-1]) or forward(*args))
    family = cast(draw("trained", tokens=2, heads=2, n=4), torch.float32)
    family = replace(family, a=family.a.requires_grad_())
    compiled = torch.compile(lambda x: plan_with(x, 4, backend="reference"), backend="aot_eager", fullgraph=True)
    compiled(family).sum().backward()
    assert asked == [True]


def test_compiles_whole():
    family = cast(draw("trained", tokens=2, heads=2, n=4, m=3), torch.float32)
    g = weights(family)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(family, horizon):
        return plan_with(ModulatedLQR(**{name: 1 * getattr(family, name) for name in NAMES}), horizon)

    truth, found = differentiate(plan_with, family, 5, g), differentiate(compiled, family, 5, g)
    assert all(torch.equal(found[name], truth[name]) for name in truth)


def test_the_family_unrolled_is_the_problem_it_says():
    family = draw("trained", tokens=1, heads=1, n=3, m=2)
    problem = family.unroll(4)
    for t in (1, 2, 3, 4):
        fade = torch.exp(-t * family.decay_Q[0, 0])
        torch.testing.assert_close(problem.A[0, 0, t - 1], 1 + torch.exp(-t * family.decay_A[0, 0]) * family.a[0, 0])
        torch.testing.assert_close(problem.B[0, 0, t - 1], family.B[0] * torch.exp(-t * family.decay_B[0, 0]))
        running = torch.diag(fade) @ family.Q[0] @ torch.diag(fade)
        torch.testing.assert_close(problem.Q[0, 0, t - 1], family.Qf[0, 0] if t == 4 else running)
        torch.testing.assert_close(problem.R[0, 0, t - 1], 1 / family.r_inv[0, 0])
    assert isinstance(family, ModulatedLQR)
