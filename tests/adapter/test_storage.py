"""Saved and loaded: the adapter alone, and the whole model."""

import json
import pathlib
import shutil
from unittest.mock import patch

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import ttcnet.adapter as adapter
from tests.raising import raises
from ttcnet.adapter.storage import FILE
from ttcnet.nn.options import CONTEXTS
from ttcnet.storage import tensor_file

from .bases import BASELINES, FAMILIES, awake, base, config, tokens, wake


def logits(model):
    with torch.no_grad():
        return model.eval()(tokens()).logits


def same_weights(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_adapter_alone(family, tmp_path):
    model = awake(family, horizon=5, every="2:2")
    adapter.save(model, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "config.json", FILE]
    loaded = adapter.load(base(family), tmp_path)
    assert type(loaded) is type(model)
    assert loaded.config.adapter == model.config.adapter
    assert torch.equal(logits(loaded), logits(model))


@pytest.mark.parametrize("kind", BASELINES)
def test_adapters_of_every_kind(kind, tmp_path):
    model = awake(insert=kind)
    adapter.save(model, tmp_path)
    assert torch.equal(logits(adapter.load(base(), tmp_path)), logits(model))


def test_the_adapter_takes_the_dtype_of_its_base(tmp_path):
    adapter.save(awake(), tmp_path)
    loaded = adapter.load(base().bfloat16(), tmp_path)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert torch.allclose(logits(loaded).float(), logits(awake()), atol=0.5)


def test_the_horizon_that_was_set_is_saved(tmp_path):
    model = awake()
    adapter.set_horizon(model, 3)
    adapter.save(model, tmp_path)
    assert adapter.load(base(), tmp_path).config.horizon == 3
    model.save_pretrained(tmp_path / "whole")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "whole").config.horizon == 3


@pytest.mark.parametrize("kind", ["ttc", "mlp"])
def test_adapters_from_before_contexts(kind, tmp_path, caplog):
    """It has the context "head": so do its TTC layers, and the number of parameters in TTC's place."""
    model = awake(insert=kind, context="head")
    adapter.save(model, tmp_path / "alone")
    model.save_pretrained(tmp_path / "whole")
    tensors, facts = tensor_file.load(tmp_path / "alone" / FILE)
    del facts["adapter"]["context"]
    tensor_file.save(tmp_path / "alone" / FILE, tensors, facts)
    whole = json.loads((tmp_path / "whole" / "config.json").read_text())
    del whole["ttc_adapter"]["context"]
    (tmp_path / "whole" / "config.json").write_text(json.dumps(whole))
    for load in (
        lambda: adapter.load(base(), tmp_path / "alone"),
        lambda: AutoModelForCausalLM.from_pretrained(tmp_path / "whole"),
    ):
        caplog.clear()
        with caplog.at_level("WARNING", "ttcnet"):
            loaded = load()
        assert "loads with context 'head'" in caplog.text
        assert loaded.config.adapter.context == "head"
        assert torch.allclose(logits(loaded), logits(model), atol=1e-5)


@pytest.mark.parametrize("how", [True, "pure"])
def test_the_way_of_being_time_homogeneous_is_kept(tmp_path, how):
    model = awake(time_homogeneous=how)
    adapter.save(model, tmp_path)
    loaded = adapter.load(base(), tmp_path)
    assert loaded.config.adapter.time_homogeneous == how
    assert torch.equal(logits(loaded), logits(model))


def test_the_context_is_kept(tmp_path, caplog):
    for context in CONTEXTS:
        model = awake(context=context)
        with torch.no_grad():  # no weight is where it starts
            for parameter in adapter.parameters(model).values():
                parameter += 0.01
        adapter.save(model, tmp_path / context)
        model.save_pretrained(tmp_path / context / "whole")
        alone = adapter.load(base(), tmp_path / context)
        whole = AutoModelForCausalLM.from_pretrained(tmp_path / context / "whole")
        for loaded in (alone, whole):
            assert loaded.config.adapter.context == context
            assert same_weights(loaded.state_dict(), model.state_dict())
            assert torch.equal(logits(loaded), logits(model))
    assert "context" not in caplog.text


def test_the_base_may_be_a_copy_in_a_folder(tmp_path):
    """A folder called name stands for owner/name of the Hub; another owner's or another name does not."""

    def named(name):
        plain = base()
        plain.config._name_or_path = name
        return plain

    adapter.save(adapter.insert(named("owner/some-base"), config()), tmp_path)
    adapter.load(named("owner/some-base"), tmp_path)
    adapter.load(named("some-base"), tmp_path)
    for other in ("other/some-base", "other-base"):
        with raises("base", "base_model"):
            adapter.load(named(other), tmp_path)


def test_saving_again_replaces_the_file_at_once(tmp_path):
    """A save that fails leaves the last good file."""
    model = awake()
    adapter.save(model, tmp_path)
    good = (tmp_path / FILE).read_bytes()
    with (
        patch("ttcnet.storage.writing.os.replace", side_effect=OSError("no space")),
        pytest.raises(OSError, match="no space"),
    ):
        adapter.save(wake(awake(horizon=2)), tmp_path)
    assert (tmp_path / FILE).read_bytes() == good


@pytest.mark.parametrize("family", FAMILIES)
def test_the_whole_model(family, tmp_path):
    model = awake(family)
    model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.bin"))
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert type(loaded) is type(model)
    assert AutoConfig.from_pretrained(tmp_path).model_type == f"ttc_{base(family).config.model_type}"
    assert same_weights(loaded.state_dict(), model.state_dict())
    assert torch.equal(logits(loaded), logits(model))
    headless = AutoModel.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(headless(tokens()).last_hidden_state, model.model(tokens()).last_hidden_state)
    assert torch.equal(logits(adapter.remove(loaded)), logits(base(family)))


def test_a_whole_model_has_all_weights_or_none_that_are_inserted(tmp_path):
    """Missing weights would be initialised at random; a base without inserted weights is a valid start."""
    model = awake()
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    gate = "model.layers.3.inserted.layers.0.out.weight"
    for change, message in (
        (lambda kept: kept.pop(gate), rf"missing \['{gate}'\], extra \[\]"),
        (lambda kept: kept.pop("model.norm.weight"), r"missing \['model.norm.weight'\], extra \[\]"),
        (lambda kept: kept.update({f"{gate}_2": kept[gate].clone()}), rf"missing \[\], extra \['{gate}_2'\]"),
    ):
        kept = dict(weights)
        change(kept)
        save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
        with raises("weights", None, message):
            AutoModelForCausalLM.from_pretrained(tmp_path)
    with raises("weights", None, rf"missing \[\], extra \['{gate}_2'\]"):
        AutoModel.from_pretrained(tmp_path)
    base().save_pretrained(tmp_path / "base")
    fresh = type(model).from_pretrained(tmp_path / "base", config=model.config)
    assert torch.equal(logits(fresh), logits(base()))


def test_a_whole_model_with_another_horizon_dtype_or_kind(tmp_path):
    model = awake(insert="ttc")
    model.save_pretrained(tmp_path)
    far = AutoModelForCausalLM.from_pretrained(tmp_path, horizon=20)
    adapter.set_horizon(model, 20)
    assert torch.equal(logits(far), logits(model))
    low = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in low.parameters()} == {torch.bfloat16}
    other = awake(insert="mamba")
    other.save_pretrained(tmp_path / "mamba")
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "mamba")), logits(other))


@pytest.mark.parametrize("insert", ["ttc", "gdn"])
def test_a_base_checkpoint_loaded_with_a_ttc_configuration_starts_unchanged(insert, tmp_path):
    plain = base()
    plain.save_pretrained(tmp_path)
    shape = adapter.insert(base(), config(insert=insert)).config
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path, config=shape, output_loading_info=True)
    assert {name.split(".")[3] for name in report["missing_keys"]} == {"inserted"}
    assert torch.equal(logits(model), logits(plain))
    weights = adapter.parameters(model)
    names = [name for name in weights if name.endswith("project.weight")]
    assert all(weights[name].std().item() == pytest.approx(32**-0.5, rel=0.2) for name in names)


def test_the_adapter_of_a_whole_model_remembers_its_base(tmp_path):
    plain = base()
    plain.save_pretrained(tmp_path / "some-base")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "some-base")
    wake(adapter.insert(loaded, config())).save_pretrained(tmp_path / "whole")
    adapter.save(AutoModelForCausalLM.from_pretrained(tmp_path / "whole"), tmp_path / "alone")
    with safe_open(tmp_path / "alone" / FILE, "pt") as file:
        facts = json.loads(file.metadata()["facts"])
    assert facts["base"]["name"] == "some-base"
    fresh = AutoModelForCausalLM.from_pretrained(tmp_path / "some-base")
    assert torch.equal(logits(adapter.load(fresh, tmp_path / "alone")), logits(loaded))


def test_cards(tmp_path):
    plain = base()
    plain.config._name_or_path = "someone/some-model"
    model = adapter.insert(plain, config())
    model.save_pretrained(tmp_path / "whole")
    adapter.save(model, tmp_path / "alone")
    for folder in ("whole", "alone"):
        text = (tmp_path / folder / "README.md").read_text()
        assert "base_model: someone/some-model" in text
        assert "in decoder layers 1, 3, counted from 0. They plan 8 steps ahead" in text
    (tmp_path / "alone" / "README.md").write_text("mine")
    adapter.save(model, tmp_path / "alone")
    assert (tmp_path / "alone" / "README.md").read_text() == "mine"


def test_the_card_goes_to_the_hub():
    seen = {}

    def upload(_, repo_id, folder_path, **options):
        seen[repo_id] = sorted(path.name for path in pathlib.Path(folder_path).iterdir())
        return "https://hub/somewhere"

    with (
        patch("huggingface_hub.HfApi.create_repo", lambda _, name, **options: type("Repo", (), {"repo_id": name})),
        patch("huggingface_hub.HfApi.upload_folder", upload),
    ):
        assert awake().push_to_hub("me/net") == "https://hub/somewhere"
    assert {"README.md", "config.json", "model.safetensors"} <= set(seen["me/net"])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    plain = base()
    plain.config._name_or_path, plain.config._commit_hash = "someone/some-model", "abc"
    adapter.save(wake(adapter.insert(plain, config())), folder)
    return folder


@pytest.fixture
def copied(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "copy")
    return tmp_path / "copy"


def refused(model, folder, *error, **options):
    """Loading fails with that error, and the model is as it was."""
    kinds, before = [type(module) for module in model.modules()], logits(model)
    with raises(*error):
        adapter.load(model, folder, **options)
    assert [type(module) for module in model.modules()] == kinds
    assert torch.equal(logits(model), before)


def rewritten(folder, change):
    """The file with its tensors and facts changed; the digest as it should be."""
    from ttcnet.storage import tensor_file

    tensors, facts = tensor_file.load(folder / FILE)
    change(tensors, facts)
    facts["digest"] = tensor_file.digest(tensors)
    tensor_file.save(folder / FILE, tensors, facts)


@pytest.mark.parametrize("kept", [0, 4, 200, 5000])
def test_truncated_files(copied, kept):
    path = copied / FILE
    path.write_bytes(path.read_bytes()[:kept])
    refused(base(), copied, "damaged")


def test_a_damaged_byte(copied):
    path = copied / FILE
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    refused(base(), copied, "damaged", str(path))


def test_a_file_of_someone_else(tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / FILE)
    refused(base(), tmp_path, "damaged")
    refused(base(), tmp_path / "nowhere", "no-model", "folder")


def test_missing_and_extra_weights_are_listed(copied):
    def change(tensors, facts):
        tensors["layers.3.inserted.layers.0.other"] = tensors.pop("layers.3.inserted.layers.0.out.weight")

    rewritten(copied, change)
    value = r"missing \['layers.3.inserted.layers.0.out.weight'\], extra \['layers.3.inserted.layers.0.other'\]"
    refused(base(), copied, "weights", None, value)


def test_weights_of_another_shape(copied):
    def change(tensors, facts):
        tensors["layers.3.inserted.layers.0.out.weight"] = torch.zeros(2, 3)

    rewritten(copied, change)
    refused(base(), copied, "weights", None, r"\(2, 3\)")


def test_an_unknown_field(copied):
    rewritten(copied, lambda tensors, facts: facts["adapter"].update(tempo=3))
    refused(base(), copied, "unknown-field", "TTCAdapterConfig", "'tempo'")


def test_a_wrong_base(saved):
    def named(name, revision=None, **more):
        model = base(**more)
        model.config._name_or_path, model.config._commit_hash = name, revision
        return model

    refused(named("someone/other"), saved, "base", "base_model", "'someone/other'")
    refused(named("someone/some-model", "def"), saved, "base", "base_model", "'def'")
    refused(base("qwen2"), saved, "base", "base_model", "'qwen2'")
    refused(base(num_hidden_layers=6), saved, "base", "base_model", "6")
    refused(base(vocab_size=70), saved, "base", "base_model", "70")
    refused(base(hidden_size=64), saved, "base", "base_model", "64")
    refused(base(hidden_size=64), saved, "weights", any_base=True)
    refused(base(num_hidden_layers=6), saved, "weights", None, "missing .*layers.5.inserted", any_base=True)
    adapter.load(named("someone/some-model", "abc"), saved)
    adapter.load(named(""), saved)
    adapter.load(named("someone/other"), saved, any_base=True)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    model = adapter.insert(base(), config())
    with raises("not-writable", "folder", "is a file"):
        adapter.save(model, tmp_path / "file")
