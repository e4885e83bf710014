"""`plan` under torch.func: every backend, vmap over any field; and errors where there is no rule."""

from dataclasses import replace

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, vmap

from tests.raising import raises
from ttcnet.lqr import ModulatedLQR, plan, solve
from ttcnet.testing.errors import NAMES
from ttcnet.testing.regimes import draw

BACKENDS = ["reference", "fused"]


@pytest.fixture(params=[False, True], ids=["shared", "per head"])
def family(request):
    drawn = draw("trained", tokens=2, heads=2, n=3, m=1, per_head=request.param)
    return ModulatedLQR(**{name: value.double() for name, value in vars(drawn).items()})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dim", [0, -1])
def test_mapped_over_one_field_or_all(family, backend, dim):
    def moved(name):
        return torch.stack([getattr(family, name) * (1 + 0.1 * k) for k in range(3)], dim)

    def of_all(*values):
        return plan(ModulatedLQR(**dict(zip(NAMES, values, strict=True))), 5, backend)

    found = vmap(of_all, in_dims=dim)(*map(moved, NAMES))
    wanted = torch.stack([of_all(*(getattr(family, name) * (1 + 0.1 * k) for name in NAMES)) for k in range(3)])
    assert torch.allclose(found, wanted, rtol=1e-12)
    for name in NAMES:
        found = vmap(lambda value, name=name: plan(replace(family, **{name: value}), 5, backend), in_dims=dim)(
            moved(name)
        )
        wanted = [plan(replace(family, **{name: getattr(family, name) * (1 + 0.1 * k)}), 5, backend) for k in range(3)]
        assert torch.allclose(found, torch.stack(wanted), rtol=1e-12), name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("horizon", [1, 6])
def test_jacobians_are_those_of_autograd(family, backend, horizon):
    """jacrev maps the backward pass over the actions."""
    for name in NAMES:

        def act(value, name=name):
            return plan(replace(family, **{name: value}), horizon, backend, check=False)

        value = getattr(family, name)
        found, wanted = jacrev(act)(value), torch.autograd.functional.jacobian(act, value)
        assert torch.allclose(found, wanted, rtol=1e-10, atol=1e-13), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_grad_inside_and_outside_vmap(family, backend):
    starts = torch.randn(5, *family.h0.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def loss(a, h0):
        return plan(replace(family, a=a, h0=h0), 6, backend).square().sum()

    each = vmap(grad(loss), in_dims=(None, 0))(family.a, starts)
    assert torch.allclose(each, torch.stack([grad(loss)(family.a, h0) for h0 in starts]), rtol=1e-10)
    total = grad(lambda a: vmap(loss, in_dims=(None, 0))(a, starts).sum())(family.a)
    assert torch.allclose(total, each.sum(0), rtol=1e-10)
    nested = vmap(vmap(loss, in_dims=(None, 0)), in_dims=(0, None))(torch.stack([family.a, family.a / 2]), starts)
    assert torch.allclose(nested[1], torch.stack([loss(family.a / 2, h0) for h0 in starts]), rtol=1e-10)


@pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated")  # torch to itself
def test_transforms_without_a_rule_are_errors(family):
    def act(h0, backend="auto"):
        return plan(replace(family, h0=h0), 4, backend)

    for transform in (jacfwd, hessian):
        with raises("no-derivative", "plan"):
            transform(act)(family.h0)
    with raises("no-derivative", "plan"):
        jacrev(jacrev(act))(family.h0)
    with raises("backend", "backend"):
        jacrev(lambda h0: act(h0, "symplectic"))(family.h0)


@pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated")  # torch to itself
def test_the_remedy_for_second_derivatives(family):
    found = hessian(lambda h0: solve(replace(family, h0=h0).unroll(3), check=False).cost.sum())(family.h0)
    assert found.isfinite().all()
    assert found.any()


def test_the_operator_itself_looks_at_the_horizon(family):
    for horizon, code in ((0, "too-small"), (65_537, "too-large")):
        with raises(code, "horizon"):
            torch.ops.ttcnet.plan(*vars(family).values(), horizon, False, "reference")
