"""TTC layers and mixers as modules of PyTorch: devices of parameters, and torch's transformations."""

import pytest
import torch
from torch.export import Dim
from torch.func import functional_call, grad, jacrev, vmap

from tests.raising import raises
from ttcnet.nn import Inserted, TTCLayer, mixers
from ttcnet.nn.options import CONTEXTS


def everywhere(module, device, dtype):
    return all(p.device == torch.device(device) and p.dtype == dtype for p in module.state_dict().values())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_layer_on_a_device_and_of_a_dtype(dtype):
    torch.manual_seed(0)
    plain = TTCLayer(24, heads=3)
    torch.manual_seed(0)
    assert torch.equal(TTCLayer(24, heads=3, device="cpu", dtype=torch.float32).out.weight, plain.out.weight)
    layer = TTCLayer(24, heads=3, device="cpu", dtype=dtype)
    assert everywhere(layer, "cpu", dtype)
    x = torch.randn(2, 24, dtype=dtype)
    assert layer(x).dtype == dtype


def built(kind):
    """A layer, an inserted mixer or a mixer alone, with their options."""
    if kind in CONTEXTS:
        return lambda **where: TTCLayer(24, heads=3, zero_init=True, action_gain=2.0, context=kind, **where)
    if kind.startswith("+"):
        return lambda **where: Inserted(kind[1:], dict(width=24, heads=3), zero_init=True, **where)
    return lambda **where: mixers.build(kind, 24, heads=3, **where)


@pytest.mark.parametrize("kind", [*CONTEXTS, *mixers.KINDS, *(f"+{name}" for name in mixers.KINDS)])
def test_without_memory_then_with_memory_then_drawn(kind):
    make = built(kind)
    module = make(device="meta", dtype=torch.float64)
    assert everywhere(module, "meta", torch.float64)
    module.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(torch.nan)  # what memory holds may look like anything
    other = make(device="cpu", dtype=torch.float64)
    for one in (module, other):
        torch.manual_seed(0)
        one.reset_parameters()
    for (name, drawn), expected in zip(module.state_dict().items(), other.state_dict().values(), strict=True):
        assert drawn.isfinite().all(), name
        assert torch.equal(drawn, expected), name
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    y = module(x)
    assert y.dtype == torch.float64
    if kind in CONTEXTS:
        assert torch.equal(y, x), "zero_init"
    elif kind.startswith("+"):
        assert not y.any(), "zero_init"


@pytest.fixture(params=["token", "system"])
def layer(request):
    torch.manual_seed(0)
    return TTCLayer(12, heads=2, state_size=3, rank=2, horizon=4, context=request.param)


@pytest.fixture
def x():
    return torch.randn(5, 12, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_functions_of_the_parameters(layer, x, backend):
    """grad, vmap, jacrev and functional_call against autograd."""
    layer.backend = backend
    parameters = dict(layer.named_parameters())

    def loss(parameters, x):
        return functional_call(layer, parameters, (x,)).square().sum()

    wanted = torch.autograd.grad(loss(parameters, x), parameters.values())
    found = grad(loss)(parameters, x)
    each = vmap(grad(loss), in_dims=(None, 0))(parameters, x)  # a gradient for every token
    for name, expected in zip(parameters, wanted, strict=True):
        assert torch.allclose(found[name], expected, rtol=1e-4, atol=1e-5), name
        assert torch.allclose(each[name].sum(0), expected, rtol=1e-4, atol=1e-5), name
        assert each[name].shape == (5, *expected.shape)
    assert torch.allclose(vmap(layer)(x), layer(x), atol=1e-5)
    jacobian = torch.autograd.functional.jacobian(layer, x[0])
    assert torch.allclose(jacrev(layer)(x[0]), jacobian, atol=1e-5)
    assert torch.allclose(vmap(jacrev(layer))(x)[0], jacobian, atol=1e-5)


def test_a_plan_for_every_row_of_a_batch(layer, x):
    found = vmap(lambda row: layer(row, return_plan=True)[1].cost)(x)
    assert torch.allclose(found, layer(x, return_plan=True)[1].cost, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # torch 2.11 to itself, in `load`
def test_exported_with_a_free_horizon(layer, x, tmp_path):
    shapes = ({0: Dim("tokens")}, Dim.DYNAMIC)
    program = torch.export.export(layer.eval(), (x, 6), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "layer.pt2")
    exported = torch.export.load(tmp_path / "layer.pt2").module()
    for tokens, horizon in ((5, 6), (1, 1), (3, 2), (8, 40), (2, 300)):
        y = torch.randn(tokens, 12, requires_grad=True)
        found, wanted = exported(y, horizon), layer(y, horizon)
        assert torch.equal(found, wanted), horizon
        assert torch.allclose(*(torch.autograd.grad(out.square().sum(), y)[0] for out in (found, wanted)), atol=1e-5)
    for horizon in (0, -1, 65_537):  # torch's word for it, or ours where torch lets it through
        with pytest.raises((AssertionError, RuntimeError, ValueError)):
            exported(x, horizon)


def test_exported_with_the_horizon_of_the_layer(layer, x):
    exported = torch.export.export(layer, (x,), dynamic_shapes=({0: Dim("tokens")},)).module()
    assert torch.equal(exported(x[:2]), layer(x[:2]))


@pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated")
def test_jit_trace_is_refused_with_a_sentence(layer, x):
    with raises("not-traceable", "plan"):
        torch.jit.trace(layer, x)
