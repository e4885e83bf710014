"""Properties of any problem, tried on many."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from ttcnet.lqr import LQR, solve
from ttcnet.testing.problems import random_problem

sizes = st.fixed_dictionaries(
    dict(
        T=st.integers(1, 12),
        n=st.integers(1, 6),
        m=st.integers(1, 6),
        diagonal_A=st.booleans(),
        diagonal_R=st.booleans(),
        affine=st.booleans(),
        seed=st.integers(0, 10_000),
    )
)
methods = st.sampled_from(["riccati", "kkt"])


def take(problem: LQR, index) -> LQR:
    return LQR(**{name: x[index] for name, x in problem.given().items()})


@given(sizes, methods, st.floats(1e-3, 10.0))
def test_any_other_actions_cost_more(size, method, scale):
    problem = random_problem((3,), **size)
    solution = solve(problem, method)
    other = solution.u + scale * torch.randn_like(solution.u)
    assert (problem.objective(other) > solution.cost).all()
    torch.testing.assert_close(problem.objective(solution.u), solution.cost, rtol=1e-9, atol=1e-9)


@given(sizes, methods)
def test_states_follow_the_dynamics(size, method):
    problem = random_problem((3,), **size)
    solution = solve(problem, method)
    torch.testing.assert_close(problem.rollout(solution.u), solution.h, rtol=1e-7, atol=1e-8)
    assert solution.residual(problem).max() < 1e-11


@given(sizes, methods)
def test_the_tail_of_a_plan_is_the_plan_of_the_tail(size, method):
    """Bellman: the plan from h_1 on is the plan that starts there."""
    size["T"] += 1
    problem = random_problem((), **size)
    whole = solve(problem, method)
    rest = {name: x[1:] for name, x in problem.given().items() if name != "h0"}
    tail = solve(LQR(**rest, h0=whole.h[1]), method)
    torch.testing.assert_close(tail.u, whole.u[1:], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(tail.h, whole.h[1:], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(tail.costate[1:], whole.costate[2:], rtol=1e-7, atol=1e-9)


@given(sizes, methods)
def test_one_step_in_closed_form(size, method):
    size["T"] = 1
    problem = random_problem((), **size)
    p = problem.standard_form()
    A, B, Q, R = (x[0] for x in (p.A, p.B, p.Q, p.R))
    x, linear = A @ p.h0, torch.zeros(size["m"], dtype=torch.float64)
    if size["affine"]:
        x, linear = x + p.c[0], p.r[0] + B.mT @ p.q[0] + p.N[0].mT @ p.h0
    u = -torch.linalg.solve(R + B.mT @ Q @ B, B.mT @ Q @ x + linear)
    torch.testing.assert_close(solve(problem, method).u[0], u, rtol=1e-9, atol=1e-10)


@given(sizes, methods)
def test_the_costate_is_the_gradient_of_the_cost(size, method):
    problem = random_problem((), **size)
    h0 = problem.h0.clone().requires_grad_()
    cost = solve(LQR(**{**vars(problem), "h0": h0}), method).cost
    (slope,) = torch.autograd.grad(cost, h0)
    torch.testing.assert_close(slope, solve(problem, method).costate[0], rtol=1e-8, atol=1e-9)


@given(sizes, methods)
def test_a_batch_is_a_loop_and_its_order_does_not_matter(size, method):
    problem = random_problem((2, 2), **size)
    batch = solve(problem, method)
    for index in ((0, 0), (1, 0), (0, 1), (1, 1)):
        alone = solve(take(problem, index), method)
        for name in ("u", "h", "costate", "cost"):
            torch.testing.assert_close(getattr(batch, name)[index], getattr(alone, name), rtol=1e-9, atol=1e-10)
    order = torch.tensor([1, 0])
    permuted = solve(take(problem, order), method)
    torch.testing.assert_close(permuted.u, batch.u[order], rtol=1e-12, atol=1e-12)
