"""Layers that write whole systems: context="system"."""

import copy

import pytest
import torch

from tests.raising import raises
from ttcnet.lqr import StationaryLQR, plan
from ttcnet.nn import TTCLayer, system
from ttcnet.nn.inserted import Inserted

OPTIONS = dict(heads=3, state_size=4, action_size=2, rank=5, horizon=6, context="system")


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return TTCLayer(24, **OPTIONS)


@pytest.fixture
def x():
    return torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(1))


def test_the_layer_computes_its_definition(layer, x):
    problem = layer.problem(x)
    assert isinstance(problem, StationaryLQR)
    assert problem.A.shape == (10, 3, 4, 4)
    problem.check()
    assert torch.linalg.eigvalsh(problem.Q).min() > -1e-6
    action = plan(problem, 6).flatten(1)
    assert torch.allclose(layer(x), x + layer.out(action).view_as(x), atol=1e-6)


def test_systems_are_linear_in_the_token_and_dense(layer):
    """Tokens of one length, so that their norm changes nothing: a middle one has the middle of two systems."""
    one, other = torch.nn.functional.normalize(torch.randn(2, 24), dim=-1)
    layer.norm = torch.nn.Identity()
    first, last, middle = (layer.problem(x.unsqueeze(0)) for x in (one, other, (one + other) / 2))
    for name in ("A", "B", "h0"):
        assert torch.allclose(getattr(middle, name), (getattr(first, name) + getattr(last, name)) / 2, atol=1e-6), name
        assert not torch.allclose(getattr(first, name), getattr(last, name), atol=1e-2), name
    assert (middle.A - torch.diag_embed(middle.A.diagonal(dim1=-2, dim2=-1))).abs().max() > 0.01


def test_the_size_of_actions_counts(layer, x):
    """Twice the state is twice the action; a norm would hide it."""
    with torch.no_grad():
        before = layer(x) - x
        layer.project.weight[:12] *= 2  # those of h0
        assert torch.allclose(layer(x) - x, 2 * before, atol=1e-5)


def test_horizons_plans_and_gradients(layer, x):
    assert torch.equal(layer(x, 0), x)
    assert not torch.allclose(layer(x, 1), layer(x, 8))
    y, solution = layer(x, 7, return_plan=True)
    assert solution.u.shape == (2, 5, 3, 7, 2)
    assert torch.allclose(y, layer(x, 7))
    assert torch.allclose(solution.u[..., 0, :].flatten(0, 1), plan(layer.problem(x), 7), atol=1e-5)
    layer(x, 5).square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in layer.parameters())


def test_paces_let_plans_settle_early_and_late():
    """With paces that are all 1, looking further than 16 steps changes nothing in a fresh layer."""
    torch.manual_seed(0)
    layer, x = TTCLayer(64, heads=2, state_size=8, rank=32, context="system"), torch.randn(256, 64)

    def moved():
        short, far = (plan(layer.problem(x), T) for T in (16, 64))
        return float((short - far).norm() / far.norm())

    with torch.no_grad():
        many = moved()
        layer.context.log_pace.zero_()
        assert many > 0.05 > 0.01 > moved()


def test_a_pace_is_a_step_of_a_continuous_system(layer, x):
    """Dynamics less the identity and costs are in proportion to it, actions to its root."""
    with torch.no_grad():
        layer.context.log_pace.fill_(-2.0)
        slow = layer.problem(x)
        layer.context.log_pace.zero_()
        fast = layer.problem(x)
    pace, one = torch.tensor(-2.0).exp(), torch.eye(4)
    torch.testing.assert_close(slow.A - one, pace * (fast.A - one), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(slow.B, pace.sqrt() * fast.B)
    torch.testing.assert_close(slow.Q, pace * fast.Q)


def test_compiled(layer, x):
    compiled = torch.compile(layer, backend="eager")
    assert torch.allclose(compiled(x, 6), layer(x, 6), atol=1e-5)


def test_saved_and_loaded(layer, x):
    other = TTCLayer(24, **OPTIONS)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    with raises("context", "context", "'token'"):
        TTCLayer(24, heads=3).load_state_dict(layer.state_dict())
    with raises("context", "context", "'system'"):
        copy.deepcopy(layer).load_state_dict(TTCLayer(24, heads=3).state_dict())


def test_an_mlp_of_its_size(layer):
    inserted = Inserted("mlp", {"width": 24, **OPTIONS})
    sizes = [sum(parameter.numel() for parameter in module.parameters()) for module in (layer, inserted)]
    assert abs(sizes[0] - sizes[1]) < 0.05 * sizes[0]


def test_unsupported_options():
    with raises("conflict", "time_homogeneous", "'pure'"):
        TTCLayer(24, heads=3, context="system", time_homogeneous="pure")
    with raises("backend", "backend", "fused"):
        TTCLayer(24, heads=3, context="system", backend="fused")(torch.zeros(1, 24))


def test_it_learns_a_planner():
    """Tokens spell out a system and a state, a planner takes the first action. An MLP of its size is far behind."""
    torch.manual_seed(0)
    n, tokens = 2, 4096
    A = torch.eye(n) + 0.5 * torch.randn(tokens, 1, n, n)
    B, h0 = torch.eye(n).expand(tokens, 1, n, n), torch.randn(tokens, 1, n)
    problem = StationaryLQR(A=A, B=B, Q=torch.eye(n).expand(tokens, 1, n, n), r_inv=torch.ones(tokens, 1, n), h0=h0)
    target = plan(problem, 8).squeeze(1)
    token = torch.cat([2 * (A.flatten(1) - torch.eye(n).flatten()), h0.flatten(1)], 1)
    left = {}
    for name in ("ttc", "mlp"):
        options = dict(heads=2, state_size=4, rank=8, context="system")
        layer = TTCLayer(32, **options) if name == "ttc" else Inserted("mlp", {"width": 32, **options})
        model = torch.nn.ModuleList([torch.nn.Linear(6, 32), layer, torch.nn.Linear(32, n)])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(300):
            rows = slice(256 * step % (tokens - 1024), 256 * step % (tokens - 1024) + 256)
            loss = (_answer(model, token[rows]) - target[rows]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            fresh = slice(tokens - 1024, tokens)
            left[name] = float((_answer(model, token[fresh]) - target[fresh]).square().mean() / target[fresh].var())
    assert left["ttc"] < 0.5 * left["mlp"], left


def _answer(model, x):
    x = model[0](x)
    x = model[1](x, 8) if isinstance(model[1], TTCLayer) else x + model[1](x.unsqueeze(0)).squeeze(0)
    return model[2](x)


def test_many_tokens_are_written_in_pieces(layer, monkeypatch):
    x = torch.randn(50, 24, generator=torch.Generator().manual_seed(1))

    def everything():
        y = layer(x)
        return [y, *torch.autograd.grad(y.square().sum(), list(layer.parameters()))]

    whole, sizes = everything(), []
    inner = system.SystemContext._problems
    monkeypatch.setattr(
        system.SystemContext, "_problems", lambda self, some: (sizes.append(len(some)), inner(self, some))[1]
    )
    monkeypatch.setattr(system, "PIECE", 3 * 4 * 4 * 20)
    paused = []
    monkeypatch.setattr(system, "pause", lambda g: paused.append(g.shape[0]))
    for one, other in zip(whole, everything(), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4 * float(one.detach().abs().max()))
    assert sizes == [20, 20, 10]
    assert set(paused) == {20, 10}, "Python had its moments in the backward pass"
