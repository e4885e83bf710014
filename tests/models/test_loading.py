"""A loaded model computes what it did when it was saved, wherever in its file the weights lie."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import ttcnet.adapter as adapter
from tests.adapter.bases import awake, base, config, tokens
from ttcnet.models import TTCNetConfig, TTCNetForCausalLM


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
    """Of a batch, and of a single token, as in generation: other products of matrices."""
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
