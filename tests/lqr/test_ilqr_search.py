"""Where the search behind ilqr ends: solutions without an action cost, maxima, costs without a minimum."""

import math

import pytest
import torch
from torch.func import vmap

from ttcnet.lqr import Status, ilqr

DOUBLE = torch.float64


def swing(h, u):
    return torch.stack([h[0] + 0.05 * h[1], h[1] + 0.05 * (15 * h[0].sin() + 3 * u[0])])


def slopes(dynamics, cost, h0, u):
    """Of the cost over the actions, by autograd's means alone."""

    def total(h, u):
        price = 0
        for action in u.unbind(0):
            price, h = price + cost(h, action), dynamics(h, action)
        return price

    u = u.detach().requires_grad_()
    return torch.autograd.grad(vmap(total)(h0, u).sum(), u)[0]


@pytest.mark.parametrize("price", [0.0, 1e-12, 1e-8, 1e-4])
@pytest.mark.parametrize("angle", [3.0, 2.5, 1.0])
@pytest.mark.parametrize("limit", [2.0, 8.0])
def test_actions_that_cost_next_to_nothing(price, angle, limit):
    """The feedback of later actions takes nearly every slope away, but not the cost."""

    def cost(h, u):
        return 1 - h[0].cos() + price * u[0] ** 2

    h0 = torch.tensor([[angle, 0.0]], dtype=DOUBLE)
    found = ilqr(swing, cost, h0, 20, action_size=1, u_min=-limit, u_max=limit)
    slope, nothing = slopes(swing, cost, h0, found.u), slopes(swing, cost, h0, 0 * found.u)
    held = ((found.u == limit) & (slope <= 0)) | ((found.u == -limit) & (slope >= 0))
    assert found.converged
    assert slope[~held].abs().sum() < 1e-4 * nothing.abs().max()


def test_a_maximum_is_left():
    def cost(h, u):
        return -(h[0] ** 2) + 0.1 * u[0] ** 2

    h0 = torch.zeros(3, 1, dtype=DOUBLE)
    h0[1] = 0.5
    found = ilqr(lambda h, u: h + u, cost, h0, 10, action_size=1, u_min=-1, u_max=1)
    assert found.converged.all()
    assert (found.h[:, -2, 0].abs() >= 9 - 1e-9).all()
    assert torch.equal(found.u[0], found.u[2])


def test_a_maximum_is_left_without_bounds():
    found = ilqr(
        lambda h, u: h + 0 * u, lambda h, u: (h[0] + u[0]).cos(), torch.tensor([[0.0], [0.1]], dtype=DOUBLE), 3,
        action_size=1,
    )  # fmt: skip
    assert found.converged.all()
    assert torch.allclose(found.cost, torch.tensor(-3.0).double())


def test_a_pendulum_that_hangs_still_swings_up():
    def cost(h, u):
        return 0.05 * (1 - h[0].cos() + 0.05 * h[1] ** 2 + 0.01 * u[0] ** 2)

    def terminal(h):
        return 20 * (1 - h[0].cos()) + 2 * h[1] ** 2

    found = ilqr(
        swing,
        cost,
        torch.tensor([[math.pi, 0.0]], dtype=DOUBLE),
        60,
        terminal=terminal,
        action_size=1,
        u_min=-5,
        u_max=5,
    )
    assert found.converged
    assert (1 - found.h[:, -1, 0].cos()) < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize(
    "cost",
    [lambda h, u: h[0] + 0 * u[0], lambda h, u: -(h[0] ** 2) + 0.1 * u[0] ** 2, lambda h, u: -(h[0].exp()) + u[0] ** 2],
    ids=["linear", "quadratic", "exponential"],
)
def test_a_cost_that_falls_without_end_is_named(cost, dtype):
    h0 = torch.tensor([[0.1], [0.5]], dtype=dtype)
    with pytest.warns(RuntimeWarning, match=r"problem \(0,\) of the batch has a cost that falls without end.*[Bb]ound"):
        found = ilqr(lambda h, u: h + u, cost, h0, 10, action_size=1)
    assert (found.status == Status.NO_MINIMUM).all()
    assert found.u.isfinite().all()
