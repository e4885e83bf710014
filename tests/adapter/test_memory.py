"""Generation with a cache gives the same as recomputing without one."""

import copy

import pytest
import torch
from transformers import DynamicCache, StaticCache

import ttcnet.adapter as adapter
from tests.raising import raises

from .bases import BASELINES, awake, base, config, tokens, wake

GREEDY = dict(max_new_tokens=5, do_sample=False)
KINDS = ["ttc", *BASELINES]
REMEMBERING = [kind for kind in BASELINES if kind != "mlp"]


def padded(x, by=3):
    """The same tokens with padding on the left, and the mask."""
    wide = torch.cat([torch.zeros(len(x), by, dtype=torch.long), x], 1)
    return wide, (torch.arange(wide.shape[1]) >= by).long().expand_as(wide)


@pytest.mark.parametrize("kind", KINDS)
def test_token_by_token_is_the_same_as_at_once(kind):
    model, x = awake(insert=kind, every="2:2"), tokens()
    with torch.no_grad():
        whole = model(x, use_cache=False).logits
        first = model(x[:, :4], use_cache=True)
        second = model(x[:, 4:8], past_key_values=first.past_key_values)
        third = model(x[:, 8:], past_key_values=second.past_key_values)
    parts = torch.cat([first.logits, second.logits, third.logits], 1)
    assert torch.allclose(parts, whole, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation_with_a_cache_is_the_same_as_without(kind, cache):
    model, x = awake(insert=kind), tokens()
    for inputs, mask in ((x, torch.ones_like(x)), padded(x)):
        plain = model.generate(inputs, attention_mask=mask, use_cache=False, **GREEDY)
        cached = model.generate(inputs, attention_mask=mask, cache_implementation=cache, **GREEDY)
        assert torch.equal(cached, plain)


@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_every_family_generates_with_every_cache(family, cache):
    model = awake(family, insert="gdn")
    x, mask = padded(tokens())
    plain = model.generate(x, attention_mask=mask, use_cache=False, **GREEDY)
    assert torch.equal(model.generate(x, attention_mask=mask, cache_implementation=cache, **GREEDY), plain)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind):
    model, x = awake(insert=kind), tokens()
    wide, mask = padded(x)
    plain = model.generate(x, attention_mask=torch.ones_like(x), **GREEDY)
    assert torch.equal(model.generate(wide, attention_mask=mask, **GREEDY)[:, 3:], plain)


@pytest.mark.parametrize("kind", ["ttc", "gdn", "attention"])
def test_a_row_does_not_depend_on_the_others(kind):
    model = awake(insert=kind)
    rows = [tokens(1, length) for length in (4, 7, 9)]
    batch = torch.cat([torch.nn.functional.pad(row, (9 - row.shape[1], 0)) for row in rows])
    together = model.generate(batch, attention_mask=(batch != 0).long(), **GREEDY)
    for row, text in zip(rows, together, strict=True):
        alone = model.generate(row, attention_mask=torch.ones_like(row), **GREEDY)
        assert torch.equal(text[-5:], alone[0, -5:])


@pytest.mark.parametrize("kind", ["ttc", "gdn", "attention", "retnet"])
def test_beam_search(kind):
    model = awake(insert=kind)
    x, mask = padded(tokens())
    options = dict(max_new_tokens=5, num_beams=3, num_return_sequences=2, do_sample=False, attention_mask=mask)
    plain = model.generate(x, use_cache=False, **options)
    assert torch.equal(model.generate(x, **options), plain)
    assert torch.equal(model.generate(x, cache_implementation="static", **options), plain)


def test_sampling_repeats_with_the_seed():
    model, x = awake(insert="mamba"), tokens()
    texts = []
    for seed, use_cache in ((0, True), (0, False), (1, True)):
        torch.manual_seed(seed)
        options = dict(max_new_tokens=8, do_sample=True, use_cache=use_cache)
        texts.append(model.generate(x, attention_mask=torch.ones_like(x), **options))
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])


def test_more_ways_to_generate():
    model, x = awake(insert="gdn"), tokens()
    options = dict(attention_mask=torch.ones_like(x), **GREEDY)
    expected = model.generate(x, **options)
    assert torch.equal(model.generate(x, prefill_chunk_size=4, **options), expected)
    embedded = model.model.embed_tokens(x)
    assert torch.equal(model.generate(inputs_embeds=embedded, **options), expected[:, 9:])
    several = model.generate(x, num_return_sequences=2, max_new_tokens=2, do_sample=True)
    assert several.shape == (4, 11)


def test_the_horizon_of_a_text():
    model, x = awake(), tokens()
    near = model.generate(x, **GREEDY)
    with adapter.horizon(model, 0):
        assert torch.equal(model.generate(x, **GREEDY), base().generate(x, **GREEDY))
    assert torch.equal(model.generate(x, **GREEDY), near)


@pytest.mark.parametrize("kind", REMEMBERING)
def test_states_travel_with_the_cache(kind):
    """Copied, reordered, repeated and selected as the keys and values are."""
    model, x = awake(insert=kind), tokens()
    with torch.no_grad():
        whole = model(x, use_cache=False).logits[:, 6:]
        cache = DynamicCache(config=model.config)
        model(x[:, :6], past_key_values=cache)
        copied = copy.deepcopy(cache)
        assert torch.allclose(model(x[:, 6:], past_key_values=copied).logits, whole, atol=1e-4)
        for change, rows in (
            (lambda c: c.reorder_cache(torch.tensor([1, 0])), [1, 0]),
            (lambda c: c.batch_repeat_interleave(2), [0, 0, 1, 1]),
            (lambda c: c.batch_select_indices(torch.tensor([1])), [1]),
        ):
            changed = copy.deepcopy(cache)
            change(changed)
            assert torch.allclose(model(x[rows, 6:], past_key_values=changed).logits, whole[rows], atol=1e-4)


@pytest.mark.parametrize("kind", REMEMBERING)
def test_a_cache_that_was_reset_is_as_new(kind):
    model, x = awake(insert=kind), tokens()
    cache = StaticCache(config=model.config, max_cache_len=16)
    with torch.no_grad():
        one = model(x, past_key_values=cache).logits
        cache.reset()
        assert torch.equal(model(x, past_key_values=cache).logits, one)


@pytest.mark.parametrize("cache", [DynamicCache, lambda config: StaticCache(config=config, max_cache_len=32)])
def test_a_cache_without_the_mixers_states_is_refused(cache):
    model, x = awake(insert="gdn"), tokens()

    def make():
        return DynamicCache(config=model.config) if cache is DynamicCache else cache(model.config)

    error = ("cache", "past_key_values", "4 tokens")
    with torch.no_grad():
        by_base = make()
        base()(x[:, :4], past_key_values=by_base)
        with raises(*error):
            model(x[:, 4:], past_key_values=by_base)
        disabled = make()
        model(x[:, :2], past_key_values=disabled)
        with adapter.disabled(model):
            model(x[:, 2:6], past_key_values=disabled)
        with raises(*error):
            model(x[:, 6:], past_key_values=disabled)


def test_ttc_layers_need_no_states():
    model, x = awake(), tokens()
    with torch.no_grad():
        cache = DynamicCache(config=model.config)
        model(x[:, :4], past_key_values=cache)
        assert {type(part).__name__ for part in cache.layers} == {"DynamicLayer"}
        cache.crop(-1)
        again = model(x[:, 3:], past_key_values=cache).logits
        assert torch.allclose(again, model(x).logits[:, 3:], atol=1e-4)


def test_unsupported_calls_of_mixers_are_errors():
    model, x = awake(insert="retnet"), tokens()
    with torch.no_grad():
        cache = model(x, use_cache=True).past_key_values
        with raises("stateful", "past_key_values"):
            cache.crop(2)
        with raises("stateful", "past_key_values"):
            model.generate(x[:1], prompt_lookup_num_tokens=2, **GREEDY)
        packed = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]]).expand(2, -1)
        with raises("stateful", "position_ids"):
            model(x, position_ids=packed)
        with raises("stateful", "position_ids"):
            model(x, cu_seq_lens_q=torch.tensor([0, 4, 9]))
        with raises("shape", "attention_mask"):
            model(x, attention_mask=torch.ones(2, 1, 9, 9, dtype=torch.bool))
        with adapter.disabled(model):
            model(x, position_ids=packed)
        model.config._attn_implementation = "paged|sdpa"
        with raises("stateful", "attn_implementation"):
            model(x)
        awake()(x, position_ids=packed)


def test_packed_sequences_are_refused_in_compiled_code_too():
    model, x = wake(adapter.insert(base(num_hidden_layers=1), config(insert="retnet", every=1))), tokens(1)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        compiled(x, position_ids=torch.arange(9)[None], use_cache=False)
        with pytest.raises(RuntimeError, match="position_ids must count up by one, since retnet remembers"):
            compiled(x, position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]]), use_cache=False)


def test_packed_sequences_do_not_meet_in_ttc_layers():
    model, x = awake(), tokens(1)
    packed = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    with torch.no_grad():
        row = model(x, position_ids=packed, use_cache=False).logits
        for part in (slice(0, 4), slice(4, 9)):
            assert torch.allclose(row[:, part], model(x[:, part], use_cache=False).logits, atol=1e-4)


@pytest.mark.parametrize("kind", ["ttc", "gdn"])
def test_a_step_compiled_with_a_static_cache(kind):
    plain, x = wake(adapter.insert(base(num_hidden_layers=1), config(insert=kind, every=1))), tokens()
    with torch.no_grad():
        expected = plain(x, use_cache=False).logits[:, 5:]
        cache = StaticCache(config=plain.config, max_cache_len=16)
        plain(x[:, :5], past_key_values=cache)
        step = torch.compile(plain, backend="eager", fullgraph=True)
        outputs = [step(x[:, t : t + 1], past_key_values=cache).logits for t in range(5, 9)]
    assert torch.allclose(torch.cat(outputs, 1), expected, atol=1e-4)
