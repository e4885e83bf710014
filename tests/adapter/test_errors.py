"""Bad input is answered with field, rule, value and remedy."""

from types import MethodType

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

import ttcnet.adapter as adapter
from ttcnet.adapter.families import FAMILIES

from .bases import SIZES, awake, base, config, tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(every=0), "every must be a whole number of 1 or more, or two with a colon between; got 0"),
        (dict(every="eight"), "every must be a whole number"),
        (dict(every="8:0"), "every must be a whole number"),
        (dict(every="8:"), "every must be a whole number"),
        (dict(every="²"), "every must be a whole number"),
        (dict(every=True), "every must be a whole number"),
        (dict(every=8.0), "every must be a whole number"),
        (dict(every=None), "every must be a whole number"),
        (dict(insert="lstm"), "insert must be one of ttc, attention, .*; got 'lstm'"),
        (dict(heads=0), "heads must be 1 or more; got 0"),
        (dict(heads=2.0), "heads must be an integer; got 2.0"),
        (dict(state_size="16"), "state_size must be an integer"),
        (dict(action_size=-1), "action_size must be 1 or more"),
        (dict(rank=True), "rank must be an integer; got True"),
        (dict(horizon=-1), "horizon must be 0 or more; got -1"),
        (dict(time_homogeneous=1), "time_homogeneous must be False, True or 'pure'; got 1"),
        (dict(zero_init=None), "zero_init must be True or False"),
        (dict(dropout=1.0), r"dropout must lie in \[0, 1\); got 1.0"),
        (dict(dropout="much"), "dropout must lie in"),
        (dict(context="world"), "context must be one of token, head; got 'world'"),
        (dict(action_gain=0), "action_gain must be a positive finite number; got 0"),
        (dict(action_gain=float("nan")), "action_gain must be a positive finite number; got nan"),
        (dict(action_gain="4"), "action_gain must be a positive finite number; got '4'"),
        (dict(action_gain=True), "action_gain must be a positive finite number; got True"),
    ],
)
def test_bad_configurations(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        adapter.TTCAdapterConfig(**options)


def test_bad_configurations_of_whole_models():
    whole = adapter.insert(base(), config()).config
    for field, value, message in (
        ("ttc_adapter", {"tempo": 1}, "got 'tempo'"),
        ("ttc_adapter", {"every": 0}, "every must be a whole number"),
        ("horizon", -1, "horizon must be 0 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            type(whole).from_dict(whole.to_dict() | {field: value})


def test_unsupported_models_are_told_what_is_supported():
    other = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=8))
    for model in (other, LlamaForSequenceClassification(LlamaConfig(**SIZES)), torch.nn.Linear(2, 2), None):
        with pytest.raises(TypeError, match="model must be of a supported class") as error:
            adapter.insert(model, config())
        assert all(family.generator.__name__ in str(error.value) for family in FAMILIES)


def test_bad_insertions():
    with pytest.raises(ValueError, match=r"every must fit the model's 4 decoder layers; got 8. Pass every=4 or less"):
        adapter.insert(base(), adapter.TTCAdapterConfig())
    with pytest.raises(TypeError, match="config must be a TTCAdapterConfig; got dict"):
        adapter.insert(base(), {"every": 8})
    with pytest.raises(ValueError, match="model must have no layers inserted; got TTCLlamaForCausalLM"):
        adapter.insert(awake(), config())
    with torch.device("meta"):
        nowhere = LlamaForCausalLM(LlamaConfig(**SIZES))
    with pytest.raises(ValueError, match="decoder layer 1 must have its weights in memory"):
        adapter.insert(nowhere, config())


def test_models_that_someone_else_has_changed():
    patched = base()
    patched.model.layers[1].forward = MethodType(lambda self, x, **_: x, patched.model.layers[1])
    before = patched(tokens()).logits
    with pytest.raises(ValueError, match="decoder layer 1 must have the forward of its class"):
        adapter.insert(patched, config())
    assert torch.equal(patched(tokens()).logits, before)
    more = base()
    more.model.layers[3].extra = torch.nn.Identity()
    with pytest.raises(TypeError, match=r"decoder layer 3 must be a LlamaDecoderLayer with .*; got .*extra"):
        adapter.insert(more, config())
    assert type(more) is LlamaForCausalLM


@pytest.mark.parametrize(
    "call",
    [
        lambda model: adapter.set_horizon(model, 8),
        lambda model: adapter.horizon(model, 8).__enter__(),
        adapter.disable,
        adapter.enable,
        lambda model: adapter.disabled(model).__enter__(),
        adapter.parameters,
        adapter.freeze_base,
        adapter.train_all,
        adapter.remove,
        lambda model: adapter.save(model, "nowhere"),
    ],
)
def test_a_model_without_insertions(call):
    with pytest.raises(ValueError, match="model must have layers inserted; got LlamaForCausalLM"):
        call(base())


def test_bad_horizons():
    model = awake()
    with pytest.raises(ValueError, match="horizon must be 0 or more"):
        adapter.set_horizon(model, -1)
    with pytest.raises(TypeError, match="horizon must be an integer"):
        adapter.set_horizon(model, 1.5)
    assert model.config.horizon == 8
    model = awake(insert="gdn")
    with pytest.raises(ValueError, match="model must have TTC layers to set their horizon; got gdn"):
        adapter.set_horizon(model, 4)
    with pytest.raises(ValueError, match="model must have TTC layers"), adapter.horizon(model, 4):
        pass
