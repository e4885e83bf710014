"""The infinite horizon against SciPy, and its gradients."""

import numpy as np
import pytest
import scipy.linalg
import torch
from torch.func import grad, jacfwd, jacrev, vmap

from tests.raising import raises
from ttcnet.lqr import LQR, dare, solve

NAMES = ("A", "B", "Q", "R", "N")


def system(n, m, batch=(), seed=0, size=1.0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*batch, *shape, generator=generator, dtype=torch.float64)

    root = normal(n + m, n + m)
    joint = root @ root.mT / (n + m) + 0.1 * torch.eye(n + m)
    return (
        size * normal(n, n) / n**0.5, normal(n, m), joint[..., :n, :n], joint[..., n:, n:], joint[..., :n, n:].clone()
    )  # fmt: skip


@pytest.mark.parametrize(("n", "m"), [(1, 1), (4, 2), (3, 5), (20, 3)])
@pytest.mark.parametrize("size", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("cross", [False, True])
def test_against_scipy(n, m, size, cross):
    A, B, Q, R, N = system(n, m, (3,), size=size)
    found = dare(A, B, Q, R, N if cross else None)
    for k in range(3):
        args = [x[k].numpy() for x in (A, B, Q, R)]
        P = scipy.linalg.solve_discrete_are(*args, s=N[k].numpy() if cross else None)
        np.testing.assert_allclose(found.P[k], P, rtol=1e-8, atol=1e-9 * np.abs(P).max())
    assert torch.equal(found.P, found.P.mT)
    assert (torch.linalg.eigvals(A + B @ found.K).abs() < 1).all()


def test_a_long_plan_gets_there():
    A, B, Q, R, N = system(4, 2)
    T, h0 = 400, torch.ones(4, dtype=torch.float64)
    found = dare(A, B, Q, R, N)
    plan = solve(LQR(*(x.unsqueeze(0) for x in (A, B, Q, R)), h0, N=N.unsqueeze(0), horizon=T), gains=True)
    torch.testing.assert_close(plan.K[0], found.K, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(plan.P[1], found.P, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name):
    values = dict(zip(NAMES, system(3, 2, (2,)), strict=True))

    def both(value):
        value = (value + value.mT) / 2 if name in "QR" else value
        return tuple(dare(**{**values, name: value}))

    assert torch.autograd.gradcheck(both, (values[name].clone().requires_grad_(),))
    values = {key: x[0] for key, x in values.items()}
    assert torch.autograd.gradgradcheck(both, (values[name].clone().requires_grad_(),))


@pytest.mark.parametrize("name", NAMES)
def test_torch_func(name):
    values = dict(zip(NAMES, system(3, 2, (4,)), strict=True))

    def slope(*fields):
        found = dare(*fields, check=False)
        return found.K.sin().sum() + found.P.cos().sum()

    index = NAMES.index(name)
    found = vmap(grad(slope, index))(*values.values())
    for k in range(4):
        fields = [x[k] for x in values.values()]
        for transform in (grad, jacrev, jacfwd):
            torch.testing.assert_close(transform(slope, index)(*fields), found[k], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("price", [1.0, 1e-3, 1e-6, 1e-9])
def test_cheap_actions_cost_no_digits(price):
    """SciPy's answers meet the equation to 1e-9, which is their distance."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        A, B, half = (
            torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((12, 12), (12, 1), (12, 6))
        )
        A, Q, R = 1.2 * A / 12**0.5, half @ half.mT, price * torch.ones(1, 1, dtype=torch.float64)
        found = dare(A, B, Q, R)
        P = torch.from_numpy(scipy.linalg.solve_discrete_are(*(x.numpy() for x in (A, B, Q, R))))
        terms = (A.mT @ found.P @ A, A.mT @ found.P @ B @ found.K, Q, -found.P)
        assert sum(terms).abs().max() < 1e-12 * max(x.abs().max() for x in terms)
        assert (found.P - P).abs().max() < 1e-8 * P.abs().max()


@pytest.mark.parametrize(("Q", "N"), [(-50.0, 0.0), (1.0, 3.0)])
def test_a_cost_without_a_minimum_is_named(Q, N):
    one = torch.ones(2, 1, 1, dtype=torch.float64)
    Qs, Ns = torch.cat([one[:1], Q * one[:1]]), torch.cat([0 * one[:1], N * one[:1]])
    with raises("not-positive", "[Q N; N' R]", r"problem \(1,\) of the batch"):
        dare(1.1 * one, one, Qs, one, Ns)
    found = dare(1.1 * one, one, Qs, one, Ns, check=False)
    assert found.P[1].isnan().all()
    torch.testing.assert_close(found.P[0], dare(1.1 * one[0], one[0], one[0], one[0]).P)


def test_wrong_batches_and_checks_under_vmap():
    A, B, Q, R, _ = system(3, 1, (2,))
    with raises("shape", "leading dimensions", r"B \(3,\)"):
        dare(A, B[:1].expand(3, -1, -1), Q, R)
    with raises("conflict", "check"):
        vmap(lambda A: dare(A, B[0], Q[0], R[0]).P)(A)


def test_a_problem_that_does_not_settle_is_named():
    A, B, Q, R, _ = system(3, 1, (2,))
    lost = B.clone()
    lost[1] = 0
    with raises("unstable", "closed loop", r"in problem \(1,\) of the batch"):
        dare(3 * torch.eye(3).double() + A, lost, Q, R)
    with raises("shape", "R", r"\(2, 3, 3\)"):
        dare(A, B, Q, Q)
    with raises("not-positive", "R"):
        dare(A, B, Q, -R)


def test_one_bad_problem_leaves_the_others_alone():
    A, B, Q, R, _ = system(3, 1, (2,))
    lost = B.clone()
    lost[1] = 0
    A = 3 * torch.eye(3).double() + A
    found = dare(A, lost, Q, R, check=False)
    torch.testing.assert_close(found.P[0], dare(A[0], B[0], Q[0], R[0]).P)


def test_float32_is_float64_inside():
    fields = system(6, 2, size=2.0)
    single = dare(*(x.float() for x in fields))
    double = dare(*(x.float().double() for x in fields))
    assert single.P.dtype == torch.float32
    torch.testing.assert_close(single.P, double.P.float(), rtol=1e-6, atol=1e-6)
