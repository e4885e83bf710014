"""Runs that are told to stop, and runs that are to go further than they were."""

import dataclasses
import json
import os
import shutil
import signal
import stat
from pathlib import Path

import pytest

from tests.raising import raises
from tests.train.test_checkpoint import KilledError, assert_equal, kill_at, log
from tests.train.tiny import model, tokenizer
from ttcnet.storage.locking import owned
from ttcnet.train import example_store, sft
from ttcnet.train.learner import Learner
from ttcnet.train.schedule import warm_up_and_cosine

pytestmark = pytest.mark.filterwarnings("ignore")  # of trl, datasets and transformers, to each other


def terminate_at(step, monkeypatch):
    advance = Learner.advance

    def told(self):
        if self.step == step:
            os.kill(os.getpid(), signal.SIGTERM)
        advance(self)

    monkeypatch.setattr(Learner, "advance", told)


@pytest.fixture
def copied(finished, tmp_path):
    """The finished run again, to be changed: its settings."""
    folder, _, config = finished
    shutil.copytree(folder, tmp_path / "run")
    return dataclasses.replace(config, out=str(tmp_path / "run"))


def test_sigterm_in_the_last_step_is_too_late(make, monkeypatch, tmp_path):
    terminate_at(3, monkeypatch)
    sft.fine_tune(make(steps=4), model(), tokenizer())
    assert (tmp_path / "run" / "model").exists()


def test_sigterm_before_training(make, monkeypatch, tmp_path, capsys):
    def prepare(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(example_store, "prepare", prepare)
    with pytest.raises(SystemExit) as stopped:
        sft.fine_tune(make(), model(), tokenizer())
    assert stopped.value.code == 143
    assert "Stopped by SIGTERM. Give the command again to resume." in capsys.readouterr().err
    assert list((tmp_path / "run" / "examples").iterdir()) == []


def test_a_finished_run_can_be_extended(copied, monkeypatch, tmp_path, capsys):
    """The rates of its further steps are those of a run of the new length; and it can be killed again."""
    longer = dataclasses.replace(copied, steps=12)
    shutil.copytree(tmp_path / "run", tmp_path / "killed")
    whole = sft.fine_tune(longer, model(), tokenizer())
    told = " ".join(capsys.readouterr().err.split())
    assert "was to end after 7 steps, and is extended to 12. From its last checkpoint on, the learning rate is" in told
    assert "Resuming from" in told
    lines = log(longer)
    assert [line["step"] for line in lines] == [2, 3, 4, 6, 7, 8, 9, 10, 12]
    rates = [line["lr"] for line in lines if line["step"] > 7]
    assert rates == pytest.approx([warm_up_and_cosine(step - 1, 12, 3e-3, 3e-4, 0.1) for step in (8, 9, 10, 12)])
    record = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert (record["steps"], record["provenance"]["extended"]) == (12, [{"steps": 7}])

    killed = dataclasses.replace(longer, out=str(tmp_path / "killed"))
    with monkeypatch.context() as patched:
        kill_at(10, patched)
        with pytest.raises(KilledError):
            sft.fine_tune(killed, model(), tokenizer())
    assert_equal(whole, sft.fine_tune(killed, model(), tokenizer()))


def test_a_run_is_not_made_shorter_nor_anything_else(copied):
    with raises("settings-changed", "steps", "5"):
        sft.fine_tune(dataclasses.replace(copied, steps=5), model(), tokenizer())
    with raises("settings-changed", "settings", r"\{'epochs': \(None, 1\), 'steps': \(7, None\)\}"):
        sft.fine_tune(dataclasses.replace(copied, steps=None), model(), tokenizer())
    with raises("settings-changed", "settings", r"\{'lr': \(0.003, 0.1\)\}"):
        sft.fine_tune(dataclasses.replace(copied, steps=12, lr=0.1), model(), tokenizer())


def test_epochs_can_be_added(make, tmp_path):
    options = dict(steps=None, batch=20, save_every=2, train="inserted")
    sft.fine_tune(make(epochs=1, **options), model(), tokenizer())
    sft.fine_tune(make(epochs=2, **options), model(), tokenizer())
    assert [line["step"] for line in log(make())] == [2, 4]
    found = sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*"))
    assert found == ["checkpoint-2.safetensors", "checkpoint-4.safetensors"]


def test_a_second_run_in_a_folder_is_an_error(make, tmp_path):
    with owned(tmp_path / "run"), raises("in-use", "out"):
        sft.fine_tune(make(), model(), tokenizer())
    assert not (tmp_path / "run").exists()


def test_files_have_the_permissions_of_the_umask(finished):
    folder, _, _ = finished
    mask = os.umask(0o077)
    os.umask(mask)
    found = {stat.S_IMODE(path.stat().st_mode) for path in Path(folder).rglob("*") if path.is_file()}
    assert found == {0o666 & ~mask}
