"""ilqr: known problems, other solvers, finite differences, and messages about problems that fail."""

import math
import warnings

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jacrev, jvp, vmap

from tests.raising import raises
from ttcnet.lqr import LQR, Status, ilqr, solve

DOUBLE = torch.float64


def pendulum(h, u, step=0.05, gravity=10.0):
    """A rod that hangs at an angle of π and stands at 0."""
    speed = h[1] + step * (1.5 * gravity * h[0].sin() + 3 * u[0])
    return torch.stack([h[0] + step * speed, speed])


def upright(h, u):
    return 0.05 * ((1 - h[0].cos()) + 0.05 * h[1] ** 2 + 0.01 * u[0] ** 2)


def stands(h):
    return 20 * (1 - h[0].cos()) + 2 * h[1] ** 2


def cart_pole(h, u, step=0.05):
    """Position, angle of the pole from upright, and their speeds."""
    sin, cos, spin = h[1].sin(), h[1].cos(), h[3]
    push = (u[0] + 0.05 * spin**2 * sin) / 1.1
    turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    speeds = torch.stack([h[2] + step * (push - 0.05 * turn * cos / 1.1), spin + step * turn])
    return torch.cat([h[:2] + step * speeds, speeds])


def cart_cost(h, u):
    return 0.05 * (0.5 * h[0] ** 2 + 2 * (1 - h[1].cos()) + 0.02 * h[2:].square().sum() + 0.02 * u[0] ** 2)


def cart_end(h):
    return 10 * h[0] ** 2 + 40 * (1 - h[1].cos()) + 2 * h[2:].square().sum()


def total(dynamics, cost, terminal, h0, u):
    """The cost of actions, (T, m), by autograd's means alone."""
    h, price = h0, 0
    for action in u.unbind(-2):
        price = price + cost(h, action)
        h = dynamics(h, action)
    return price + terminal(h)


def slopes(dynamics, cost, terminal, found):
    """The slopes of the cost over the actions, computed without ilqr."""
    u = found.u.detach().requires_grad_()
    prices = vmap(lambda h, u: total(dynamics, cost, terminal, h, u))(found.h[:, 0].detach(), u)
    assert torch.allclose(prices, found.cost)
    return torch.autograd.grad(prices.sum(), u)[0]


def hanging(count, n=2, dtype=DOUBLE):
    torch.manual_seed(0)
    start = torch.zeros(count, n, dtype=dtype)
    start[:, 0 if n == 2 else 1] = math.pi
    return start + 0.2 * torch.randn(count, n, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_pendulums_swing_up_within_bounds(dtype):
    found = ilqr(
        pendulum, upright, hanging(4, dtype=dtype)[1:], 100, terminal=stands, action_size=1, u_min=-2.5, u_max=2.5,
    )  # fmt: skip
    assert found.u.dtype == dtype
    assert found.converged.all()
    assert found.u.abs().max() <= 2.5
    assert (found.u.abs() == 2.5).any(), "no bound was active"
    assert (1 - found.h[:, -1, 0].cos()).max() < 0.02, "a pendulum does not stand"
    if dtype == DOUBLE:  # in float32 the open loop, which is unstable, has no digit left
        slope = slopes(pendulum, upright, stands, found)
        free = found.u.abs() < 2.5
        assert slope[free].abs().max() < 1e-4
        assert (slope * found.u)[~free].max() <= 1e-4, "a bound is held that the cost does not push against"


@pytest.mark.slow
def test_cart_poles_swing_up():
    found = ilqr(
        cart_pole, cart_cost, hanging(2, 4), 80, terminal=cart_end, action_size=1, u_min=-10, u_max=10,
    )  # fmt: skip
    assert found.converged.all()
    assert (1 - found.h[:, -1, 1].cos()).max() < 0.02
    assert found.h[:, -1, 0].abs().max() < 0.2
    free = found.u.abs() < 10
    assert slopes(cart_pole, cart_cost, cart_end, found)[free].abs().max() < 1e-4


def test_scipy_finds_nothing_better_nearby():
    from scipy.optimize import minimize

    h0 = hanging(1)
    found = ilqr(pendulum, upright, h0, 30, terminal=stands, action_size=1, u_min=-1, u_max=1)

    def price(x):
        u = torch.tensor(x, dtype=DOUBLE).reshape(30, 1).requires_grad_()
        value = total(pendulum, upright, stands, h0[0], u)
        return value.item(), torch.autograd.grad(value, u)[0].flatten().numpy()

    start = (found.u[0] + 0.02 * torch.randn(30, 1, dtype=DOUBLE)).clamp(-1, 1)
    other = minimize(price, start.flatten(), jac=True, method="L-BFGS-B", bounds=[(-1, 1)] * 30,
                     options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 2000})  # fmt: skip
    assert abs(other.fun - float(found.cost[0])) < 1e-8
    assert torch.allclose(torch.tensor(other.x), found.u[0, :, 0], atol=1e-4)


def test_a_linear_quadratic_problem_takes_one_iteration():
    torch.manual_seed(0)
    T, n, m = 12, 3, 2
    A, B, h0 = torch.randn(n, n, dtype=DOUBLE), torch.randn(n, m, dtype=DOUBLE), torch.randn(5, n, dtype=DOUBLE)
    goal = torch.randn(5, 1, n, dtype=DOUBLE)
    found = ilqr(
        lambda h, u, goal: A @ h + B @ u, lambda h, u, goal: 0.5 * (h - goal).square().sum() + 0.5 * u.square().sum(),
        h0, T, terminal=lambda h, goal: 5 * (h - goal).square().sum(), params=goal, action_size=m,
    )  # fmt: skip
    one = torch.eye(n, dtype=DOUBLE)
    same = solve(
        LQR.tracking(
            A.expand(1, 1, n, n), B.expand(1, 1, n, m), one.expand(1, 1, n, n), torch.ones(1, T, m, dtype=DOUBLE), h0,
            states=goal, Qf=10 * one[None],
        ), gains=True,
    )  # fmt: skip
    assert torch.allclose(found.u, same.u)
    assert torch.allclose(found.h, same.h)
    assert torch.allclose(found.costate[:, 1:], same.costate[:, 1:])
    assert torch.allclose(found.K, same.K.expand_as(found.K))
    assert (found.iterations == 1).all()


def test_mpc_pytorch_finds_the_same_plan():
    """Both solve mpc.pytorch's own pendulum, with its bounds, from the same start."""
    mpc = pytest.importorskip("mpc.mpc", reason="mpc.pytorch is not installed")

    class Batched(torch.nn.Module):
        def forward(self, h, u):
            return vmap(pendulum)(h, u)

    T, h0 = 15, hanging(3) * torch.tensor([0.1, 1.0], dtype=DOUBLE)
    weights = torch.tensor([1.0, 0.1, 0.05], dtype=DOUBLE)
    solver = mpc.MPC(
        2, 1, T + 1, u_lower=-1.0, u_upper=1.0, lqr_iter=100, grad_method=mpc.GradMethods.AUTO_DIFF, verbose=-1,
        exit_unconverged=False, eps=1e-9, backprop=False, u_init=h0.new_zeros(T + 1, 3, 1),
    )  # fmt: skip
    C, c = torch.diag(weights).expand(T + 1, 3, 3, 3), h0.new_zeros(T + 1, 3, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch to mpc, of functions that have new names
        _, theirs, _ = solver(h0, mpc.QuadCost(C, c), Batched())
    ours = ilqr(
        pendulum, lambda h, u: 0.5 * (weights * torch.cat([h, u]).square()).sum(), h0, T,
        terminal=lambda h: 0.5 * (weights[:2] * h.square()).sum(), action_size=1, u_min=-1, u_max=1,
    )  # fmt: skip
    assert ours.converged.all()
    assert (ours.u.abs() == 1).any(), "no bound was active"
    assert torch.allclose(ours.u, theirs[:T].transpose(0, 1), atol=1e-4)


@pytest.mark.parametrize(("name", "T"), [("pendulum", 15), ("cartpole", 12)])
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch to mpc, of functions that have new names
def test_systems_of_mpc_pytorch_cost_as_much(name, T):
    """Its own dynamics, goals, weights and bounds."""
    mpc = pytest.importorskip("mpc.mpc", reason="mpc.pytorch is not installed")
    systems = pytest.importorskip(f"mpc.env_dx.{name}", reason="mpc.pytorch is not installed")
    system = {"pendulum": "PendulumDx", "cartpole": "CartpoleDx"}[name]
    system = getattr(systems, system)(
        torch.tensor({"pendulum": [10, 1, 1], "cartpole": [9.8, 1, 0.1, 0.5]}[name]).double()
    )
    angle, speed = torch.tensor([0.8, -1.2]).double(), torch.tensor([0.3, 0.5]).double()
    h0 = torch.stack([angle.cos(), angle.sin(), speed], -1)
    h0 = h0 if name == "pendulum" else torch.cat([torch.tensor([[0.1, -0.2], [-0.3, 0.4]]).double(), h0], -1)
    n, weights = system.n_state, torch.cat([system.goal_weights, torch.tensor([system.ctrl_penalty])]).double()
    slope = -torch.cat([system.goal_weights.sqrt() * system.goal_state, torch.zeros(1)]).double()
    solver = mpc.MPC(
        n, 1, T + 1, u_lower=system.lower, u_upper=system.upper, lqr_iter=200, verbose=-1, exit_unconverged=False,
        eps=1e-7, grad_method=mpc.GradMethods.AUTO_DIFF, linesearch_decay=system.linesearch_decay,
        max_linesearch_iter=system.max_linesearch_iter, backprop=False,
    )  # fmt: skip
    theirs = solver(h0, mpc.QuadCost(torch.diag(weights).expand(T + 1, 2, -1, -1), slope.expand(T + 1, 2, -1)), system)

    def cost(h, u):
        x = torch.cat([h, u])
        return 0.5 * (weights * x.square()).sum() + (slope * x).sum()

    def dynamics(h, u):
        return system(h[None], u[None])[0]

    ours = ilqr(dynamics, cost, h0, T, terminal=lambda h: cost(h, 0 * h[:1]), action_size=1, u_min=system.lower,
                u_max=system.upper)  # fmt: skip
    assert ours.converged.all()
    assert torch.allclose(ours.cost, theirs[2].detach(), rtol=1e-5)


def sample(h0, mass, path, weight, limit):
    """Every output of three pendulums, as a function of all that can have a gradient."""

    def dynamics(h, u, params):
        return pendulum(h, u * params["mass"])

    def cost(h, u, params):
        return upright(h, u) + weight * (h[1] - params["path"][0]) ** 2

    def terminal(h, params):
        return stands(h) + (h[0] * params["path"][1]) ** 2

    found = ilqr(
        dynamics, cost, h0, 12, terminal=terminal, params={"mass": mass, "path": path}, action_size=1, u_min=-limit,
        u_max=limit, tolerance=1e-11,
    )  # fmt: skip
    assert (found.u.abs() == limit).any()
    assert (found.u.abs() < limit).flatten(1).any(-1).all()
    return found.u, found.h, found.costate, found.cost


def test_gradients_equal_finite_differences():
    torch.manual_seed(0)
    h0 = torch.tensor([[0.3, -0.4], [0.5, -0.8], [0.4, -0.5]], dtype=DOUBLE)
    mass = torch.tensor([[[1.0]], [[1.1]], [[1.2]]], dtype=DOUBLE)
    path = 0.3 * torch.randn(1, 13, 2, dtype=DOUBLE)
    inputs = [x.requires_grad_() for x in (h0, mass, path, torch.tensor(0.2).double(), torch.tensor(1.5).double())]
    assert torch.autograd.gradcheck(sample, inputs, eps=1e-5, atol=1e-5, rtol=1e-5)


def test_networks_learn_through_the_plan():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()

    def dynamics(h, u):
        return h + 0.1 * net(torch.cat([h, u]))

    def plan():
        return ilqr(dynamics, lambda h, u: h.square().sum() + u.square().sum(), torch.ones(2).double(), 6,
                    action_size=1, tolerance=1e-10)  # fmt: skip

    plan().u[0].sum().backward()
    weight = net[0].weight
    for place in ((0, 0), (3, 2)):
        ends = []
        for move in (1e-5, -1e-5):
            with torch.no_grad():
                weight[place] += move
                ends.append(float(plan().u[0].sum()))
                weight[place] -= move
        assert float(weight.grad[place]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4)


def test_costates_are_slopes_of_the_cost():
    h0 = hanging(3).requires_grad_()
    found = ilqr(pendulum, upright, h0, 20, terminal=stands, action_size=1, u_min=-1, u_max=1, tolerance=1e-9)
    assert torch.allclose(torch.autograd.grad(found.cost.sum(), h0)[0], found.costate[:, 0], rtol=1e-6)


def test_gains_answer_to_a_push():
    found = ilqr(pendulum, upright, hanging(1)[0], 60, terminal=stands, action_size=1)
    assert found.K.shape == (60, 1, 2)

    def cost(gains):
        h, price = found.h[0] + torch.tensor([0.05, 0.05], dtype=DOUBLE), 0
        for t in range(60):
            u = found.u[t] + gains[t] @ (h - found.h[t])
            price, h = price + upright(h, u), pendulum(h, u)
        return float(price + stands(h))

    assert cost(found.K) < cost(0 * found.K)


def test_a_warm_start_takes_fewer_iterations():
    way = dict(terminal=stands, u_min=-2, u_max=2)
    first = ilqr(pendulum, upright, hanging(4), 40, action_size=1, **way)
    again = ilqr(pendulum, upright, hanging(4), 40, u=first.u, **way)
    assert (again.iterations == 0).all()
    later = torch.cat([first.u[:, 1:], first.u[:, -1:]], 1)
    moved = ilqr(pendulum, upright, first.h[:, 1], 40, u=later, **way)
    cold = ilqr(pendulum, upright, first.h[:, 1], 40, action_size=1, **way)
    assert moved.iterations.sum() < cold.iterations.sum()


def test_a_start_that_is_not_finite_is_left_out():
    u = torch.ones(2, 10, 1, dtype=DOUBLE)
    u[1, 3] = torch.nan
    found = ilqr(pendulum, upright, hanging(2), 10, terminal=stands, u=u)
    assert found.converged.all()
    cold = ilqr(pendulum, upright, hanging(2)[1], 10, terminal=stands, action_size=1)
    assert torch.allclose(found.u[1], cold.u)


def test_problems_do_not_touch_each_other():
    h0 = hanging(6).reshape(2, 3, 2)
    mass = torch.rand(1, 3, 1, 1, dtype=DOUBLE) + 0.5

    def dynamics(h, u, mass):
        return pendulum(h, u * mass)

    def run(h0, mass, u):
        return ilqr(dynamics, lambda h, u, _: upright(h, u), h0, 25, terminal=lambda h, _: stands(h), params=mass, u=u)

    u = torch.zeros(2, 3, 25, 1, dtype=DOUBLE)
    whole = run(h0, mass, u)
    assert whole.cost.shape == whole.status.shape == (2, 3)
    alone = run(h0[1, 2], mass[0, 2], u[1, 2])
    assert torch.allclose(whole.u[1, 2], alone.u, atol=1e-6)
    assert whole.iterations[1, 2] == alone.iterations


def test_an_iteration_limit_gives_a_warning():
    with pytest.warns(RuntimeWarning, match=r"problem \(0,\) of the batch was still under way .* as 2 others"):
        found = ilqr(pendulum, upright, hanging(3), 40, terminal=stands, action_size=1, max_iterations=2)
    assert (found.status == Status.ITERATION_LIMIT).all()
    assert (found.residual > 1e-6).all()
    assert (found.iterations == 2).all()


def test_a_kink_stalls_and_gives_a_warning():
    def cost(h, u):
        return (h[0] - 1).abs() + u.abs().sum()

    with pytest.warns(RuntimeWarning, match=r"the problem found no further step"):
        found = ilqr(lambda h, u: h + u, cost, torch.zeros(1, dtype=DOUBLE), 4, action_size=1, u=None)
    assert found.status == Status.STALLED


def bad_root(h, u):
    return torch.stack([0.5 * (h[0] + 0.8).sqrt() + u[0]])


def square(h, u):
    return h.square().sum() + u.square().sum()


def test_a_nan_is_traced_to_problem_and_step():
    h0 = torch.tensor([[1.0], [0.5], [-1.0]])
    with raises("not-finite", "dynamics", r"step 1 in problem \(2,\)"):
        ilqr(bad_root, square, h0, 5, action_size=1)
    with raises("not-finite", "cost", r"step 1 in problem \(2,\)"):
        ilqr(lambda h, u: h + u, lambda h, u: h[0].log() + u[0] ** 2, h0, 5, action_size=1)
    with raises("not-finite", "terminal", r"problem \(2,\)"):
        ilqr(lambda h, u: h + u, square, h0, 5, action_size=1, terminal=lambda h: h[0].log())
    with raises("not-finite", "h0", r"problem \(1,\)"):
        ilqr(lambda h, u: h + u, square, torch.tensor([[0.0], [torch.nan]]), 5, action_size=1)


def test_the_others_are_solved_and_have_gradients():
    h0 = torch.tensor([[1.0], [0.5], [-1.0]], dtype=DOUBLE, requires_grad=True)
    found = ilqr(bad_root, square, h0, 5, action_size=1, check=False)
    assert found.status.tolist() == [Status.CONVERGED, Status.CONVERGED, Status.NOT_FINITE]
    found.u[:2].sum().backward()
    assert h0.grad[:2].isfinite().all()
    alone = h0.detach()[:2].requires_grad_()
    ilqr(bad_root, square, alone, 5, action_size=1).u.sum().backward()
    assert torch.allclose(h0.grad[:2], alone.grad)


def test_one_bad_bound_leaves_the_others_alone():
    u_max = torch.full((4, 1, 1), 0.5, dtype=DOUBLE)
    u_max[1], u_max[2] = -1, math.nan
    found = ilqr(pendulum, upright, hanging(4), 8, action_size=1, u_min=-0.4, u_max=u_max, check=False)
    assert found.status.tolist() == [0, Status.INFEASIBLE, Status.NOT_FINITE, 0]
    right = ilqr(pendulum, upright, hanging(4), 8, action_size=1, u_min=-0.4, u_max=0.5)
    assert torch.allclose(found.u[[0, 3]], right.u[[0, 3]])


def test_a_minimum_that_is_not_strict_has_no_gradient():
    h0 = torch.tensor([[0.0], [1.0]], dtype=DOUBLE, requires_grad=True)

    def cost(h, u):  # at h = 0 the action costs nothing and does nothing
        return (h[0] * u[0]) ** 2 + h[0] * u[0]

    found = ilqr(lambda h, u: h + 0 * u, cost, h0, 3, action_size=1)
    assert found.converged.all()
    with raises("no-derivative", "ilqr", r"problem \(0,\)"):
        found.u.sum().backward()


def test_transforms_are_refused():
    """Without a rule, forward mode would give zeros."""

    def price(h):
        return ilqr(pendulum, upright, h, 5, terminal=stands, action_size=1, check=False).cost

    h0 = hanging(2)
    for transform in (
        jacfwd,
        jacrev,
        vmap,
        lambda f: grad(lambda h: f(h).sum()),
        lambda f: lambda h: jvp(f, (h,), (h,)),
    ):
        with raises("no-derivative", "ilqr"):
            transform(price)(h0)
    with forward_ad.dual_level(), raises("no-derivative", "ilqr"):
        price(forward_ad.make_dual(h0, h0))


def test_second_derivatives_are_refused():
    h0 = hanging(1).requires_grad_()
    found = ilqr(pendulum, upright, h0, 5, terminal=stands, action_size=1)
    with raises("no-derivative", "ilqr"):
        torch.autograd.grad(found.u.sum(), h0, create_graph=True)


@pytest.mark.parametrize(
    ("code", "field", "change"),
    [
        ("shape", "dynamics", dict(dynamics=lambda h, u: h[:1])),
        ("shape", "cost", dict(cost=lambda h, u: u.square())),
        ("shape", "terminal", dict(terminal=lambda h: h)),
        ("type", "dynamics", dict(dynamics=None)),
        ("type", "cost", dict(cost=lambda h, u: 0.0)),
        ("type", "dynamics", dict(dynamics=lambda h, u, params: h)),
        ("type", "cost", dict(cost=lambda h, u: u[0] ** 2, params=torch.ones(1))),
        ("type", "terminal", dict(terminal=lambda h, params: h[0])),
        ("type", "dynamics", dict(dynamics=lambda h, u: h + u if h[0] > 0 else h)),
        ("type", "cost", dict(cost=lambda h, u: torch.tensor(h[0].item()))),
        ("type", "dynamics", dict(dynamics=lambda h, u: torch.tensor([float(h[0]), 0.0]))),
        ("dtype", "dynamics", dict(dynamics=lambda h, u: torch.eye(2, dtype=DOUBLE) @ h)),
        ("shape", "dynamics", dict(dynamics=lambda h, u: torch.stack([h[:, 0], h[:, 1]], -1))),
        ("shape", "dynamics", dict(dynamics=lambda h, u: torch.eye(3) @ h)),
        ("type", "u_max", dict(u_max="a")),
        ("dtype", "dynamics", dict(dynamics=lambda h, u: pendulum(h, u).double())),
        ("dtype", "h0", dict(h0=torch.zeros(2).half())),
        ("shape", "h0", dict(h0=torch.zeros(()))),
        ("missing", "action_size", dict(action_size=None)),
        ("missing", "action_size", dict(u=torch.zeros(4, 2))),
        ("shape", "u", dict(u=torch.zeros(5, 1))),
        ("too-small", "horizon", dict(horizon=0)),
        ("too-small", "max_iterations", dict(max_iterations=0)),
        ("out-of-range", "u_min", dict(u_min=1, u_max=-1)),
        ("shape", "u_min", dict(u_min=torch.zeros(3))),
        ("not-finite", "u_max", dict(u_max=math.nan)),
        ("shape", "params", dict(params=torch.zeros(3, 2))),
        ("type", "params", dict(params={"a": 1.0})),
        ("shape", "leading dimensions", dict(h0=torch.zeros(3, 2), u=torch.zeros(2, 4, 1))),
    ],
)
def test_wrong_arguments(code, field, change):
    given = dict(dynamics=pendulum, cost=upright, h0=torch.zeros(2), horizon=4, action_size=1) | change
    with raises(code, field):
        ilqr(given.pop("dynamics"), given.pop("cost"), given.pop("h0"), given.pop("horizon"), **given)
