"""A loaded model computes the same as when it was saved, for any place of the weights in its file."""

import json
import time

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import ttcnet.adapter as adapter
from tests.adapter.bases import awake, base, config, tokens
from tests.raising import raises
from tests.train import tiny
from ttcnet.models import TTCNetConfig, TTCNetForCausalLM, TTCNetForCellClassification
from ttcnet.models.loading import causal_lm, tokenizer_of
from ttcnet.models.sharded_loading import without_weights
from ttcnet.tasks.sudoku import loading


def ours(**changes):
    torch.manual_seed(0)
    sizes = dict(vocab_size=61, hidden_size=32, num_attention_heads=2, ttc_state_size=8, ttc_rank=8)
    return TTCNetForCausalLM(TTCNetConfig(**sizes, pattern=["attention", "mamba", "ttc"], **changes)).eval()


def shift(folder):
    """Rewrite the weights so that they start eight bytes past a multiple of 64."""
    path = folder / "model.safetensors"
    weights = {name: value.clone() for name, value in load_file(path).items()}
    for length in range(64):
        save_file(weights, path, {"format": "pt", "note": length * "x"})
        if (8 + int.from_bytes(path.read_bytes()[:8], "little")) % 64 == 8:
            return
    raise AssertionError("safetensors fills up its header: weights always start at multiples of 64 bytes")


def outputs(model):
    """The outputs for a batch, and for a single token as in generation, which takes other products of matrices."""
    with torch.no_grad():
        return [model.eval()(ids).logits for ids in (tokens(), tokens(1, 1))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [ours, awake])
def test_loaded_weights_lie_where_torch_puts_its_own(make, dtype, tmp_path):
    model = make().to(dtype)
    model.save_pretrained(tmp_path)
    shift(tmp_path)
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype, output_loading_info=True)
    assert type(loaded) is type(model)
    assert not report["missing_keys"]
    for name, value in loaded.state_dict().items():
        assert value.dtype == dtype, name
        assert value.data_ptr() % 64 == 0, name
        assert torch.equal(value, model.state_dict()[name]), name
    for mine, other in zip(outputs(model), outputs(loaded), strict=True):
        assert torch.equal(mine, other)


def test_tied_weights_stay_tied(tmp_path):
    ours(tie_word_embeddings=True).save_pretrained(tmp_path)
    shift(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_insertion_leaves_the_weights_of_the_base_where_they_are(tmp_path):
    """transformers keeps them in their file's mapping, and the model starts unchanged, to the bit."""
    base().save_pretrained(tmp_path)
    shift(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    before, places = outputs(plain), [parameter.data_ptr() for parameter in plain.parameters()]
    assert any(place % 64 for place in places)
    model = adapter.insert(plain, config())
    assert [value.data_ptr() for name, value in model.named_parameters() if "inserted" not in name] == places
    for mine, other in zip(before, outputs(model), strict=True):
        assert torch.equal(mine, other)


def reconfigure(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def whole(folder):
    return causal_lm(str(folder), torch.float32)


def in_pieces(folder):
    return without_weights(str(folder), torch.float32)


@pytest.mark.parametrize("load", [whole, in_pieces])
@pytest.mark.parametrize("layers", [1, 0, -1])
def test_weights_that_a_configuration_has_no_place_for_are_refused(load, layers, tmp_path):
    """transformers would load a smaller model, which answers otherwise."""
    tiny.model().save_pretrained(tmp_path)
    load(tmp_path)
    reconfigure(tmp_path, num_hidden_layers=layers)
    with raises("no-model", "model"):
        load(tmp_path)


def test_the_message_names_some_of_them(tmp_path):
    tiny.model().save_pretrained(tmp_path)
    reconfigure(tmp_path, num_hidden_layers=1)
    with raises("no-model", "model", r"model\.layers\.1\.\S+, \S+, \S+ and \d+ more"):
        whole(tmp_path)


@pytest.mark.parametrize("load", [whole, in_pieces])
def test_weights_that_transformers_leaves_out_are_left_out(load, tmp_path):
    """Buffers that older versions saved, and a head that is tied."""
    tiny.model(tie_word_embeddings=True).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    load(tmp_path)


def test_layers_left_over_beside_inserted_ones_are_refused(tmp_path):
    awake().save_pretrained(tmp_path)
    layers = json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"]
    AutoModelForCausalLM.from_pretrained(tmp_path)
    reconfigure(tmp_path, num_hidden_layers=layers - 1)
    with raises("weights"):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    with raises("no-model", "model"):
        whole(tmp_path)


def test_a_sudoku_model_of_fewer_layers_than_its_weights_is_refused(tmp_path):
    sizes = dict(num_hidden_layers=2, hidden_size=32, num_attention_heads=2, interleave=None)
    TTCNetForCellClassification(TTCNetConfig.sudoku(**sizes)).save_pretrained(tmp_path)
    loading.load(tmp_path, "cpu")
    reconfigure(tmp_path, num_hidden_layers=1)
    with raises("no-model", "model", "has no place for"):
        loading.load(tmp_path, "cpu")


@pytest.mark.parametrize("field", ["num_labels", "num_hidden_layers", "vocab_size", "hidden_size"])
@pytest.mark.parametrize("kind", ["plain", "inserted", "own"])
def test_sizes_out_of_bounds_are_refused_at_once(kind, field, tmp_path):
    {"plain": tiny.model, "inserted": awake, "own": ours}[kind]().save_pretrained(tmp_path)
    reconfigure(tmp_path, **{field: 10**12})
    tiny.tokenizer().save_pretrained(tmp_path)
    for load in (whole, in_pieces, lambda folder: tokenizer_of(str(folder))):
        begin = time.monotonic()
        with raises("no-model", "model", f"config.json says {field} = 1000000000000, where"):
            load(tmp_path)
        assert time.monotonic() - begin < 2


@pytest.mark.parametrize("kind", [awake, ours])
@pytest.mark.parametrize("field", ["num_labels", "num_hidden_layers", "vocab_size", "hidden_size"])
def test_our_configurations_bound_their_sizes(kind, field):
    config = kind().config.to_dict()
    with raises("too-large", field):
        type(kind().config)(**config | {"id2label": None, "pattern": None, field: 10**12})


def test_a_part_of_a_model_is_looked_at_too(tmp_path):
    tiny.model().save_pretrained(tmp_path)
    reconfigure(tmp_path, text_config={"n_layer": 10**6})
    with raises("no-model", "model", "n_layer = 1000000"):
        whole(tmp_path)


@pytest.mark.parametrize(
    "template",
    ["{{ 'x' * 10**10 }}", "{{ 2 ** 9 }}", "{{ 'x' * 30000 * 30000 }}", "{{ 'x'.center(9999999999) }}",
     "{% set n = 0x7fffffffff %}", "{{ " + "9" * 5000 + " }}"],
)  # fmt: skip
def test_templates_that_compute_with_large_numbers_are_refused(template, tmp_path):
    tiny.model().save_pretrained(tmp_path)
    tokenizer = tiny.tokenizer()
    for chat in (template, {"default": tiny.CHAT, "tool_use": template}):
        tokenizer.chat_template = chat
        tokenizer.save_pretrained(tmp_path)
        with raises("chat-template", "model"):
            tokenizer_of(str(tmp_path))


def test_templates_may_have_numbers_and_stars(tmp_path):
    tiny.model().save_pretrained(tmp_path)
    tokenizer = tiny.tokenizer()
    said = "{% generation %}**bold** 99999999999{% endgeneration %}{{ '=' * 80 }}{{ messages[1000:] }}{# 2 ** 9 #}"
    for template in (said, "{{ unfinished"):
        tokenizer.chat_template = template
        tokenizer.save_pretrained(tmp_path)
        assert tokenizer_of(str(tmp_path)).chat_template == template


@pytest.mark.parametrize("kind", [tiny.model, awake])
def test_a_model_that_returns_tuples_is_refused(kind, tmp_path):
    kind().save_pretrained(tmp_path)
    reconfigure(tmp_path, return_dict=False)
    for load in (whole, in_pieces):
        with raises("no-model", "model", "return_dict = false"):
            load(tmp_path)
