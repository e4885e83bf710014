"""The horizon and the loops of a whole model: set in one way, read in one place; an argument of a call goes first."""

from unittest.mock import patch

import pytest
import torch

import ttcnet.adapter as adapter
from tests.adapter.bases import awake
from tests.raising import raises
from ttcnet.models import TTCNetConfig, TTCNetForCausalLM, horizon, loops, set_horizon, set_loops
from ttcnet.models.horizon_and_loops import horizon_of
from ttcnet.nn import TTCLayer, ttc_layers

TOKENS = torch.arange(12).view(2, 6)


def net(**options):
    torch.manual_seed(0)
    sizes = dict(vocab_size=40, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, ttc_heads=2, ttc_rank=4)
    return TTCNetForCausalLM(TTCNetConfig(**sizes, interleave="1:1", horizon=3, loops=2, **options)).eval()


MODELS = {"ttcnet": net, "inserted": lambda: awake(horizon=3).eval()}


def planned(model, **options):
    """The horizons that the TTC layers were called with."""
    seen, real = [], TTCLayer.forward

    def forward(self, x, horizon=None, **more):
        seen.append(horizon)
        return real(self, x, horizon, **more)

    with patch.object(TTCLayer, "forward", forward):
        model(TOKENS, **options)
    return set(seen)


@pytest.mark.parametrize("kind", MODELS)
def test_the_horizon_of_a_model(kind):
    model = MODELS[kind]()
    assert horizon_of(model) == 3
    assert planned(model) == {3}
    assert planned(model, horizon=5) == {5}
    set_horizon(model, 4)
    assert planned(model) == {4}
    with horizon(model, 7):
        assert planned(model) == {7}
        assert planned(model, horizon=5) == {5}
    assert planned(model) == {4}
    with pytest.raises(KeyError), horizon(model, 7):
        raise KeyError
    assert horizon_of(model) == model.config.horizon == 4


@pytest.mark.parametrize("kind", MODELS)
def test_inside_wrappers(kind):
    model = MODELS[kind]()
    set_horizon(torch.nn.Sequential(model), 6)
    assert planned(model) == {6}


def test_the_adapter_has_the_same_functions():
    assert adapter.set_horizon is set_horizon
    assert adapter.horizon is horizon


def test_the_loops_of_a_model():
    model = net()
    calls = []
    next(iter(ttc_layers(model).values())).register_forward_hook(lambda *_: calls.append(1))

    def count(**options):
        calls.clear()
        model(TOKENS, use_cache=False, **options)
        return len(calls)

    assert count() == 2
    assert count(loops=5) == 5
    set_loops(model, 3)
    assert count() == 3
    with loops(model, 4):
        assert count() == 4
    assert count() == model.config.loops == 3


def test_settings_that_are_errors():
    model = net()
    with raises("too-small", "horizon", "-1"):
        set_horizon(model, -1)
    with raises("too-small", "loops", "0"), loops(model, 0):
        pass
    assert (model.config.horizon, model.config.loops) == (3, 2)
    with raises("no-layers", "model", "Linear"):
        set_horizon(torch.nn.Linear(2, 2), 4)
    with raises("unsupported-model", "model", "TTCLlamaForCausalLM"):
        set_loops(awake(), 2)
    with raises("unsupported-model", "model", "TTCLayer"):
        set_horizon(TTCLayer(8, heads=2), 4)
    assert horizon_of(torch.nn.Linear(2, 2)) is None


def test_compiled_layers_take_the_horizon_as_a_number_that_varies():
    """Torch compiles anew for an attribute that changes, and gives up after 8 times."""
    model = awake().eval()
    torch._dynamo.reset()
    graphs = torch._dynamo.utils.counters["stats"]
    graphs.clear()
    for layer in model.model.layers:
        layer.compile(backend="eager")
    with torch.no_grad():
        for steps in (8, 5, 7, 9, 11, 12, 16, 20, 24, 32):
            set_horizon(model, steps)
            model(TOKENS, use_cache=False)
    assert graphs["unique_graphs"] <= 5
    torch._dynamo.reset()
