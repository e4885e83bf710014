"""Gradients of `solve`: every method, every input, a loss on any part of the solution."""

import pytest
import torch

from tests.raising import raises
from ttcnet.lqr import LQR, ModulatedLQR, plan, solve
from ttcnet.testing.problems import random_problem
from ttcnet.testing.regimes import draw

FIELDS = ("A", "B", "Q", "R", "h0", "r", "q", "c", "N")
METHODS = [("riccati", False), ("riccati", True), ("kkt", True), ("kkt", False), ("symplectic", True)]


def free(problem: LQR, name: str, value: torch.Tensor) -> LQR:
    """The problem with one field replaced; Q and R take the symmetric part of anything."""
    if name in ("Q", "R") and value.ndim == problem.h0.ndim + 2:
        value = (value + value.mT) / 2
    return LQR(**{field: value if field == name else getattr(problem, field) for field in FIELDS})


@pytest.mark.parametrize(("method", "implicit"), METHODS)
@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("diagonal", [False, True])
def test_gradcheck(method, implicit, name, diagonal):
    problem = random_problem((2,), 3, 3, 2, diagonal, diagonal, affine=True, seed=6)  # invertible without N, too

    def outputs(value):
        solution = solve(free(problem, name, value), method, implicit=implicit, check=False)
        return solution.u, solution.h, solution.costate, solution.cost

    value = getattr(problem, name).clone().requires_grad_()
    assert torch.autograd.gradcheck(outputs, (value,), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("method", "implicit"), METHODS[1:])
@pytest.mark.parametrize("loss_on", ["u", "h", "costate", "cost", "everything"])
def test_every_method_has_the_gradients_of_autograd(method, implicit, loss_on):
    reference = _gradients("riccati", False, loss_on)
    found = _gradients(method, implicit, loss_on)
    for name, truth in reference.items():
        torch.testing.assert_close(
            found[name], truth, rtol=1e-8, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )


def _gradients(method, implicit, loss_on):
    problem = random_problem((2, 3), 4, 4, 2, affine=True, requires_grad=True, seed=6)
    solution = solve(problem, method, implicit=implicit)
    generator = torch.Generator().manual_seed(7)
    parts = ("u", "h", "costate", "cost") if loss_on == "everything" else (loss_on,)
    loss = sum(
        (
            torch.randn(getattr(solution, part).shape, generator=generator, dtype=torch.float64)
            * getattr(solution, part)
        ).sum()
        for part in parts
    )
    return dict(zip(FIELDS, torch.autograd.grad(loss, [getattr(problem, f) for f in FIELDS]), strict=True))


def test_gradients_of_symmetric_matrices_are_symmetric():
    for method in ("riccati", "kkt"):
        problem = random_problem((2,), 4, 4, 3, requires_grad=True)
        dQ, dR = torch.autograd.grad(solve(problem, method).u.sum(), [problem.Q, problem.R])
        assert torch.equal(dQ, dQ.mT)
        assert torch.equal(dR, dR.mT)


def test_broadcast_inputs_get_the_sum_of_their_gradients():
    problem = random_problem((1,), 4, 3, 2, requires_grad=True)
    many = torch.randn(5, 3, dtype=torch.float64)
    shared = LQR(problem.A, problem.B, problem.Q, problem.R, many)
    expanded = LQR(*(x.expand(5, *x.shape[1:]) for x in (problem.A, problem.B, problem.Q, problem.R)), many)
    for method in ("riccati", "kkt"):
        first, second = (torch.autograd.grad(solve(p, method).u.sum(), problem.A)[0] for p in (shared, expanded))
        torch.testing.assert_close(first, second)
        assert solve(shared, method).u.shape == (5, 4, 2)


@pytest.mark.parametrize(("method", "implicit"), METHODS)
@pytest.mark.parametrize("name", FIELDS)
def test_everything_can_be_differentiated_twice(method, implicit, name):
    problem = random_problem((), 2, 2, 2, affine=True)

    def outputs(value):
        solution = solve(free(problem, name, value), method, implicit=implicit, check=False)
        return solution.u, solution.h, solution.costate, solution.cost

    assert torch.autograd.gradgradcheck(outputs, (getattr(problem, name).clone().requires_grad_(),))


@pytest.mark.parametrize(("method", "implicit"), METHODS[:4])
@pytest.mark.parametrize("name", [name for name in FIELDS if name != "h0"])
def test_gradcheck_of_gains_and_values(method, implicit, name):
    problem = random_problem((2,), 3, 3, 2, affine=True)

    def outputs(value):
        solution = solve(free(problem, name, value), method, implicit=implicit, check=False, gains=True)
        return solution.K, solution.k, solution.P, solution.p

    value = getattr(problem, name).clone().requires_grad_()
    assert torch.autograd.gradcheck(outputs, (value,), atol=1e-6, rtol=1e-5)
    if implicit:
        small = random_problem((), 2, 2, 1, affine=True)
        problem = small
        assert torch.autograd.gradgradcheck(outputs, (getattr(small, name).clone().requires_grad_(),))


def test_second_derivatives_that_do_not_exist_are_refused():
    family = draw("trained", n=3)
    leaf = family.h0.clone().requires_grad_()
    u = plan(ModulatedLQR(**{**vars(family), "h0": leaf}), 4)
    with raises("no-derivative", "plan"):
        torch.autograd.grad(u.sum(), leaf, create_graph=True)


@pytest.mark.parametrize(("method", "implicit"), METHODS)
def test_a_change_in_place_between_the_passes_is_noticed(method, implicit):
    problem = random_problem((), 3, 3, 2, requires_grad=True)
    u = solve(problem, method, implicit=implicit).u
    with torch.no_grad():
        problem.A.mul_(3)
    with pytest.raises(RuntimeError, match="modified"):
        u.sum().backward()


def test_residual_and_objective_keep_their_precision_and_dtype():
    problem = random_problem((), 4, 3, 2, dtype=torch.float32)
    solution = solve(problem)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert solution.residual(problem) < 1e-6
        torch.testing.assert_close(problem.objective(solution.u), solution.cost, rtol=1e-5, atol=1e-5)
    half = random_problem((), 4, 3, 2, dtype=torch.bfloat16)
    assert half.objective(solve(half).u).isfinite()


@pytest.mark.parametrize("method", ["riccati", "kkt"])
def test_float32_gradients_hold_with_unstable_dynamics(method):
    """Open-loop unstable A over 128 steps: recursions for the co-states lose everything here."""
    T = 128
    exact = random_problem((4,), T, 4, 4, seed=3)
    single = LQR(**{f: None if getattr(exact, f) is None else getattr(exact, f).float() for f in FIELDS})
    results = []
    for problem in (exact, single):
        leaves = {f: getattr(problem, f).detach().requires_grad_() for f in FIELDS[:5]}
        solution = solve(LQR(**leaves), method)
        results.append(
            (solution.u, solution.costate, *torch.autograd.grad(solution.u[..., 0, :].sum(), list(leaves.values())))
        )
    assert torch.linalg.eigvals(exact.A[:, 0]).abs().max() > 1.2
    for truth, found in zip(*results, strict=True):
        assert (found.double() - truth).norm() < 1e-5 * truth.norm()
