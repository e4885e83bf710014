"""All methods solve the same problem: with each other, and with solvers that nobody here wrote."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
import torch

from tests.raising import raises
from ttcnet.lqr import LQR, plan, solve
from ttcnet.testing.problems import random_problem
from ttcnet.testing.regimes import REGIMES, draw

HORIZONS = (1, 2, 3, 8, 31, 64)


def relative(found, truth):
    return float((found - truth).norm() / truth.norm().clamp_min(1e-300))


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("horizon", HORIZONS)
def test_riccati_and_kkt_and_plan_agree(regime, horizon):
    family = draw(regime)
    problem = family.unroll(horizon)
    riccati, kkt = solve(problem, "riccati"), solve(problem, "kkt")
    for name in ("u", "h", "costate", "cost"):
        assert relative(getattr(kkt, name), getattr(riccati, name)) < 1e-9, name
    assert relative(plan(family, horizon), riccati.u[..., 0, :]) < 1e-9
    assert riccati.residual(problem).max() < 1e-13
    assert kkt.residual(problem).max() < 1e-13


@pytest.mark.parametrize(
    ("regime", "horizons"), [("fresh", HORIZONS), ("trained", HORIZONS), ("slow", (1, 2, 3)), ("constant", (1, 2, 3))]
)
def test_symplectic_agrees_within_its_limit(regime, horizons):
    for horizon in horizons:
        problem = draw(regime).unroll(horizon)
        riccati, symplectic = solve(problem, "riccati"), solve(problem, "symplectic")
        for name in ("u", "h", "costate", "cost"):
            assert relative(getattr(symplectic, name), getattr(riccati, name)) < 1e-9, (name, horizon)


@pytest.mark.parametrize("regime", ["slow", "constant"])
def test_symplectic_says_when_it_is_past_its_limit(regime):
    """Each step multiplies rounding by the largest eigenvalue of S_t. With matrices of order one that do not fade, all
    sixteen digits are gone after about eight steps: it warns while it has some, and raises when it has none."""
    problem = draw(regime).unroll(6)
    with pytest.warns(RuntimeWarning, match=r'lost digits.*method="riccati"') as warned:
        solution = solve(problem, "symplectic")
    assert warned[0].filename == __file__  # it points at the call
    assert solution.residual(problem).max() > 1e-7
    with raises("inaccurate", "solution"):
        solve(draw(regime).unroll(64), "symplectic")
    with raises("inaccurate", "A"):
        solve(draw("singular").unroll(2), "symplectic")


@pytest.mark.parametrize("method", ["riccati", "kkt"])
@pytest.mark.parametrize("diagonal_A", [True, False])
@pytest.mark.parametrize("diagonal_R", [True, False])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 3), (3, 5), (4, 4)])
def test_against_a_sparse_kkt_solve_by_scipy(method, diagonal_A, diagonal_R, n, m):
    problem = random_problem((), 7, n, m, diagonal_A, diagonal_R, affine=True)
    solution = solve(problem, method)
    u, h, costate = scipy_kkt(problem)
    np.testing.assert_allclose(solution.u, u, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(solution.h, h, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(solution.costate, costate, rtol=1e-9, atol=1e-11)


def test_symplectic_against_a_sparse_kkt_solve_by_scipy():
    problem = random_problem((), 4, 3, 2, affine=True)
    solution = solve(problem, "symplectic")
    for found, truth in zip((solution.u, solution.h, solution.costate), scipy_kkt(problem), strict=True):
        np.testing.assert_allclose(found, truth, rtol=1e-8, atol=1e-10)


def diagonal(blocks):
    return scipy.sparse.block_diag([scipy.sparse.coo_array(block) for block in blocks])


def scipy_kkt(problem: LQR):
    """All optimality conditions as one sparse matrix in the order h_0..h_T, u, λ_0..λ_T."""
    p = problem.standard_form()
    T, n, m = p.horizon, p.state_size, p.action_size
    A, B, Q, R, r, q, c, N = (x.numpy() for x in (p.A, p.B, p.Q, p.R, p.r, p.q, p.c, p.N))
    costs = diagonal([np.zeros((n, n)), *Q])
    cross = scipy.sparse.vstack([diagonal(N), scipy.sparse.coo_array((n, T * m))])  # of h_{t-1} and u_t
    cost = scipy.sparse.bmat([[costs, cross], [cross.T, diagonal(R)]])
    states = scipy.sparse.lil_array(((T + 1) * n, (T + 1) * n))
    actions = scipy.sparse.lil_array(((T + 1) * n, T * m))
    for t in range(T + 1):
        states[t * n : (t + 1) * n, t * n : (t + 1) * n] = -np.eye(n)
        if t:
            states[t * n : (t + 1) * n, (t - 1) * n : t * n] = A[t - 1]
            actions[t * n : (t + 1) * n, (t - 1) * m : t * m] = B[t - 1]
    constraint = scipy.sparse.hstack([states, actions])
    matrix = scipy.sparse.bmat([[cost, constraint.T], [constraint, None]]).tocsc()
    right = -np.concatenate([np.zeros(n), q.ravel(), r.ravel(), p.h0.numpy(), c.ravel()])
    x = scipy.sparse.linalg.spsolve(matrix, right)
    h, u, costate = np.split(x, [(T + 1) * n, (T + 1) * n + T * m])
    return u.reshape(T, m), h.reshape(T + 1, n), costate.reshape(T + 1, n)


@pytest.mark.parametrize("method", ["riccati", "kkt"])
def test_long_constant_problems_reach_the_algebraic_riccati_equation(method):
    generator = torch.Generator().manual_seed(0)
    A, B = (torch.randn(4, k, generator=generator, dtype=torch.float64) for k in (4, 2))
    Q, R = torch.eye(4, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    T = 300
    h0 = torch.randn(4, generator=generator, dtype=torch.float64)
    problem = LQR(A.expand(T, 4, 4), B.expand(T, 4, 2), Q.expand(T, 4, 4), R.expand(T, 2, 2), h0)
    P = scipy.linalg.solve_discrete_are(A.numpy(), B.numpy(), Q.numpy(), R.numpy())
    gain = -np.linalg.solve(R.numpy() + B.numpy().T @ P @ B.numpy(), B.numpy().T @ P @ A.numpy())
    solution = solve(problem, method)
    np.testing.assert_allclose(solution.u[0], gain @ h0.numpy(), rtol=1e-9)
    np.testing.assert_allclose(solution.cost, 0.5 * h0.numpy() @ (P - Q.numpy()) @ h0.numpy(), rtol=1e-9)


@pytest.mark.filterwarnings("default")
def test_against_mpc_pytorch():
    """A batch with gradients, against mpc.pytorch (Amos et al. 2018)."""
    from ttcnet.bench.peers import mpc_pytorch
    from ttcnet.testing.errors import cast, differentiate, relative_errors, weights

    family = cast(draw("trained", tokens=2, heads=3, n=5, m=3), torch.float64)
    g = weights(family)
    truth = differentiate(plan, family, 6, g)
    found = differentiate(mpc_pytorch, family, 6, g)
    errors = relative_errors(found, truth)
    assert errors["u"] < 1e-9
    assert max(errors.values()) < 1e-6, errors
