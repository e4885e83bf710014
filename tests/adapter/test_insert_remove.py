"""Insertion changes one model, in place, and at first nothing that it computes."""

import copy

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaForCausalLM

import ttcnet.adapter as adapter
from ttcnet.adapter.families import FAMILIES as SUPPORTED
from ttcnet.nn import TTCLayer
from ttcnet.nn.mixers import KINDS

from .bases import FAMILIES, awake, base, config, tokens, wake

GREEDY = dict(max_new_tokens=4, do_sample=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_text_are_the_bases_to_the_bit(family, attention, dtype):
    model = base(family, attn_implementation=attention).to(dtype)
    x = tokens()
    mask = torch.ones_like(x)
    mask[0, :3] = 0
    with torch.no_grad():
        logits = model(x, attention_mask=mask).logits
        text = model.generate(x, attention_mask=mask, **GREEDY)
        for insert in ("ttc", "gdn"):
            adapter.insert(model, config(insert=insert))
            assert model.config._attn_implementation == attention
            assert {parameter.dtype for parameter in adapter.parameters(model).values()} == {dtype}
            assert torch.equal(model(x, attention_mask=mask).logits, logits)
            assert torch.equal(model.generate(x, attention_mask=mask, **GREEDY), text)
            wake(model)
            assert not torch.equal(model(x, attention_mask=mask).logits, logits), "the layers must be in the path"
            adapter.remove(model)


@pytest.mark.parametrize("kind", KINDS)
def test_baselines_start_as_the_identity_with_as_many_parameters(kind):
    model, x = base(), tokens()
    with torch.no_grad():
        logits = model(x).logits
        adapter.insert(model, config(insert=kind, heads=4, state_size=16, rank=16))
        assert torch.equal(model(x).logits, logits)
    mine = sum(parameter.numel() for parameter in adapter.parameters(model).values())
    adapter.remove(model)
    adapter.insert(model, config(heads=4, state_size=16, rank=16))
    ttc = sum(parameter.numel() for parameter in adapter.parameters(model).values())
    assert mine == pytest.approx(ttc, rel=0.1)


@pytest.mark.parametrize(
    ("every", "layers", "places"),
    [
        (8, 32, {7: 1, 15: 1, 23: 1, 31: 1}),
        ("8", 12, {7: 1}),
        ("4:1", 8, {3: 1, 7: 1}),
        ("16:2", 32, {15: 2, 31: 2}),
        (1, 2, {0: 1, 1: 1}),
    ],
)
def test_interleaving(every, layers, places):
    assert config(every=every).places(layers) == places


def test_layers_stand_where_the_configuration_says():
    model = adapter.insert(base(), config(every="2:3"))
    found = [index for index, layer in enumerate(model.model.layers) if hasattr(layer, "inserted")]
    assert found == [1, 3]
    inside = model.model.layers[3].inserted.layers
    assert len(inside) == 3
    assert all(isinstance(layer, TTCLayer) for layer in inside)


def test_actions_may_start_larger(tmp_path):
    model = adapter.insert(base(), config(action_gain=4))
    weights = [value for name, value in adapter.parameters(model).items() if "action_norm" in name]
    assert weights
    assert all((weight == 4).all() for weight in weights)
    assert torch.equal(model(tokens()).logits, base()(tokens()).logits)
    adapter.save(model, tmp_path)
    assert adapter.load(base(), tmp_path).config.ttc_adapter["action_gain"] == 4
    before = {name: value for name, value in config().to_dict().items() if name != "action_gain"}
    assert adapter.TTCAdapterConfig.from_dict(before) == config()  # saved when there was no such field


@pytest.mark.parametrize("family", FAMILIES)
def test_the_place_is_between_attention_and_mlp(family):
    """The output of an inserted layer is that for the sum after attention, and the MLP sees it."""
    model, x = awake(family, every=4), tokens()
    layer, seen = model.model.layers[3], {}
    last = layer.post_feedforward_layernorm if family == "gemma3" else layer.mlp

    def keep(name):
        return lambda _, inputs, output: seen.update({name: (inputs and inputs[0], output)})

    layer.register_forward_hook(keep("layer"))
    layer.inserted.register_forward_hook(keep("inserted"))
    last.register_forward_hook(keep("mlp"))
    getattr(layer, type(layer).norms.before_mlp).register_forward_hook(keep("norm"))
    after = layer.post_attention_layernorm if family == "gemma3" else layer.self_attn
    after.register_forward_hook(keep("attended"))
    layer.register_forward_pre_hook(lambda _, inputs: seen.update(start=inputs[0]))
    with torch.no_grad():
        model(x)
    attended = seen["attended"][1] if family == "gemma3" else seen["attended"][1][0]
    assert torch.equal(seen["inserted"][0], seen["start"] + attended)
    assert torch.equal(seen["norm"][0], seen["inserted"][1])
    assert torch.equal(seen["layer"][1], seen["inserted"][1] + seen["mlp"][1])


def test_the_library_and_other_models_are_left_alone():
    forward, attributes = LlamaDecoderLayer.forward, set(vars(LlamaDecoderLayer))
    one = base()
    shared = LlamaForCausalLM(one.config)
    before = shared(tokens()).logits
    wake(adapter.insert(one, config()))
    assert type(shared) is LlamaForCausalLM
    assert shared.config.model_type == "llama"
    assert all(type(layer) is LlamaDecoderLayer for layer in shared.model.layers)
    assert torch.equal(shared(tokens()).logits, before)
    assert LlamaDecoderLayer.forward is forward
    assert set(vars(LlamaDecoderLayer)) == attributes
    assert [type(layer) is LlamaDecoderLayer for layer in one.model.layers] == [True, False, True, False]


@pytest.mark.parametrize("family", FAMILIES)
def test_removed_it_is_the_base_again(family):
    model, x = base(family), tokens()
    kinds = [type(module) for module in model.modules()]
    names, fields, split = list(model.state_dict()), model.config.to_dict(), set(model._no_split_modules)
    with torch.no_grad():
        logits = model(x).logits
        adapter.remove(wake(adapter.insert(model, config())))
        assert torch.equal(model(x).logits, logits)
    assert [type(module) for module in model.modules()] == kinds
    assert list(model.state_dict()) == names
    assert model.config.to_dict() == fields
    assert set(model._no_split_modules) == split
    assert all(module.config is model.config for module in model.modules() if "config" in vars(module))


def test_a_model_without_a_head():
    model, x = base().model, tokens()
    with torch.no_grad():
        before = model(x).last_hidden_state
        adapter.insert(model, config())
        assert torch.equal(model(x).last_hidden_state, before)
        wake(model)
        assert not torch.equal(model(x).last_hidden_state, before)


def test_disabled_it_is_the_base():
    model, x = awake(), tokens()
    with torch.no_grad():
        own, plain = model(x).logits, base()(x).logits
        with adapter.disabled(model):
            assert torch.equal(model(x).logits, plain)
        assert torch.equal(model(x).logits, own)
        adapter.disable(model)
        with adapter.disabled(model):
            pass
        assert torch.equal(model(x).logits, plain)
        adapter.enable(model)
        assert torch.equal(model(x).logits, own)


def test_the_horizon_changes_the_answer_and_nothing_else():
    model, x = awake(), tokens()
    with torch.no_grad():
        own = model(x).logits
        with adapter.horizon(model, 20):
            far = model(x).logits
        assert torch.equal(model(x).logits, own)
        assert not torch.allclose(own, far, atol=1e-4)
        adapter.set_horizon(model, 20)
        assert torch.equal(model(x).logits, far)
        adapter.set_horizon(model, 0)
        assert torch.equal(model(x).logits, base()(x).logits)
        with pytest.raises(RuntimeError, match="stop"), adapter.horizon(model, 3):
            raise RuntimeError("stop")
        assert model.config.horizon == 0


def test_hooks_and_outputs_of_layers():
    model, x, seen = base(attn_implementation="eager"), tokens(), []
    model.model.layers[1].register_forward_hook(lambda *_: seen.append(1))
    wake(adapter.insert(model, config()))
    with torch.no_grad():
        output = model(x, output_hidden_states=True, output_attentions=True)
    assert seen == [1]
    assert len(output.hidden_states) == 5
    assert len(output.attentions) == 4


def test_copies_are_independent():
    model, x = awake(), tokens()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        own = model(x).logits
        assert torch.equal(twin(x).logits, own)
        adapter.set_horizon(twin, 1)
        adapter.disable(twin)
        assert torch.equal(model(x).logits, own)
        adapter.enable(twin)
        assert not torch.equal(twin(x).logits, own)


def test_only_inserted_layers_are_trained():
    model, x = adapter.insert(base(), config()), tokens()
    adapter.freeze_base(model)
    model(x, labels=x).loss.backward()
    with_gradient = {id(parameter) for parameter in model.parameters() if parameter.grad is not None}
    assert with_gradient == {id(parameter) for parameter in adapter.parameters(model).values()}
    assert all(parameter.grad.abs().max() > 0 for name, parameter in adapter.parameters(model).items() if "out" in name)
    adapter.train_all(model)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_names_of_parameters():
    model = adapter.insert(base(), config())
    names = adapter.parameters(model)
    assert {name.rsplit(".inserted.")[0] for name in names} == {"layers.1", "layers.3"}
    assert all(dict(model.named_parameters())[f"model.{name}"] is value for name, value in names.items())


@pytest.mark.parametrize("insert", ["ttc", "gdn"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_no_gradient(insert, reentrant):
    gradients = []
    for checkpointing in (False, True):
        model, x = awake(insert=insert, dropout=0.0).train(), tokens()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            if reentrant:
                model.enable_input_require_grads()
        mask = torch.ones_like(x)
        mask[0, :3] = 0
        model(x, attention_mask=mask, labels=x, use_cache=False).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in adapter.parameters(model).items()})
    assert all(torch.allclose(gradients[0][name], gradients[1][name], atol=1e-6) for name in gradients[0])


def test_dropout_acts_in_training_alone():
    for insert in ("ttc", "mlp"):
        model, x = awake(insert=insert, dropout=0.5), tokens()
        with torch.no_grad():
            assert torch.equal(model(x).logits, model(x).logits)
            model.train()
            assert not torch.equal(model(x).logits, model(x).logits)


def test_a_few_steps_lower_the_loss_and_leave_the_base():
    model, x = adapter.insert(base(), config()).train(), tokens()
    adapter.freeze_base(model)
    optimizer = torch.optim.AdamW(adapter.parameters(model).values(), lr=1e-2)
    losses = []
    for _ in range(12):
        loss = model(x, labels=x).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    adapter.remove(model.eval())
    with torch.no_grad():
        assert torch.equal(model(x).logits, base()(x).logits)


def test_compiled_it_computes_the_same():
    plain, x = base(num_hidden_layers=1), tokens()
    model = wake(adapter.insert(copy.deepcopy(plain), config(every=1)))
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        assert torch.allclose(compiled(x).logits, model(x).logits, atol=1e-5)
        adapter.set_horizon(compiled, 3)
        assert torch.allclose(compiled(x).logits, model(x).logits, atol=1e-5)
        adapter.disable(compiled)
        assert torch.allclose(compiled(x).logits, plain(x).logits, atol=1e-5)


def test_layers_dispatched_by_accelerate():
    """accelerate replaces the forward of instances; the inserted layers must not be passed by."""
    from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module

    model, x = base(), tokens()
    for module in (model, model.model, *model.model.layers):
        add_hook_to_module(module, ModelHook())
    with torch.no_grad():
        wake(adapter.insert(model, config(insert="gdn")))
        assert torch.equal(model(x).logits, awake(insert="gdn")(x).logits)
        remove_hook_from_module(model, recurse=True)
        assert torch.equal(model(x).logits, awake(insert="gdn")(x).logits)
        adapter.remove(model)
        assert torch.equal(model(x).logits, base()(x).logits)


def test_a_decoder_layer_is_never_split_over_devices():
    for model in (adapter.insert(base(), config()), type(adapter.insert(base(), config()))(awake().config)):
        assert type(model.model.layers[1]).__name__ in model._no_split_modules
        assert type(model.model.layers[0]).__name__ in model._no_split_modules


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_accelerate_finds_the_layers_that_fsdp2_is_to_wrap(family, every):
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy

    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap")
    model = adapter.insert(base(family), config(every=every))
    names = base(family)._no_split_modules
    for changed in (model, adapter.remove(copy.deepcopy(model))):
        wrapped = fsdp2_prepare_auto_wrap_policy(plugin, changed)
        assert [module for module in changed.modules() if wrapped(module)] == list(changed.model.layers)
    assert set(adapter.remove(model)._no_split_modules) == set(names)


@pytest.mark.parametrize("family", SUPPORTED, ids=lambda family: family.name)
def test_the_table_fits_the_library(family):
    shape = family.config(hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)
    assert {name for name, _ in family.layer(shape, 0).named_children()} == family.parts
