"""Blocks applied in loops: meaning, caches, losses, storage; and older models."""

import json
import logging

import pytest
import torch

from tests.raising import raises
from ttcnet.models import TTCNetConfig, TTCNetForCausalLM, TTCNetForCellClassification
from ttcnet.models.pattern import blocks_of, interleaved
from ttcnet.nn import TTCLayer
from ttcnet.nn.mixers import KINDS
from ttcnet.nn.options import CONTEXTS

SMALL = dict(vocab_size=40, hidden_size=32, num_attention_heads=2, ttc_state_size=8, ttc_rank=8)


def causal(pattern, loops=3, **changes):
    torch.manual_seed(0)
    options = {"+mamba2": {"state_size": 8}} if any(name.startswith("+mamba2") for name in pattern) else {}
    config = TTCNetConfig(**SMALL, pattern=pattern, loops=loops, mixer_options=options, **changes)
    return TTCNetForCausalLM(config).eval()


def cells(**changes):
    torch.manual_seed(0)
    sizes = dict(num_hidden_layers=1, hidden_size=32, interleave="1:1", loops=4)
    return TTCNetForCellClassification(TTCNetConfig.sudoku(**sizes | changes))


def unrolled(model, loops):
    """The same model with a block for every pass, which has the same weights."""
    pattern = []
    for number in range(1, loops + 1):
        for block in model.config.blocks:
            if number % block.every == 0:
                acting = [kind for kind, each in zip(block.inserted, block.each, strict=True) if number % each == 0]
                pattern += [block.mixer, *(kind if kind == "ttc" else f"+{kind}" for kind in acting)]
    options = {"+mamba2": {"state_size": 8}} if "+mamba2" in pattern else {}
    tall = TTCNetForCausalLM(TTCNetConfig(**SMALL, pattern=pattern, mixer_options=options)).eval()
    tall.model.embed_tokens, tall.model.norm, tall.lm_head = model.model.embed_tokens, model.model.norm, model.lm_head
    place = 0
    for number in range(1, loops + 1):
        for block in model.model.layers:
            if number % block.every == 0:
                own = tall.model.layers[place]
                place += 1
                own.mixer_norm, own.mixer, own.mlp_norm, own.mlp = (
                    block.mixer_norm, block.mixer, block.mlp_norm, block.mlp
                )  # fmt: skip
                acting = [layer for layer, each in zip(block.inserted, block.each, strict=True) if number % each == 0]
                own.inserted = torch.nn.ModuleList(acting)
    return tall


@pytest.fixture
def tokens():
    return torch.randint(0, 40, (2, 9), generator=torch.Generator().manual_seed(0))


PATTERNS = [
    ["attention", "ttc"],
    ["attention", "ttc@2"],
    ["attention", "attention@2", "ttc"],
    ["gdn", "+mlp@3", "ttc@2", "attention"],
]


@pytest.mark.parametrize("pattern", PATTERNS, ids="-".join)
def test_a_loop_is_a_stack_of_the_same_blocks(pattern, tokens):
    model = causal(pattern, loops=4)
    with torch.no_grad():
        for loops in (1, 4, 6):
            assert torch.equal(model(tokens, loops=loops).logits, unrolled(model, loops)(tokens).logits), loops
        assert torch.equal(model(tokens).logits, model(tokens, loops=4).logits)
        model.config.loops = 6
        assert torch.equal(model(tokens).logits, model(tokens, loops=6).logits)


def test_one_loop_is_the_model_without_loops(tokens):
    model = causal(["attention", "ttc", "gdn"], loops=1)
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, unrolled(model, 1)(tokens).logits)
    assert TTCNetConfig.tiny().loops == 1


@pytest.mark.parametrize(
    "pattern", [*([kind, "ttc@2"] for kind in KINDS), *(["attention", f"+{kind}@2"] for kind in KINDS)], ids="-".join
)
def test_a_cache_has_an_entry_for_every_loop(pattern, tokens):
    model = causal(pattern)
    with torch.no_grad():
        whole = model(tokens, use_cache=False).logits
        first = model(tokens[:, :5], use_cache=True)
        second = model(tokens[:, 5:], past_key_values=first.past_key_values)
    assert torch.allclose(torch.cat([first.logits, second.logits], 1), whole, atol=2e-5)
    inserted = [name for name in pattern if name.startswith("+")]
    cache, inserted = (
        second.past_key_values,
        [name for name in inserted if name != "+mlp@2" or not model.config.attends],
    )
    assert len(cache) == 3 + len(inserted)  # which are at work in pass 2 alone
    options = dict(max_new_tokens=3, do_sample=False, pad_token_id=0, loops=2)
    assert torch.equal(model.generate(tokens, **options), model.generate(tokens, use_cache=False, **options))


def test_a_cache_of_other_loops_is_refused(tokens):
    model = causal(["attention", "ttc"])
    cache = model(tokens, use_cache=True).past_key_values
    error = ("cache", "loops", "5")
    with raises(*error):
        model(tokens, past_key_values=cache, loops=5)
    cache.reset()
    if not cache.get_seq_length():  # older versions of transformers keep the length
        model(tokens, past_key_values=cache, loops=5)


def test_more_loops_change_the_answer(tokens):
    model = causal(["attention", "ttc"])
    with torch.no_grad():
        assert not torch.allclose(model(tokens).logits, model(tokens, loops=8).logits, atol=1e-4)


@pytest.mark.parametrize("pattern", [["attention", "ttc@2"], ["mamba", "+gdn"]], ids="-".join)
def test_checkpointing_changes_no_gradient(pattern, tokens):
    found = []
    for checkpointing in (False, True):
        model = causal(pattern).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(tokens, labels=tokens).loss.backward()
        found.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, gradient in found[0].items():
        assert gradient is not None, name
        assert torch.allclose(gradient, found[1][name], atol=1e-6), name


def board():
    generator = torch.Generator().manual_seed(0)
    boards, labels = (torch.randint(0, high, (2, 81), generator=generator) for high in (10, 9))
    return boards, labels.masked_fill(boards > 0, -100)


@pytest.mark.parametrize(("supervision", "outputs"), [(None, 8), ("block", 8), ("loop", 4), ("end", 1)])
def test_cells_are_classified_after_every_block_or_loop(supervision, outputs):
    model = cells(num_hidden_layers=2, interleave="2:1", supervision=supervision).eval()
    boards, labels = board()
    output = model(boards, labels=labels, output_hidden_states=True)
    assert len(output.hidden_states) == 9
    assert output.block_logits.shape == (outputs, 2, 81, 9)
    states = output.hidden_states[8 // outputs :: 8 // outputs]
    each = [model.classifier(model.model.norm(state)) for state in states]
    losses = [torch.nn.functional.cross_entropy(logits.mT, labels, ignore_index=-100) for logits in each]
    assert torch.allclose(output.loss, torch.stack(losses).mean(), atol=1e-5)
    if supervision == "loop":  # the loss after loop 2 is that of a model with 2 loops
        assert torch.allclose(output.block_logits[1], model(boards, loops=2).logits, atol=1e-5)


def test_a_language_model_may_be_judged_after_every_loop(tokens):
    plain, deep = causal(["attention", "ttc"]), causal(["attention", "ttc"], supervision="loop")
    with torch.no_grad():
        losses = [plain(tokens, labels=tokens, loops=loops).loss for loops in (1, 2, 3)]
        output = deep(tokens, labels=tokens)
        assert torch.allclose(output.loss, torch.stack(losses).mean(), atol=1e-6)
        assert torch.equal(output.logits, plain(tokens).logits)
        assert output.hidden_states is None
        assert torch.equal(plain(tokens, labels=tokens).loss, losses[-1])


@pytest.mark.parametrize("architecture", [dict(), dict(insert="mlp"), dict(interleave=None), dict(interleave="4:1")])
def test_inserted_layers_may_start_with_an_output_of_zero(architecture):
    boards, _ = board()
    zero, loud = (cells(**architecture, zero_init=start).eval() for start in (True, False))
    without = cells(interleave=None).eval()
    names = without.state_dict().keys()
    for model in (zero, loud):
        model.load_state_dict(
            {name: value for name, value in without.state_dict().items() if name in names}, strict=False
        )
    with torch.no_grad():
        assert torch.equal(zero(boards).logits, without(boards).logits)
        assert torch.equal(loud(boards).logits, without(boards).logits) == (
            "interleave" in architecture and architecture["interleave"] is None
        )


def test_loops_that_recall_the_input():
    """Every loop starts from norm(states) + embeddings; another call continues where one stopped."""
    model, (boards, _) = cells(interleave="2:1", recall=True).eval(), board()
    body = model.model
    with torch.no_grad():
        embedded = body.embed_tokens(boards) + body._positions(81, boards.device)
        x = embedded
        for number in (1, 2, 3):
            x = x if number == 1 else body.recall.norm(x) + embedded
            x = body.layers[0](x, horizon=4, active=(number % 2 == 0,))
        assert torch.allclose(model.classifier(body.norm(x)), model(boards, loops=3).logits, atol=1e-5)
        assert not torch.allclose(cells(interleave="2:1").eval()(boards).logits, model(boards).logits, atol=1e-3)
        first = model(boards, loops=2)
        assert torch.equal(model(boards, loops=2, state=first.state).logits, model(boards, loops=4).logits)
        fresh = model(boards, state=torch.zeros_like(first.state)).logits
        assert torch.allclose(fresh, model(boards).logits, atol=1e-6)


def test_states_to_continue_from():
    model, (boards, _) = cells(recall=True).eval(), board()
    with raises("conflict", "state", "recall=False"):
        cells().eval()(boards, state=torch.zeros(2, 81, 32))
    with raises("shape", "state", "2, 80, 32"):
        model(boards, state=torch.zeros(2, 80, 32))


@pytest.mark.parametrize("context", CONTEXTS)
def test_saved_and_loaded(context, tmp_path):
    model = cells(interleave="2:1", ttc_context=context).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # no weight is where it starts
            parameter += 0.01
    model.save_pretrained(tmp_path)
    loaded = TTCNetForCellClassification.from_pretrained(tmp_path).eval()
    assert loaded.config.loops == 4
    assert loaded.config.blocks == model.config.blocks
    assert all(torch.equal(loaded.state_dict()[name], weight) for name, weight in model.state_dict().items())
    assert "1 blocks of width 32 (1 x attention + ttc@2), applied 4 times" in (tmp_path / "README.md").read_text()
    boards, _ = board()
    with torch.no_grad():
        for loops in (None, 6):
            assert torch.allclose(model(boards, loops=loops).logits, loaded(boards, loops=loops).logits, atol=1e-6)


@pytest.mark.filterwarnings("ignore")  # of torch's compiler, to itself
def test_blocks_compile_once_however_many_loops():
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    model = cells(interleave="4:1", loops=8)
    boards, labels = board()
    expected = model(boards, labels=labels).loss
    counter = CompileCounterWithBackend("aot_eager")
    for block in model.model.layers:
        block.compile(backend=counter, dynamic=False)
    assert torch.allclose(model(boards, labels=labels).loss, expected, atol=1e-5)
    model(boards, labels=labels, loops=12)
    assert counter.frame_count == 2, "with TTC at work, and without"


def test_interleaving_counts_every_pass():
    def layers(interleave, blocks, loops):
        return [block.layer_names for block in blocks_of(interleaved(interleave, blocks, "attention", loops=loops))]

    assert layers("8:1", 1, 32) == [("attention", "ttc@8")]
    assert layers("1:1", 1, 32) == [("attention", "ttc")]
    assert layers("8:2", 2, 16) == [("attention",), ("attention", "ttc@4", "ttc@4")]
    assert layers("2:1", 4, 8) == [("attention",), ("attention", "ttc")] * 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (dict(loops=0), ("too-small", "loops", "0")),
        (dict(loops=2.0), ("type", "loops")),
        (dict(loops=10**6), ("too-large", "loops", "1000000")),
        (dict(pattern=["attention", "ttc@8"], loops=4), ("out-of-range", "pattern", "'ttc@8'")),
        (dict(pattern=["attention", "ttc@0"]), ("format", "pattern", "'ttc@0'")),
        (dict(pattern=["attention", "ttc@"]), ("format", "pattern", "'ttc@'")),
        (
            dict(num_hidden_layers=3, loops=4, interleave="8:1"),
            ("conflict", "interleave"),
        ),
        (
            dict(num_hidden_layers=1, loops=4, interleave="8:1"),
            ("conflict", "interleave"),
        ),
        (dict(supervision="often"), ("unknown-name", "supervision", "'often'")),
        (dict(ttc_context="world"), ("unknown-name", "context", "'world'")),
        (dict(ttc_time_homogeneous="yes"), ("unknown-name", "time_homogeneous", "'yes'")),
    ],
)
def test_bad_configurations(options, error):
    with raises(*error):
        TTCNetConfig(**options)


def test_bad_calls(tokens):
    model = causal(["attention"])
    with raises("too-small", "loops", "0"):
        model(tokens, loops=0)
    with raises("type", "loops", r"2\.5"):
        model(tokens, loops=2.5)


def of_before(model, folder):
    """The model as it was saved before there were loops and a choice of context."""
    model.save_pretrained(folder)
    kept = json.loads((folder / "config.json").read_text())
    for field in ("loops", "ttc_context", "supervision", "zero_init"):
        del kept[field]
    (folder / "config.json").write_text(json.dumps(kept))


@pytest.mark.parametrize("insert", ["ttc", "mlp"])
def test_models_of_before_load_as_they_were(insert, tmp_path, caplog):
    model = cells(loops=1, ttc_context="head", insert=insert).eval()
    of_before(model, tmp_path)
    with caplog.at_level(logging.WARNING, "ttcnet"):
        loaded = TTCNetForCellClassification.from_pretrained(tmp_path).eval()
    assert "saved before there was a choice, and loads with context 'head'" in caplog.text
    assert (loaded.config.ttc_context, loaded.config.loops) == ("head", 1)
    boards, _ = board()
    with torch.no_grad():
        assert torch.allclose(model(boards).logits, loaded(boards).logits, atol=1e-6)


def test_no_message_without_inserted_layers(tmp_path, caplog):
    of_before(cells(loops=1, interleave=None), tmp_path)
    with caplog.at_level(logging.WARNING, "ttcnet"):
        TTCNetForCellClassification.from_pretrained(tmp_path)
    assert "choice" not in caplog.text


def test_the_context_is_that_of_the_weights(tmp_path):
    model = cells(ttc_context="head")
    model.save_pretrained(tmp_path)
    error = ("context", "ttc_context", "'token'")
    with raises(*error):
        TTCNetForCellClassification.from_pretrained(tmp_path, ttc_context="token")
    with raises("context", "ttc_context", "'token'"):
        TTCNetForCellClassification.from_pretrained(tmp_path, config=cells().config)
    with raises("context", "context", "'token'"):
        cells().load_state_dict(model.state_dict())
    again = TTCNetForCellClassification.from_pretrained(tmp_path)
    assert next(layer for layer in again.modules() if isinstance(layer, TTCLayer)).context_kind == "head"
