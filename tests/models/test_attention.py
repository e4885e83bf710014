"""Where tokens are mixed by attention alone, all that a Llama can do; where a mixer remembers, that or a sentence."""

import copy

import pytest
import torch
from transformers import DynamicCache, StaticCache

import ttcnet.adapter as adapter
from tests.adapter.bases import base, config, wake
from tests.raising import raises
from ttcnet.models import MixerCache, TTCNetConfig, TTCNetForCausalLM

SIZES = dict(vocab_size=61, hidden_size=32, num_attention_heads=4, ttc_state_size=8, ttc_rank=4, initializer_range=0.3)
GREEDY = dict(max_new_tokens=6, do_sample=False, pad_token_id=0)


def net(pattern=("attention", "attention", "ttc"), attention=None, seed=0, **options):
    torch.manual_seed(seed)
    shape = TTCNetConfig(**SIZES, pattern=list(pattern), mixer_options=options.pop("mixer_options", {}), **options)
    return TTCNetForCausalLM._from_config(shape, attn_implementation=attention or "sdpa").eval()


def windowed(**options):
    return net(mixer_options={"attention": {"window": 4}}, **options)


def inserted(**options):
    return net(("attention", "+attention", "attention", "ttc"), **options)


def llama(attention=None, seed=0):
    torch.manual_seed(seed)
    model = base(num_hidden_layers=2)
    model.config._attn_implementation = attention or "sdpa"
    return wake(adapter.insert(model, config()))


def llama_with_more(attention=None, seed=0):
    torch.manual_seed(seed)
    return wake(adapter.insert(base(num_hidden_layers=2), config(insert="attention")))


ATTENDING = {"net": net, "windowed": windowed, "inserted": inserted, "llama": llama}
each = pytest.mark.parametrize("make", ATTENDING.values(), ids=ATTENDING)


def tokens(rows=2, length=9):
    return torch.randint(3, 61, (rows, length), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@each
def test_a_static_cache(make):
    model, x = make(), tokens()
    expected = model.generate(x, **GREEDY)
    made = model.generate(x, cache_implementation="static", return_dict_in_generate=True, **GREEDY)
    assert torch.equal(made.sequences, expected)
    assert isinstance(made.past_key_values, StaticCache)
    cache = StaticCache(config=model.config, max_cache_len=16)
    whole = model(x, use_cache=False).logits
    parts = [model(x[:, :5], past_key_values=cache).logits, model(x[:, 5:], past_key_values=cache).logits]
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-4)


@each
def test_a_cache_of_transformers(make):
    model, x = make(), tokens()
    whole = model(x, use_cache=False).logits
    for cache in (DynamicCache(config=model.config), DynamicCache()):
        if make is windowed and not cache.layers:
            continue  # it has to be told of the window
        first = model(x[:, :6], past_key_values=cache)
        assert first.past_key_values is cache
        assert len(cache) == (3 if make is inserted else 2)
        assert {layer.keys.shape[:2] for layer in cache.layers} == {(2, 2 if make is llama else 4)}
        assert cache.get_seq_length() == 6
        rest = model(x[:, 6:], past_key_values=cache).logits
        assert torch.allclose(rest, whole[:, 6:], atol=1e-4)


@pytest.mark.parametrize("make", [*ATTENDING.values(), llama_with_more], ids=[*ATTENDING, "attention in a llama"])
def test_tokens_can_be_forgotten(make):
    model, x = make(), tokens()
    cache = DynamicCache(config=model.config)
    cache.activate_past_recording()  # a window keeps no more than it needs otherwise
    model(x[:, :8], past_key_values=cache)
    assert getattr(cache, "is_croppable", True)  # older versions of transformers do not ask
    cache.crop(-3)
    again = model(x[:, 5:], past_key_values=cache).logits
    assert torch.allclose(again, model(x, use_cache=False).logits[:, 5:], atol=1e-4)


@pytest.mark.parametrize("make", [*ATTENDING.values(), llama_with_more], ids=[*ATTENDING, "attention in a llama"])
def test_assisted_generation(make):
    model, x = make(), tokens(1)
    expected = model.generate(x, **GREEDY)
    for assistant in (model, make(seed=1)):
        assert torch.equal(model.generate(x, assistant_model=assistant, **GREEDY), expected)
    repeated = torch.cat([x, x, x[:, :3]], 1)
    expected = model.generate(repeated, **GREEDY)
    assert torch.equal(model.generate(repeated, prompt_lookup_num_tokens=3, **GREEDY), expected)


@each
def test_generation_continues_from_a_cache(make):
    model, x = make(), tokens()
    options = GREEDY | dict(return_dict_in_generate=True, eos_token_id=-1)
    expected = model.generate(x, **options).sequences
    begun = model.generate(x, **options | dict(max_new_tokens=4))
    mask = torch.ones_like(begun.sequences)
    kept = copy.deepcopy(begun.past_key_values)
    made = model.generate(
        begun.sequences, attention_mask=mask, past_key_values=kept, **options | dict(max_new_tokens=2)
    )
    assert torch.equal(made.sequences, expected)


@each
def test_padding_and_beams(make):
    model, x = make(), tokens()
    wide = torch.cat([torch.zeros(2, 3, dtype=torch.long), x], 1)
    mask = (torch.arange(12) >= 3).long().expand(2, -1)
    alone = model(x, use_cache=False).logits
    assert torch.allclose(model(wide, attention_mask=mask, use_cache=False).logits[:, 3:], alone, atol=1e-4)
    for options in (GREEDY, GREEDY | dict(num_beams=3)):
        expected = model.generate(x, attention_mask=torch.ones_like(x), **options)
        assert torch.equal(model.generate(wide, attention_mask=mask, **options)[:, 3:], expected)


@each
def test_packed_sequences(make):
    model, x = make(), tokens(1)
    packed = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    row = model(x, position_ids=packed, use_cache=False).logits
    for part in (slice(0, 4), slice(4, 9)):
        assert torch.allclose(row[:, part], model(x[:, part], use_cache=False).logits, atol=1e-4)


@pytest.mark.parametrize("make", [net, inserted, llama])
def test_a_mask_of_four_dimensions(make):
    """Two endings after one beginning, in one row."""
    model, x = make(), tokens(1, 6)
    allowed = torch.ones(6, 6, dtype=torch.bool).tril()
    allowed[5, 4] = False
    row = model(x, attention_mask=allowed[None, None], position_ids=torch.tensor([[0, 1, 2, 3, 4, 4]])).logits
    for last in (4, 5):
        alone = model(torch.cat([x[:, :4], x[:, last : last + 1]], 1)).logits
        assert torch.allclose(row[:, last], alone[:, -1], atol=1e-4)


@each
def test_weights_of_attention(make):
    x = tokens()
    model, other = make(attention="eager"), make()
    output = model(x, output_attentions=True)
    assert len(output.attentions) == (3 if make is inserted else 2)
    for weights in output.attentions:
        assert weights.shape == (2, 4, 9, 9)
        assert torch.allclose(weights.sum(-1), torch.ones(2, 4, 9), atol=1e-5)
        assert weights.triu(1).abs().max() == 0
        assert (weights.tril(-4).abs().max() == 0) == (make is windowed)
    assert torch.allclose(output.logits, other(x).logits, atol=1e-4)
    made = model.generate(x, output_attentions=True, return_dict_in_generate=True, **GREEDY)
    assert made.attentions[-1][0].shape[:3] == (2, 4, 1)


@each
def test_labels_that_are_shifted_already(make):
    model, x = make(), tokens()
    shifted = torch.nn.functional.pad(x[:, 1:], (0, 1), value=-100)
    expected = model(x, labels=x).loss
    assert torch.allclose(model(x, labels=torch.zeros_like(x), shift_labels=shifted).loss, expected)
    if make is not llama:
        assert torch.allclose(model(x, shift_labels=shifted).loss, expected)


@pytest.mark.parametrize("make", [net, llama])
def test_a_step_compiled_with_a_static_cache(make):
    model, x = make(), tokens()
    expected = model(x, use_cache=False).logits[:, 5:]
    cache = StaticCache(config=model.config, max_cache_len=16)
    model(x[:, :5], past_key_values=cache)
    step = torch.compile(model, backend="eager", fullgraph=True)
    outputs = [step(x[:, t : t + 1], past_key_values=cache).logits for t in range(5, 9)]
    assert torch.allclose(torch.cat(outputs, 1), expected, atol=1e-4)


def test_a_mask_has_to_cover_the_cache():
    model, x = net(), tokens()
    cache = model(x[:, :5], use_cache=True).past_key_values
    error = ("shape", "attention_mask", r"\(2, 4\)")
    with raises(*error):
        model(x[:, 5:], attention_mask=torch.ones(2, 4), past_key_values=cache)


def test_calls_that_stateful_mixers_refuse():
    model, x = net(("attention", "gdn", "ttc")), tokens()
    assert len(model(x, use_cache=True).past_key_values) == 2
    with raises("stateful", "cache_implementation", "'static'"):
        model.generate(x, cache_implementation="static", **GREEDY)
    for options in (dict(assistant_model=model), dict(prompt_lookup_num_tokens=2)):
        with raises("stateful", "generate"):
            model.generate(x[:1], **options, **GREEDY)
    with raises("type", "past_key_values", "DynamicCache"):
        model(x, past_key_values=DynamicCache())
    with raises("type", "past_key_values", "MixerCache"):
        net()(x, past_key_values=MixerCache())
    with raises("stateful", "output_attentions"):
        model(x, output_attentions=True)
    with raises("stateful", "position_ids"):
        model(x, position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]]))
    cache = model(x, use_cache=True).past_key_values
    assert not cache.is_croppable
    with raises("stateful", "past_key_values"):
        cache.crop(-2)
