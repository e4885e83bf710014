"""Checkpoints of fine-tuning; test_run.py has the tests of all runs."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import ttcnet.adapter as adapter
from tests.raising import raises
from tests.train.conftest import ADAPTER
from tests.train.tiny import model, tokenizer
from ttcnet.train import sft
from ttcnet.train.learner import Learner

pytestmark = pytest.mark.filterwarnings("ignore")  # of trl, datasets and transformers, to each other


class KilledError(Exception):
    """Ends a run from within, as a signal would."""


def kill_at(step, monkeypatch):
    advance = Learner.advance

    def dies(self):
        if self.step == step:
            raise KilledError
        advance(self)

    monkeypatch.setattr(Learner, "advance", dies)


def log(config):
    lines = [json.loads(line) for line in (Path(config.out) / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in lines]


def assert_equal(one, two):
    for (name, value), other in zip(one.named_parameters(), two.parameters(), strict=True):
        assert torch.equal(value, other), name


@pytest.fixture
def copied(finished, tmp_path):
    """The finished run again, to be damaged: its settings."""
    folder, _, config = finished
    shutil.copytree(folder, tmp_path / "run")
    return dataclasses.replace(config, out=str(tmp_path / "run"))


def test_a_run_resumes_with_its_own_data_alone(copied, finished, tmp_path):
    """A file that was only touched is the same; one with another row is not, and stays refused."""
    data = tmp_path / "data.jsonl"
    shutil.copy(copied.data, data)
    config = dataclasses.replace(copied, data=str(data))
    settings = tmp_path / "run" / "settings.json"
    settings.write_text(settings.read_text().replace(copied.data, str(data)))
    sft.fine_tune(config, model(), tokenizer())
    data.touch()
    sft.fine_tune(config, model(), tokenizer())
    data.write_text(data.read_text().replace("1 + 1 = ?", "1 + 2 = ?"))
    for _ in range(2):
        with raises("data-changed", "data", r"other rows in .*data\.jsonl"):
            sft.fine_tune(config, model(), tokenizer())


def test_a_result_is_there_whole_or_not_at_all(copied, monkeypatch):
    def dies(self, folder, **_):
        Path(folder).mkdir()
        raise KilledError

    shutil.rmtree(Path(copied.out) / "model")
    with monkeypatch.context() as patched:
        patched.setattr("transformers.PreTrainedModel.save_pretrained", dies)
        with pytest.raises(KilledError):
            sft.fine_tune(copied, model(), tokenizer())
    assert not (Path(copied.out) / "model").exists()
    sft.fine_tune(copied, model(), tokenizer())
    assert sorted(path.name for path in Path(copied.out).glob("model*")) == ["model"]


def test_a_full_disk_is_an_error(make, monkeypatch, tmp_path):
    from safetensors import SafetensorError

    def full(*_, **__):
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("ttcnet.storage.tensor_file.save_file", full)
    with raises("not-writable", None, "No space left"):
        sft.fine_tune(make(), model(), tokenizer())
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def test_tied_embeddings(make, monkeypatch, tmp_path):
    """Weights that have two names: SmolLM2's, Gemma's, those of the smaller Llamas and Qwens."""
    with monkeypatch.context() as patched:
        kill_at(5, patched)
        with pytest.raises(KilledError):
            sft.fine_tune(make(), model(tie_word_embeddings=True), tokenizer())
    again = sft.fine_tune(make(), model(1, tie_word_embeddings=True), tokenizer())
    assert_equal(again, sft.fine_tune(make("whole"), model(tie_word_embeddings=True), tokenizer()))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert_equal(again, loaded)


@pytest.mark.parametrize("inserted", [ADAPTER, None])
def test_lora(inserted, make, monkeypatch, tmp_path):
    from peft import PeftModel

    options = dict(train="lora", adapter=inserted, steps=4)
    trained = sft.fine_tune(make(**options), model(), tokenizer()).eval()
    (tmp_path / "run" / "checkpoint-4.safetensors").unlink()
    assert_equal(trained, sft.fine_tune(make(**options), model(), tokenizer()).eval())
    base = model() if inserted is None else adapter.load(model(), tmp_path / "run" / "adapter")
    loaded = PeftModel.from_pretrained(base, tmp_path / "run" / "adapter").eval()
    ids = torch.randint(6, 20, (2, 7))
    assert torch.equal(trained(ids).logits, loaded(ids).logits)
    assert not torch.equal(trained(ids).logits, model().eval()(ids).logits)
