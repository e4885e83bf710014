"""Bad input is answered with field, rule, value and remedy."""

from types import MethodType

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

import ttcnet.adapter as adapter
from tests.raising import raises
from ttcnet.adapter.families import FAMILIES

from .bases import SIZES, awake, base, config, tokens


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (dict(every=0), ("format", "every", "0")),
        (dict(every="eight"), ("format", "every")),
        (dict(every="8:0"), ("format", "every")),
        (dict(every="8:"), ("format", "every")),
        (dict(every="²"), ("format", "every")),
        (dict(every=True), ("format", "every")),
        (dict(every=8.0), ("format", "every")),
        (dict(every=None), ("format", "every")),
        (dict(insert="lstm"), ("unknown-name", "insert", "'lstm'")),
        (dict(heads=0), ("too-small", "heads", "0")),
        (dict(heads=2.0), ("type", "heads", "2.0")),
        (dict(state_size="16"), ("type", "state_size")),
        (dict(action_size=-1), ("too-small", "action_size")),
        (dict(rank=True), ("type", "rank", "True")),
        (dict(horizon=-1), ("too-small", "horizon", "-1")),
        (dict(time_homogeneous=1), ("unknown-name", "time_homogeneous", "1")),
        (dict(zero_init=None), ("type", "zero_init")),
        (dict(dropout=1.0), ("out-of-range", "dropout", "1.0")),
        (dict(dropout="much"), ("out-of-range", "dropout")),
        (dict(context="world"), ("unknown-name", "context", "'world'")),
        (dict(action_gain=0), ("out-of-range", "action_gain", "0")),
        (dict(action_gain=float("nan")), ("out-of-range", "action_gain", "nan")),
        (dict(action_gain="4"), ("out-of-range", "action_gain", "'4'")),
        (dict(action_gain=True), ("out-of-range", "action_gain", "True")),
    ],
)
def test_bad_configurations(options, error):
    with raises(*error):
        adapter.TTCAdapterConfig(**options)


def test_bad_configurations_of_whole_models():
    whole = adapter.insert(base(), config()).config
    for field, value, error in (
        ("ttc_adapter", {"tempo": 1}, ("unknown-field", "TTCAdapterConfig", "'tempo'")),
        ("ttc_adapter", {"every": 0}, ("format", "every")),
        ("horizon", -1, ("too-small", "horizon")),
    ):
        with raises(*error):
            type(whole).from_dict(whole.to_dict() | {field: value})


def test_unsupported_models_are_errors_that_list_supported_ones():
    other = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=8))
    for model in (other, LlamaForSequenceClassification(LlamaConfig(**SIZES)), torch.nn.Linear(2, 2), None):
        with raises("unsupported-model", "model") as error:
            adapter.insert(model, config())
        assert all(family.generator.__name__ in str(error.value) for family in FAMILIES)


def test_bad_insertions():
    with raises("too-large", "every", "8"):
        adapter.insert(base(), adapter.TTCAdapterConfig())
    with raises("type", "config", "dict"):
        adapter.insert(base(), {"every": 8})
    with raises("has-layers", "model", "TTCLlamaForCausalLM"):
        adapter.insert(awake(), config())
    with torch.device("meta"):
        nowhere = LlamaForCausalLM(LlamaConfig(**SIZES))
    with raises("offloaded", "decoder layer 1"):
        adapter.insert(nowhere, config())


def test_models_that_someone_else_has_changed():
    patched = base()
    patched.model.layers[1].forward = MethodType(lambda self, x, **_: x, patched.model.layers[1])
    before = patched(tokens()).logits
    with raises("unsupported-model", "decoder layer 1"):
        adapter.insert(patched, config())
    assert torch.equal(patched(tokens()).logits, before)
    more = base()
    more.model.layers[3].extra = torch.nn.Identity()
    with raises("unsupported-model", "decoder layer 3", "extra"):
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
    with raises("no-layers", "model", "LlamaForCausalLM"):
        call(base())


def test_bad_horizons():
    model = awake()
    with raises("too-small", "horizon"):
        adapter.set_horizon(model, -1)
    with raises("type", "horizon"):
        adapter.set_horizon(model, 1.5)
    assert model.config.horizon == 8
    model = awake(insert="gdn")
    with raises("no-layers", "model", "TTCLlamaForCausalLM"):
        adapter.set_horizon(model, 4)
    with raises("no-layers", "model"), adapter.horizon(model, 4):
        pass
