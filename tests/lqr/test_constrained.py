"""solve_constrained: against another solver, finite differences, and messages about problems without a solution."""

import clarabel
import numpy
import pytest
import torch
from scipy import sparse
from torch.func import grad, jacfwd, jacrev, jvp, vmap

from tests.raising import raises
from ttcnet.lqr import LQR, Status, solve, solve_constrained

DOUBLE = torch.float64


def systems(count, T=12, n=4, m=2, seed=0, dtype=DOUBLE):
    """Dynamics that grow a little, and costs of every kind."""
    torch.manual_seed(seed)
    half = torch.randn(count, T, n, n, dtype=dtype)
    return LQR(
        A=torch.eye(n, dtype=dtype) + 0.2 * torch.randn(count, T, n, n, dtype=dtype),
        B=torch.randn(count, T, n, m, dtype=dtype),
        Q=half @ half.mT / n + 0.1 * torch.eye(n, dtype=dtype),
        R=torch.ones(count, T, m, dtype=dtype),
        h0=2 * torch.randn(count, n, dtype=dtype),
        r=0.3 * torch.randn(count, T, m, dtype=dtype),
        q=torch.randn(count, T, n, dtype=dtype),
        c=0.1 * torch.randn(count, T, n, dtype=dtype),
        N=0.05 * torch.randn(count, T, n, m, dtype=dtype),
    )


def rows(problem, k=3, room=2.0):
    count, T, n, m = len(problem.h0), problem.horizon, problem.state_size, problem.action_size
    C, D = torch.randn(count, T + 1, k, n, dtype=DOUBLE), torch.randn(count, T, k, m, dtype=DOUBLE)
    return dict(C=0.3 * C, D=D, d=room + torch.rand(count, T + 1, k, dtype=DOUBLE))


def condensed(problem, i, u_min=None, u_max=None, h_min=None, h_max=None, C=None, D=None, d=None):
    """Problem i over its actions alone, as clarabel takes it: 1/2 x'Px + p'x subject to G x <= b; numpy's own way."""
    p = problem.standard_form(DOUBLE)
    T, n, m = problem.horizon, problem.state_size, problem.action_size
    A, B, Q, R, h0, r, q, c, N = (x[i].numpy() for x in (p.A, p.B, p.Q, p.R, p.h0, p.r, p.q, p.c, p.N))
    states, offsets = [numpy.zeros((n, T * m))], [h0]
    pick = [numpy.eye(T * m)[t * m : (t + 1) * m] for t in range(T)]
    for t in range(T):
        states.append(A[t] @ states[t] + B[t] @ pick[t])
        offsets.append(A[t] @ offsets[t] + c[t])
    P, f = numpy.zeros((T * m, T * m)), numpy.zeros(T * m)
    for t in range(T):
        S, o, E = states[t + 1], offsets[t + 1], pick[t]
        P += S.T @ Q[t] @ S + E.T @ R[t] @ E + states[t].T @ N[t] @ E + E.T @ N[t].T @ states[t]
        f += S.T @ (Q[t] @ o + q[t]) + E.T @ (r[t] + N[t].T @ offsets[t])
    G, b = [], []
    for t in range(T):
        for sign, bound in ((1, u_max), (-1, u_min)):
            if bound is not None:
                G.append(sign * pick[t])
                b.append(numpy.full(m, sign * bound))
        for sign, bound in ((1, h_max), (-1, h_min)):
            if bound is not None:
                G.append(sign * states[t + 1])
                b.append(numpy.full(n, sign * bound) - sign * offsets[t + 1])
    if C is not None:
        for t in range(T + 1):
            own = C[i, t].numpy() @ states[t] + (D[i, t].numpy() @ pick[t] if t < T else 0)
            G.append(own)
            b.append(d[i, t].numpy() - C[i, t].numpy() @ offsets[t])
    return P, f, numpy.concatenate(G), numpy.concatenate(b)


def by_clarabel(problem, i, **constraints):
    P, f, G, b = condensed(problem, i, **constraints)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    cones = [clarabel.NonnegativeConeT(len(b))]
    found = clarabel.DefaultSolver(
        sparse.csc_matrix(numpy.triu(P)), f, sparse.csc_matrix(G), b, cones, settings
    ).solve()  # fmt: skip
    return str(found.status), numpy.array(found.x).reshape(problem.horizon, -1)


def by_osqp(P, f, G, b):
    osqp = pytest.importorskip("osqp", reason="OSQP is not installed")
    solver, open_end = osqp.OSQP(), numpy.full(len(b), -numpy.inf)
    exact = dict(eps_abs=1e-10, eps_rel=1e-10, max_iter=200000, polishing=True, verbose=False)
    solver.setup(sparse.triu(sparse.csc_matrix(P), format="csc"), f, sparse.csc_matrix(G), open_end, b, **exact)
    return solver.solve(raise_error=True).x


def by_casadi(P, f, G, b):
    casadi = pytest.importorskip("casadi", reason="CasADi is not installed")
    shapes = {"h": casadi.DM(P).sparsity(), "a": casadi.DM(G).sparsity()}
    solver = casadi.conic("solver", "qpoases", shapes, {"printLevel": "none"})
    return numpy.array(solver(h=casadi.DM(P), g=f, a=casadi.DM(G), uba=b)["x"]).ravel()


def by_cvxpy(P, f, G, b):
    cvxpy = pytest.importorskip("cvxpy", reason="cvxpy is not installed")
    x = cvxpy.Variable(len(f))
    problem = cvxpy.Problem(cvxpy.Minimize(0.5 * cvxpy.quad_form(x, cvxpy.psd_wrap(P)) + f @ x), [G @ x <= b])
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return x.value


@pytest.mark.parametrize("peer", [by_osqp, by_casadi, by_cvxpy])
@pytest.mark.parametrize(("n", "m", "T", "limit"), [(3, 4, 5, 0.5), (5, 2, 10, 0.3), (8, 6, 12, 0.05)])
def test_peers_agree_on_bounded_and_affine_problems(peer, n, m, T, limit):
    """Random convex costs of states and actions together, dynamics with an offset, one action bounded less."""
    problem = systems(2, T, n, m, seed=1)
    for i in range(2):
        right = peer(*condensed(problem, i, u_min=-limit, u_max=1.5 * limit))
        found = solve_constrained(problem, u_min=-limit, u_max=1.5 * limit)
        assert numpy.abs(right.reshape(T, m) - found.u[i].numpy()).max() < 1e-5 * max(1, limit)
        assert (found.u[i].abs() > limit - 1e-6).any(), "no bound was active"


KINDS = {
    "actions": lambda p: dict(u_min=-0.4, u_max=0.5),
    "one side": lambda p: dict(u_max=0.1),
    "states": lambda p: dict(u_min=-3, u_max=3, h_max=2.5, h_min=-3),
    "rows": lambda p: dict(u_min=-2, u_max=2) | rows(p),
}


@pytest.mark.parametrize("kind", KINDS)
def test_clarabel_agrees(kind):
    problem = systems(12)
    constraints = KINDS[kind](problem)
    found = solve_constrained(problem, check=False, **constraints)
    seen = set()
    for i in range(12):
        status, u = by_clarabel(problem, i, **constraints)
        seen.add(status)
        if status == "Solved":
            assert found.status[i] == Status.CONVERGED
            assert torch.allclose(found.u[i], torch.tensor(u), atol=1e-5)
        else:
            assert (status, found.status[i]) == ("PrimalInfeasible", Status.INFEASIBLE)
    assert "Solved" in seen
    assert any(x.max() > 1e-3 for x in found.multipliers.values()), "no constraint was active"


def test_bounds_on_states_with_actions_that_cost_next_to_nothing():
    """Weights of active bounds grow until the cost has no digit left beside them."""
    count, T, n, m = 12, 25, 2, 1
    torch.manual_seed(0)
    half, fields = torch.randn(count, T, n, 1, dtype=DOUBLE), systems(count, T, n, m).given()
    few = LQR(**(fields | {
        "A": fields["A"] - 0.2 * torch.eye(n, dtype=DOUBLE), "Q": 1e4 * half @ half.mT / n, "h0": 0.1 * fields["h0"],
        "r": 1e3 * fields["r"], "q": 1e4 * fields["q"], "c": 0.1 * fields["c"], "N": 0 * fields["N"],
    }))  # fmt: skip
    found = solve_constrained(few, check=False, h_max=0.5, h_min=-0.6)
    for i in range(count):
        status, u = by_clarabel(few, i, h_max=0.5, h_min=-0.6)
        assert (status == "Solved") == bool(found.converged[i]), status
        if status == "Solved":
            assert torch.allclose(found.u[i], torch.tensor(u), atol=1e-5)
    assert found.converged.any()


def test_infeasible_problems_are_named_and_the_others_solved():
    problem = systems(6)
    problem.h0[2] *= 50
    constraints = dict(u_min=-1.0, u_max=1.0, h_min=-20.0, h_max=20.0)
    with pytest.warns(RuntimeWarning, match=r"problem \(2,\) of the batch has no point that meets all constraints"):
        found = solve_constrained(problem, **constraints)
    assert found.status.tolist() == [0, 0, Status.INFEASIBLE, 0, 0, 0]
    assert by_clarabel(problem, 2, **constraints)[0] == "PrimalInfeasible"


@pytest.mark.parametrize("missing", [1e-1, 1e-3, 1e-5, -1e-5, -1e-3])
@pytest.mark.parametrize("unit", [1.0, 1e-3, 1e3])
def test_infeasible_by_little(missing, unit):
    """Five steps of at most one unit lead no further than five units."""
    one = torch.ones(1, 5, 1, 1, dtype=DOUBLE)
    problem = LQR(A=one, B=one, Q=one, R=one, h0=unit * torch.ones(1, 1, dtype=DOUBLE))
    h_max = torch.full((5, 1), torch.inf, dtype=DOUBLE)
    h_max[-1] = (1 - 5 - missing) * unit
    found = solve_constrained(problem, u_min=-unit, u_max=unit, h_max=h_max, check=False)
    assert found.status == (Status.INFEASIBLE if missing > 0 else Status.CONVERGED)


def test_steps_that_would_go_round_in_circles():
    """Mehrotra's method cycles in the third problem."""
    torch.manual_seed(0)
    A, B, h0 = (torch.randn(8, 4, size, dtype=DOUBLE) for size in (4, 2, 1))
    A = 1.2 * A / torch.linalg.eigvals(A).abs().amax(-1)[:, None, None]
    one = torch.eye(4, dtype=DOUBLE)[None, None]
    problem = LQR(A[:, None], B[:, None], one, torch.full((1, 1, 2), 0.1, dtype=DOUBLE), h0[..., 0], horizon=50)
    limit = 0.6 * solve(problem).u.abs().amax((1, 2), keepdim=True)
    found = solve_constrained(problem, u_min=-limit, u_max=limit)
    assert found.converged.all()


def test_problems_without_a_minimum_are_named_and_the_others_solved():
    fields = systems(4).given()
    fields["Q"][1] -= 50 * torch.eye(4, dtype=DOUBLE)
    with pytest.warns(RuntimeWarning, match=r"problem \(1,\) of the batch has no finite minimum .* C @ C.mT"):
        found = solve_constrained(LQR(**fields), u_min=-0.4, u_max=0.5)
    fields["h0"][2] = torch.nan
    assert found.status.tolist() == [0, Status.NO_MINIMUM, 0, 0]
    mixed = solve_constrained(LQR(**fields), u_min=-0.4, u_max=0.5, check=False)
    assert mixed.status.tolist() == [0, Status.NO_MINIMUM, Status.NOT_FINITE, 0]
    assert torch.allclose(mixed.u[[0, 3]], found.u[[0, 3]])


def test_loose_bounds_change_nothing():
    problem = systems(3)
    found, free = solve_constrained(problem, u_max=1e3, h_min=-1e3), solve(problem)
    assert torch.allclose(found.u, free.u, atol=1e-6)
    assert torch.allclose(found.cost, free.cost)
    nothing = solve_constrained(problem, u_max=torch.inf)
    assert torch.allclose(nothing.u, free.u)


def test_multipliers_are_the_price_of_a_bound():
    problem = systems(2)
    u_max = torch.full((2, 12, 2), 0.2, dtype=DOUBLE, requires_grad=True)
    found = solve_constrained(problem, u_max=u_max)
    (slope,) = torch.autograd.grad(found.cost.sum(), u_max)
    assert found.multipliers["u_max"].max() > 0.1
    assert torch.allclose(-slope, found.multipliers["u_max"], atol=1e-6)


def test_gradients_equal_finite_differences():
    problem = systems(1, T=3, n=3, m=2, seed=56)
    names = list(problem.given())
    more = rows(problem, k=2, room=0.5)
    bounds = {"u_max": torch.tensor(0.7).double(), "h_min": torch.tensor([-0.6, -0.8, -0.7]).double()}
    active = []

    def outputs(*values):
        fields = dict(zip(names, values, strict=False))
        fields["Q"] = (fields["Q"] + fields["Q"].mT) / 2
        rest = dict(zip([*more, *bounds], values[len(names) :], strict=True))
        found = solve_constrained(LQR(**fields), tolerance=1e-13, **rest)
        active.append({name: float(x.max()) for name, x in found.multipliers.items()})
        return found.u, found.h, found.costate, found.cost

    inputs = [x.clone().requires_grad_() for x in (*problem.given().values(), *more.values(), *bounds.values())]
    assert torch.autograd.gradcheck(outputs, inputs, eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True)
    assert min(active[0].values()) > 1e-3, "a kind of constraint was not active"


def test_a_warm_start_takes_fewer_iterations():
    problem = systems(8)
    constraints = dict(u_min=-0.4, u_max=0.5)
    first = solve_constrained(problem, **constraints)
    moved = LQR(**(problem.given() | {"h0": problem.h0 * 1.001}))
    cold = solve_constrained(moved, **constraints)
    warm = solve_constrained(moved, start=first, **constraints)
    assert torch.allclose(cold.u, warm.u, atol=1e-5)
    assert warm.iterations.sum() < cold.iterations.sum()
    with raises("shape", "start"):
        solve_constrained(moved, start=first, u_min=-0.4)


def test_a_warm_start_from_problems_that_failed():
    problem, constraints = systems(6), dict(u_min=-1.0, u_max=1.0, h_min=-20.0, h_max=20.0)
    bad = {name: x.clone() for name, x in problem.given().items()}
    bad["h0"][2] *= 50
    bad["Q"][4] -= 50 * torch.eye(4, dtype=DOUBLE)
    first = solve_constrained(LQR(**bad), check=False, **constraints)
    assert first.status.tolist() == [0, 0, Status.INFEASIBLE, 0, Status.NO_MINIMUM, 0]
    first.u[0, 3] = torch.nan
    found, cold = (solve_constrained(problem, start=x, **constraints) for x in (first, None))
    assert found.converged.all()
    assert torch.allclose(found.u, cold.u, atol=1e-6)
    assert (found.iterations[[0, 2, 4]] == cold.iterations[[0, 2, 4]]).all()


def test_one_bad_bound_leaves_the_others_alone():
    problem, u_max = systems(4), torch.full((4, 1, 1), 0.5, dtype=DOUBLE)
    u_max[1], u_max[2] = -1, torch.nan
    found = solve_constrained(problem, u_min=-0.4, u_max=u_max, check=False)
    assert found.status.tolist() == [0, Status.INFEASIBLE, Status.NOT_FINITE, 0]
    right = solve_constrained(problem, u_min=-0.4, u_max=0.5)
    assert torch.allclose(found.u[[0, 3]], right.u[[0, 3]])


def test_problems_without_a_solution_give_no_gradients():
    """One bad problem of a batch would spoil what all of them share."""
    fields = systems(5).given()
    fields["h0"][1] *= 50
    fields["Q"][2] -= 50 * torch.eye(4, dtype=DOUBLE)
    fields["h0"][3] = torch.nan
    fields["r"] = torch.zeros(1, 1, 2, dtype=DOUBLE, requires_grad=True)

    def slope(rows):
        some = {name: x if name == "r" else x[rows] for name, x in fields.items()}
        u_max = torch.tensor(0.9).double().requires_grad_()
        found = solve_constrained(LQR(**some), u_min=-1.0, u_max=u_max, h_min=-20.0, h_max=20.0, check=False)
        price = (found.u.square().sum((1, 2)) + found.cost)[found.converged].sum()
        return torch.autograd.grad(price, (fields["r"], u_max))

    for some, whole in zip(slope([0, 4]), slope([0, 1, 2, 3, 4]), strict=True):
        assert torch.allclose(some, whole)


def test_float32_and_broadcasting():
    problem = systems(4, dtype=torch.float32)
    one = LQR(**({name: x[:1] for name, x in problem.given().items()} | {"h0": problem.h0}))
    found = solve_constrained(one, u_min=-0.4, u_max=torch.tensor([0.3, 0.5]))
    assert found.u.dtype == torch.float32
    assert found.cost.shape == (4,)
    alone = solve_constrained(
        LQR(**{name: x[0] for name, x in problem.given().items()}), u_min=-0.4, u_max=torch.tensor([0.3, 0.5])
    )
    assert alone.status.shape == ()
    assert torch.allclose(alone.u, found.u[0], atol=1e-5)


def test_an_iteration_limit_gives_a_warning():
    with pytest.warns(RuntimeWarning, match=r"problem \(0,\) of the batch was still under way"):
        found = solve_constrained(systems(2), u_max=0.1, max_iterations=2)
    assert (found.status == Status.ITERATION_LIMIT).all()
    assert (found.iterations == 2).all()


def test_transforms_are_refused():
    problem = systems(2)

    def price(h):
        return solve_constrained(LQR(**(problem.given() | {"h0": h})), u_max=0.1, check=False).cost

    one = {name: x[0] for name, x in problem.given().items()}
    with raises("no-derivative", "solve_constrained"):
        vmap(lambda h: solve_constrained(LQR(**(one | {"h0": h})), u_max=0.1, check=False).u)(problem.h0)
    ways = (jacfwd, jacrev, lambda f: grad(lambda h: f(h).sum()), lambda f: lambda h: jvp(f, (h,), (h,)))
    for transform in ways:
        with raises("no-derivative", "solve_constrained"):
            transform(price)(problem.h0)


def test_second_derivatives_are_refused():
    problem = systems(1)
    problem.h0.requires_grad_()
    with raises("no-derivative", "solve_constrained"):
        torch.autograd.grad(solve_constrained(problem, u_max=0.1).u.sum(), problem.h0, create_graph=True)


@pytest.mark.parametrize(
    ("code", "field", "constraints"),
    [
        ("missing", "constraints", dict()),
        ("out-of-range", "bounds", dict(u_min=1, u_max=0)),
        ("out-of-range", "bounds", dict(h_min=1, h_max=torch.zeros(4))),
        ("shape", "u_max", dict(u_max=torch.zeros(3))),
        ("not-finite", "h_min", dict(h_min=float("nan"))),
        ("type", "u_max", dict(u_max="a")),
        ("missing", "d", dict(C=torch.zeros(1, 2, 4))),
        ("shape", "C", dict(C=torch.zeros(1, 2, 3), d=torch.zeros(2))),
        ("shape", "d", dict(D=torch.zeros(1, 2, 2), d=torch.zeros(3))),
    ],
)
def test_wrong_constraints(code, field, constraints):
    with raises(code, field):
        solve_constrained(systems(2), **constraints)


def test_wrong_problems():
    with raises("type", "problem"):
        solve_constrained("no problem", u_max=1)
    with raises("too-small", "horizon"):
        one = torch.ones(1, 1, 1)
        solve_constrained(LQR(A=one, B=one, Q=one, R=one, h0=torch.ones(1), horizon=0), u_max=1)


@pytest.mark.parametrize(
    ("options", "code"),
    [(dict(start=3), "type"), (dict(max_iterations=0), "too-small"), (dict(tolerance=-1.0), "out-of-range")],
)
def test_options_that_make_no_sense(options, code):
    one = torch.ones(3, 1, 1, dtype=torch.float64)
    problem = LQR(A=one, B=one, Q=one, R=one, h0=torch.ones(1, dtype=torch.float64))
    with raises(code, next(iter(options))):
        solve_constrained(problem, u_min=-0.4, **options)
