"""TTC layers and mixers as modules of PyTorch: where their parameters are, and what torch can do with them."""

import pytest
import torch

from ttcnet.nn import Inserted, TTCLayer, mixers


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
    if kind == "ttc":
        return lambda **where: TTCLayer(24, heads=3, zero_init=True, action_gain=2.0, **where)
    if kind.startswith("+"):
        return lambda **where: Inserted(kind[1:], dict(width=24, heads=3), zero_init=True, **where)
    return lambda **where: mixers.build(kind, 24, heads=3, **where)


@pytest.mark.parametrize("kind", ["ttc", *mixers.KINDS, *(f"+{name}" for name in mixers.KINDS)])
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
    if kind == "ttc":
        assert torch.equal(y, x), "zero_init"
    elif kind.startswith("+"):
        assert not y.any(), "zero_init"
