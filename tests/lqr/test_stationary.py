"""Problems that are the same at every step: `plan` by doubling against `solve` step by step."""

import math
from dataclasses import fields, replace

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from tests.raising import raises
from ttcnet.lqr import StationaryLQR, plan, solve, stationary, stationary_ops
from ttcnet.lqr.stationary import first_actions

HORIZONS = [1, 2, 3, 8, 17, 40]
FIELDS = [field.name for field in fields(StationaryLQR)]


def draw(n, m, *, shared=False, growth=1.1, scale=1.0, rank=None, tokens=3, heads=2, dtype=torch.float64, seed=0):
    """Rotations times `growth`, costs of order one (of this rank), r_inv of order `scale`."""
    random = torch.Generator().manual_seed(seed)
    lead = (tokens,) if shared else (tokens, heads)

    def normal(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    def cost(*lead):
        C = normal(*lead, n, rank or n) * n**-0.5
        return C @ C.mT

    family = StationaryLQR(
        A=growth * torch.linalg.qr(normal(*lead, n, n))[0],
        B=normal(*lead, n, m) * n**-0.5,
        Q=cost(*lead),
        Qf=cost(tokens, heads),
        r_inv=scale * (0.1 + torch.rand(tokens, heads, m, generator=random, dtype=torch.float64)),
        h0=normal(tokens, heads, n),
    )
    return StationaryLQR(**{name: getattr(family, name).to(dtype) for name in FIELDS})


def differentiated(family, compute):
    """u and the gradient of every field, for a fixed loss."""
    leaves = {name: getattr(family, name).detach().clone().requires_grad_() for name in FIELDS}
    u = compute(StationaryLQR(**leaves))
    weights = torch.linspace(-1, 1, u.numel(), dtype=u.dtype).view(u.shape)
    grads = torch.autograd.grad((u * weights).sum(), [*leaves.values()], materialize_grads=True)  # Q has none at T = 1
    return {"u": u.detach(), **dict(zip(FIELDS, grads, strict=True))}


def by_steps(horizon):
    return lambda family: solve(family.unroll(horizon)).u[..., 0, :]


def error(found, truth):
    found, truth = found.detach().double(), truth.detach().double()
    return float((found - truth).norm() / truth.norm().clamp_min(1e-300))


@pytest.mark.parametrize("horizon", HORIZONS)
@pytest.mark.parametrize(("n", "m", "shared"), [(1, 1, False), (5, 3, True), (3, 5, False), (16, 16, True)])
def test_the_same_as_step_by_step(n, m, shared, horizon):
    family = draw(n, m, shared=shared)
    found = differentiated(family, lambda problems: plan(problems, horizon))
    truth = differentiated(family, by_steps(horizon))
    for name in found:
        symmetric = truth[name] if name[0] != "Q" else (truth[name] + truth[name].mT) / 2
        assert error(found[name], symmetric) < 1e-10, name


def test_a_horizon_of_every_token():
    family, own = draw(4, 2, tokens=5), [1, 2, 7, 8, 32]
    found = differentiated(family, lambda problems: first_actions(problems, torch.tensor(own)))
    truth = [differentiated(family, lambda problems, T=T: plan(problems, T))["u"][place] for place, T in enumerate(own)]
    assert error(found["u"], torch.stack(truth)) < 1e-12
    assert all(x.isfinite().all() for x in found.values())


def test_without_a_terminal_cost_the_last_step_is_like_the_others():
    family = draw(4, 2)
    assert torch.equal(plan(replace(family, Qf=None), 5), plan(replace(family, Qf=family.Q), 5))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize(
    ("n", "m", "rank", "growth"), [(1, 1, None, 1.1), (5, 3, None, 1.5), (3, 5, 1, 0.5), (16, 7, 4, 1.1)]
)
def test_digits_of_float32(n, m, rank, growth, scale):
    """An error of 200 times the effect of a rounding of the inputs, or 1e-5 in u and 1e-4 in a gradient."""
    family = draw(n, m, rank=rank, growth=growth, scale=scale, dtype=torch.float32)
    exact = StationaryLQR(**{name: getattr(family, name).double() for name in FIELDS})
    random = torch.Generator().manual_seed(1)

    def moved(name):
        x = getattr(exact, name)
        x = x * (1 + 2**-24 * (2 * torch.rand(x.shape, generator=random, dtype=x.dtype) - 1))
        return (x + x.mT) / 2 if name[0] == "Q" else x

    for horizon in (1, 2, 17):
        truth = differentiated(exact, by_steps(horizon))
        nearby = differentiated(StationaryLQR(**{name: moved(name) for name in FIELDS}), by_steps(horizon))
        found = differentiated(family, lambda problems, T=horizon: plan(problems, T))
        for name in found:
            bar = max(200 * error(nearby[name], truth[name]), 1e-5 if name == "u" else 1e-4)
            assert error(found[name], truth[name]) <= bar, (horizon, name)


def test_a_gradient_beyond_its_digits_is_announced():
    """Q is zero, and all cost is that of the end of a long horizon over which states grow."""
    family, horizon = draw(5, 1, growth=1.5), 60

    def quality(family):
        truth = differentiated(family, by_steps(horizon))
        found = differentiated(family, lambda problems: plan(problems, horizon))
        return {name: error(found[name], truth[name]) for name in found}

    with pytest.warns(RuntimeWarning, match="gradient of Q loses its digits in problem"):
        errors = quality(replace(family, Q=0 * family.Q))
    assert errors["Q"] > 1e-3
    assert max(errors[name] for name in ("u", "A", "B", "h0")) < 1e-10
    assert quality(replace(family, Q=1e-8 * family.Q))["Q"] < 1e-4  # without a word: a warning would be an error
    plan(replace(family, Q=0 * family.Q), horizon)


def test_an_action_that_costs_too_much_is_not_taken():
    family = draw(4, 3)
    family.r_inv[..., 1] = 0
    found = differentiated(family, lambda problems: plan(problems, 6))
    assert (found["u"][..., 1] == 0).all()
    assert all(x.isfinite().all() for name, x in found.items() if name != "r_inv")
    without = replace(family, B=family.B[..., ::2], r_inv=family.r_inv[..., ::2])
    assert torch.allclose(found["u"][..., ::2], plan(without, 6))


def test_half_precision_and_no_horizon():
    family = draw(4, 2, dtype=torch.bfloat16)
    assert plan(family, 8, check=False).dtype == torch.bfloat16
    assert (plan(family, 0) == 0).all()


def test_a_problem_with_nan_leaves_the_others_alone():
    family = draw(4, 2)
    family.A[1, 0, 0, 0] = math.nan
    u = plan(family, 8, check=False)
    assert u[1, 0].isnan().all()
    assert u[0].isfinite().all()
    assert u[1, 1].isfinite().all()


def test_pieces_are_the_same_to_the_bit(monkeypatch):
    family, calls, pauses = draw(4, 2, tokens=7, shared=True), [], []
    whole = differentiated(family, lambda problems: plan(problems, 9))
    monkeypatch.setattr(stationary, "PIECE", 2 * 2 * 4**3)  # two tokens
    compute = stationary._first_actions
    monkeypatch.setattr(stationary, "_first_actions", lambda *given: calls.append(0) or compute(*given))
    monkeypatch.setattr(stationary, "pause", lambda g: pauses.append(0))
    pieces = differentiated(family, lambda problems: plan(problems, 9))
    assert len(calls) == len(pauses) == 4, "Ctrl-C is answered between them, forward and backward"
    assert torch.equal(pieces["u"], whole["u"])
    for name in whole:
        torch.testing.assert_close(pieces[name], whole[name])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # by opcheck of torch 2.15
def test_the_operator():
    family = draw(3, 2, tokens=2)
    for end in (family.Qf, None):
        leaves = [getattr(family, name).requires_grad_() for name in stationary_ops.FIELDS[:-1]]
        torch.library.opcheck(torch.ops.ttcnet.plan_stationary, (*leaves, end, 6))


def test_one_graph_for_all_horizons():
    family, graphs = draw(3, 2, tokens=2), []

    def compiler(graph, inputs):
        graphs.append(graph)
        return make_boxed_func(graph)

    compiled = torch.compile(plan, backend=aot_autograd(fw_compiler=compiler, bw_compiler=compiler))
    for horizon in (1, *range(3, 20)):
        found = differentiated(family, lambda problems, T=horizon: compiled(problems, T))
        truth = differentiated(family, lambda problems, T=horizon: plan(problems, T))
        for name in found:
            torch.testing.assert_close(found[name], truth[name], msg=f"{name} at {horizon}")
    assert len(graphs) <= 4, "two for the first horizon, two for all others"


def test_transforms():
    family, horizon = draw(3, 2, tokens=2), 5

    def of_states(h0):
        return plan(replace(family, h0=h0), horizon)

    whole = torch.func.jacrev(of_states)(family.h0)
    assert torch.allclose(torch.einsum("abcdef,def->abc", whole, family.h0), of_states(family.h0))  # linear in h0
    many = torch.stack([family.h0, 2 * family.h0])
    assert torch.allclose(torch.func.vmap(of_states)(many), torch.stack([of_states(h0) for h0 in many]))


@pytest.mark.parametrize(
    ("field", "change", "code"),
    [
        ("A", lambda x: x[..., :-1], "shape"),
        ("h0", lambda x: x[0], "shape"),
        ("r_inv", lambda x: -x, "negative"),
        ("Q", lambda x: x + torch.triu(torch.ones_like(x)), "not-symmetric"),
        ("B", lambda x: x * math.inf, "not-finite"),
        ("Qf", lambda x: x.float(), "dtype"),
    ],
)
def test_bad_input(field, change, code):
    family = draw(4, 2)
    with raises(code, field):
        plan(replace(family, **{field: change(getattr(family, field))}), 4)


@pytest.mark.parametrize("backend", ["fused", "symplectic"])
def test_backends_that_have_no_solver_say_so(backend):
    with raises("backend", "backend", backend):
        plan(draw(4, 2), 4, backend)
