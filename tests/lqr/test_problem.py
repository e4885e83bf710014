"""The whole problem class: terms, shared fields, references, gains, and torch.func over every method."""

from dataclasses import replace

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, vmap

from tests.raising import raises
from ttcnet.lqr import LQR, solve
from ttcnet.testing.problems import random_problem

METHODS = [("riccati", None), ("riccati", False), ("riccati", True), ("kkt", None), ("symplectic", None)]
PARTS = ("u", "h", "costate", "cost")


def close(found, truth, rtol=1e-9):
    torch.testing.assert_close(found, truth, rtol=rtol, atol=rtol)


@pytest.mark.parametrize(("method", "implicit"), METHODS[:4])
def test_gains_hold_from_any_state(method, implicit):
    problem = random_problem((2,), 6, 3, 2, affine=True)
    solution = solve(problem, method, implicit=implicit, gains=True)
    T = problem.horizon
    assert solution.K.shape == (2, T, 2, 3)
    assert solution.P.shape == (2, T + 1, 3, 3)
    assert torch.equal(solution.P, solution.P.mT)
    close(solution.P[:, -1], problem.Q[:, -1])
    close((solution.P @ solution.h.unsqueeze(-1)).squeeze(-1) + solution.p, solution.costate)
    close((solution.K @ solution.h[:, :-1].unsqueeze(-1)).squeeze(-1) + solution.k, solution.u)
    elsewhere = replace(problem, h0=problem.h0 + 3)
    moved = solve(elsewhere, method)
    close((solution.K[:, 0] @ elsewhere.h0.unsqueeze(-1)).squeeze(-1) + solution.k[:, 0], moved.u[:, 0])
    close((solution.P[:, 0] @ elsewhere.h0.unsqueeze(-1)).squeeze(-1) + solution.p[:, 0], moved.costate[:, 0])


def test_gains_come_on_request_and_not_from_the_symplectic_method():
    problem = random_problem((), 3, 2, 2)
    assert solve(problem).K is None
    with raises("conflict", "gains"):
        solve(problem, "symplectic", gains=True)


@pytest.mark.parametrize(("method", "implicit"), METHODS)
def test_shared_fields_equal_expanded_ones(method, implicit):
    T, n, m = 5, 3, 2
    generator = torch.Generator().manual_seed(0)
    one = random_problem((2,), 1, n, m, affine=True, seed=6)
    fields = {name: x.clone().requires_grad_() for name, x in one.given().items()}
    end = torch.eye(n, dtype=torch.float64).expand(2, n, n).clone().requires_grad_()
    whole = {name: x if name == "h0" else x.expand(2, T, *x.shape[2:]) for name, x in fields.items()}
    whole["Q"] = torch.cat([whole["Q"][:, :-1], end.unsqueeze(1)], 1)
    problems = (LQR(**fields, Qf=end, horizon=T), LQR(**whole))
    leaves, results = [*fields.values(), end], []
    for problem in problems:
        solution = solve(problem, method, implicit=implicit)
        assert solution.residual(problem) is not None
        weights = torch.randn(2, T, m, generator=generator.manual_seed(1), dtype=torch.float64)
        loss = (weights * solution.u).sum() + solution.cost.sum() + solution.costate.sum()
        results.append((solution, torch.autograd.grad(loss, leaves)))
    (shared, shared_grads), (written, written_grads) = results
    for part in PARTS:
        close(getattr(shared, part), getattr(written, part))
    for name, a, b in zip([*fields, "Qf"], shared_grads, written_grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("diagonal_R", [False, True])
def test_tracking_is_the_cost_of_the_distance(terminal, diagonal_R):
    T, n, m = 6, 3, 2
    p = random_problem((2,), T, n, m, diagonal_R=diagonal_R)
    generator = torch.Generator().manual_seed(1)
    states, actions = (torch.randn(2, T, k, generator=generator, dtype=torch.float64) for k in (n, m))
    c = 0.1 * states
    costs = dict(Q=p.Q[:, :-1], Qf=p.Q[:, -1]) if terminal else dict(Q=p.Q)
    problem = LQR.tracking(p.A, p.B, **costs, R=p.R, h0=p.h0, states=states, actions=actions, c=c)
    solution = solve(problem)
    R = torch.diag_embed(p.R) if diagonal_R else p.R

    def distance(u):
        away, much = problem.rollout(u)[:, 1:] - states, u - actions
        return 0.5 * (torch.einsum("bti,btij,btj", away, p.Q, away) + torch.einsum("bti,btij,btj", much, R, much))

    u = solution.u.requires_grad_()
    (slope,) = torch.autograd.grad(distance(u), u)
    assert slope.abs().max() < 1e-10
    near = LQR.tracking(p.A, p.B, **costs, R=p.R, h0=p.h0, states=states[:, :1])
    same = LQR.tracking(p.A, p.B, **costs, R=p.R, h0=p.h0, states=states[:, :1].expand(2, T, n))
    close(solve(near).u, solve(same).u)


def test_tracking_checks_its_references():
    p = random_problem((), 4, 3, 2)
    with raises("shape", "states", r"\(3, 3\)"):
        LQR.tracking(p.A, p.B, p.Q, p.R, p.h0, states=torch.zeros(3, 3, dtype=torch.float64))


@pytest.mark.parametrize(
    ("change", "code", "field", "value"),
    [
        (dict(q=torch.zeros(4, 2).double()), "shape", "q", r"\(4, 2\)"),
        (dict(c=torch.zeros(3, 3).double()), "shape", "c", r"\(3, 3\)"),
        (dict(N=torch.zeros(4, 2, 3).double()), "shape", "N", r"\(4, 2, 3\)"),
        (dict(Qf=torch.eye(2).double()), "shape", "Q", r"\(4, 3, 3\)"),
        (dict(horizon=5), "shape", "A", r"\(4, 3, 3\)"),
        (dict(horizon=-1), "too-small", "horizon", "-1"),
        (dict(horizon=True), "too-small", "horizon", "True"),
    ],
)
def test_structure(change, code, field, value):
    problem = random_problem((), 4, 3, 2)
    with raises(code, field, value):
        LQR(**{**problem.given(), **change})


def test_a_terminal_cost_replaces_nothing():
    """Q with a matrix for every step and a Qf besides would leave one of the two unused."""
    problem = random_problem((), 4, 3, 2)
    with raises("shape", "Q", r"\(4, 3, 3\)"):
        LQR(**problem.given(), Qf=torch.eye(3).double())


@pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated")  # torch to itself
@pytest.mark.parametrize(("method", "implicit"), METHODS)
def test_torch_func(method, implicit):
    problem = random_problem((), 3, 2, 2, affine=True, seed=6)
    names = list(problem.given())
    moved = [
        torch.stack([x, 1.1 * x if name in ("h0", "r", "q", "c") else x * 1.01]) for name, x in problem.given().items()
    ]

    def parts(*values):
        solution = solve(LQR(**dict(zip(names, values, strict=True))), method, implicit=implicit, check=False)
        return solution.u, solution.costate, solution.cost

    def total(*values):
        u, costate, cost = parts(*values)
        return u.sin().sum() + costate.cos().sum() + cost

    for k, found in enumerate(zip(*vmap(parts)(*moved), strict=True)):
        for a, b in zip(found, parts(*(x[k] for x in moved)), strict=True):
            close(a, b)
    for j, name in enumerate(names):
        values = list(problem.given().values())

        def of(value, j=j, values=values):
            return total(*values[:j], value, *values[j + 1 :])

        value = values[j]
        leaf = value.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(of(leaf), leaf)
        for transform in (grad, jacrev, jacfwd):
            found = transform(of)(value)
            torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-8, msg=f"{name} {transform.__name__}")
        close(vmap(grad(of))(moved[j])[0], wanted, 1e-7)
    h0 = values[names.index("h0")]
    curved = hessian(lambda x: total(*values[:4], x, *values[5:]))(h0)
    wanted = torch.autograd.functional.hessian(lambda x: total(*values[:4], x, *values[5:]), h0)
    torch.testing.assert_close(curved, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("method", ["riccati", "kkt"])
def test_torch_func_over_gains(method):
    problem = random_problem((), 3, 2, 2, affine=True)

    def slopes(A, implicit):
        found = solve(replace(problem, A=A), method, implicit=implicit, check=False, gains=True)
        return found.K.sin().sum() + found.p.cos().sum()

    many = torch.stack([problem.A, 1.1 * problem.A])
    close(vmap(grad(lambda A: slopes(A, True)))(many), vmap(grad(lambda A: slopes(A, False)))(many))
    with raises("no-derivative", "gains and values"):
        jacfwd(lambda A: slopes(A, True))(problem.A)


def test_a_horizon_beyond_the_bound():
    one = torch.ones(1, 1, 1)
    with raises("too-large", "horizon", "1000000000"):
        LQR(A=one, B=one, Q=one, R=one, h0=torch.ones(1), horizon=10**9)
