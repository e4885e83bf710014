"""Fine-tuning: what is trained, horizons, packing, resumption, files, complaints."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import ttcnet.adapter as adapter
from tests.train.tiny import model, sums, tokenizer
from ttcnet.nn.horizon import parse
from ttcnet.records import rows
from ttcnet.train import sft
from ttcnet.train.examples import prepare
from ttcnet.train.fine_tuner import Horizons
from ttcnet.train.settings import settings, values_of

pytestmark = pytest.mark.filterwarnings("ignore")  # of trl, datasets and transformers, to each other
ADAPTER = {"every": 2, "heads": 2, "state_size": 8, "rank": 4}


@pytest.fixture
def make(tmp_path):
    data = sums(tmp_path / "data.jsonl")

    def made(out="run", **changes):
        values = dict(model="tiny", data=str(data), out=str(tmp_path / out), adapter=ADAPTER, batch=8, device_batch=4)
        values |= dict(steps=6, lr=3e-3, bf16=False, save_every=2, log_every=2, check_pointing=False)
        return settings(values | changes)

    return made


def weights(of):
    return {name: parameter.detach().clone() for name, parameter in of.named_parameters()}


@pytest.mark.parametrize("train", ["all", "inserted", "lora"])
def test_what_is_trained(train, make):
    trained = sft.fine_tune(make(train=train), model(), tokenizer())
    inserted = adapter.parameters(trained)
    fresh = adapter.parameters(adapter.insert(model(), adapter.TTCAdapterConfig.from_dict(ADAPTER)))
    moved = {name for name, value in inserted.items() if not torch.equal(value.detach(), fresh[name].detach())}
    assert any(name.endswith("out.weight") for name in moved)
    base = {name: value for name, value in weights(trained).items() if "q_proj" in name and "lora" not in name}
    before = weights(model())
    kept = all(
        torch.equal(value, before[f"model.layers{name.split('layers')[1].replace('.base_layer', '')}"])
        for name, value in base.items()
    )
    assert kept == (train != "all")


def test_the_loss_falls_and_the_log_says_so(make, tmp_path):
    sft.fine_tune(make(steps=30, adapter=None), model(), tokenizer())
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == list(range(2, 31, 2))
    assert log[-1]["loss"] < log[0]["loss"] - 1
    assert log[-1]["lr"] == pytest.approx(3e-4, rel=0.2)  # a tenth
    assert all(line["tokens_per_second"] > 0 for line in log)


class KilledError(Exception):
    """Ends a run from within, as a signal would."""


@pytest.mark.parametrize("train", ["all", "inserted"])
def test_a_killed_run_ends_at_the_same_weights(train, make, monkeypatch):
    options = dict(train=train, adapter=ADAPTER | {"dropout": 0.1})
    whole = sft.fine_tune(make("whole", **options), model(), tokenizer())
    at_step = Horizons.on_step_begin

    def kill(self, args, state, control, **others):
        if state.global_step == 5:
            raise KilledError
        at_step(self, args, state, control, **others)

    with monkeypatch.context() as patched:
        patched.setattr(Horizons, "on_step_begin", kill)
        with pytest.raises(KilledError):
            sft.fine_tune(make("killed", **options), model(), tokenizer())
    torch.manual_seed(99)  # whatever happens in between
    again = sft.fine_tune(make("killed", **options), model(seed=1 if train == "all" else 0), tokenizer())
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(again)[name]), name
    folders = [Path(make(name).out) for name in ("whole", "killed")]
    logs = [[json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()] for folder in folders]
    assert [(line["step"], line["loss"]) for line in logs[0]] == [(line["step"], line["loss"]) for line in logs[1]]


def test_no_checkpoint_is_pickled_or_half_written(make, tmp_path):
    sft.fine_tune(make(), model(), tokenizer())
    suffixes = {path.suffix for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert suffixes <= {".safetensors", ".json", ".jsonl", ".md", ".jinja"}
    assert sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-6"]


def test_a_save_that_dies_leaves_the_last_checkpoint(make, monkeypatch, tmp_path):
    from ttcnet.train import fine_tuner

    real = fine_tuner.save

    def dies(path, *rest):
        if "checkpoint-4" in str(path) and path.name.startswith("random"):
            raise KilledError
        real(path, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(fine_tuner, "save", dies)
        with pytest.raises(KilledError):
            sft.fine_tune(make(), model(), tokenizer())
    assert sft.get_last_checkpoint(str(tmp_path / "run")).endswith("checkpoint-2")
    sft.fine_tune(make(), model(), tokenizer())
    assert not list((tmp_path / "run").glob("*.tmp"))


def test_horizons_are_drawn_step_by_step(make, monkeypatch):
    seen = []
    monkeypatch.setattr("ttcnet.train.fine_tuner.adapter.set_horizon", lambda _, steps: seen.append(steps))
    monkeypatch.setattr(sft, "_restore_horizon", lambda *_: None)
    sft.fine_tune(make(horizon="uniform:1,32", seed=3), model(), tokenizer())
    sampler = parse("uniform:1,32", seed=3)
    assert seen == [sampler.at(step) for step in range(6)]
    assert len(set(seen)) > 1


def test_the_horizon_of_the_result_is_the_configurations(make, tmp_path):
    trained = sft.fine_tune(make(adapter=ADAPTER | {"horizon": 5}), model(), tokenizer())
    assert trained.config.horizon == 5
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").config.horizon == 5


def test_rows_in_a_pack_do_not_see_each_other(make):
    config = make(packing=True, max_length=32, batch=1, device_batch=1)
    examples = prepare(rows(config.data), tokenizer())
    net = model()
    adapter.insert(net, adapter.TTCAdapterConfig(every=2, heads=2, zero_init=False))
    trainer = sft._trainer(net, tokenizer(), config, examples)
    batch = next(iter(trainer.get_train_dataloader()))
    starts = (batch["position_ids"][0] == 0).nonzero().flatten().tolist()
    assert len(starts) >= 2
    inputs = {name: value for name, value in batch.items() if name in ("input_ids", "position_ids")}
    with torch.no_grad():
        packed = net.eval()(**inputs).logits[0]
        for begin, end in zip(starts, [*starts[1:], len(packed)], strict=True):
            alone = net(batch["input_ids"][:, begin:end]).logits[0]
            assert torch.allclose(packed[begin:end], alone, atol=1e-5)


def test_the_result_can_be_loaded(make, tmp_path):
    trained = sft.fine_tune(make(train="inserted"), model(), tokenizer()).eval()
    again = adapter.load(model(), tmp_path / "run" / "adapter").eval()
    ids = torch.randint(6, 20, (2, 7))
    assert torch.equal(trained(ids).logits, again(ids).logits)
    whole = sft.fine_tune(make("whole"), model(), tokenizer()).eval()
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "whole" / "model").eval()
    assert torch.equal(whole(ids).logits, again(ids).logits)


def test_complaints(make, tmp_path):
    with pytest.raises(ValueError, match="packing must be off with gdn"):
        sft.fine_tune(make("a", packing=True, max_length=32, adapter=ADAPTER | {"insert": "gdn"}), model(), tokenizer())
    with pytest.raises(ValueError, match="batch must be a multiple of device_batch 4 times 1 processes"):
        sft.fine_tune(make("b", batch=6), model(), tokenizer())
    with pytest.raises(ValueError, match="max_length must be given: the model takes 4 tokens"):
        sft.fine_tune(make("c"), model(max_position_embeddings=4), tokenizer())
    sft.fine_tune(make("d", steps=2), model(), tokenizer())
    with pytest.raises(ValueError, match=r"settings must be those of the run .*'lr': \(0.003, 0.1\)"):
        sft.fine_tune(make("d", steps=2, lr=0.1), model(), tokenizer())


def test_settings_from_a_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('model = "m"\ndata = "d"\nout = "o"\nlr = 1e-4\n[adapter]\nevery = "16:2"\n')
    found = settings(values_of(path) | {"out": "elsewhere"})
    assert (found.lr, found.out, found.adapter, found.weight_decay) == (1e-4, "elsewhere", {"every": "16:2"}, 0.1)
    assert settings(dict(model="m", data="d", out="o", adapter="none")).adapter is None
    with pytest.raises(ValueError, match=r"a.toml must hold fields among .*; got rate"):
        settings(dict(model="m", rate=3), "a.toml")
    with pytest.raises(ValueError, match="must name model, data and out; got no data, out"):
        settings(dict(model="m"))
    with pytest.raises(ValueError, match="train must not be 'inserted'"):
        settings(dict(model="m", data="d", out="o", adapter=None, train="inserted"))
    (tmp_path / "other.toml").write_text('extends = "run.toml"\nlr = 2e-4\n')
    assert settings(values_of(tmp_path / "other.toml")).lr == 2e-4
    assert settings(values_of(tmp_path / "other.toml")).adapter == {"every": "16:2"}
    path.write_text("model = \n")
    with pytest.raises(ValueError, match=r"run.toml must be TOML"):
        values_of(path)


RECIPES = [path for path in (Path(__file__).parents[2] / "recipes/math").glob("*.toml") if path.stem != "common"]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_recipes_of_the_papers_table(path):
    """Each says what its name does, and otherwise what the paper does."""
    found = settings(values_of(path), path.name)
    assert (found.batch, found.lr, found.weight_decay, found.warm_up, found.epochs) == (96, 2e-5, 0.1, 0.1, 1)
    assert found.train == "all"
    row = path.stem.rsplit("-", 1)[1]
    if row == "full":
        assert found.adapter is None
    else:
        config = adapter.TTCAdapterConfig.from_dict(found.adapter)
        assert (config.insert, config.every, config.heads, config.rank) == (row, 8, 16, 16)
        assert config.places(32) == {7: 1, 15: 1, 23: 1, 31: 1}


def test_the_command(tmp_path):
    from typer.testing import CliRunner

    from ttcnet.cli import app

    data, base = sums(tmp_path / "data.jsonl"), tmp_path / "base"
    model().save_pretrained(base)
    tokenizer().save_pretrained(base)
    file = tmp_path / "run.toml"
    file.write_text(f'model = "{base}"\nsteps = 9\nbf16 = false\n[adapter]\nevery = 2\nheads = 2\nstate_size = 8\n')
    options = ["--data", str(data), "--out", str(tmp_path / "run"), "--steps", "2", "--batch", "4", "--heads", "4"]
    done = CliRunner().invoke(app, ["sft", str(file), *options, "--train", "inserted"])
    assert done.exit_code == 0, done.output
    assert f"The adapter is in {tmp_path / 'run' / 'adapter'}" in done.output
    kept = json.loads((tmp_path / "run" / "settings.json").read_text())["settings"]
    assert kept["adapter"] == {"every": 2, "heads": 4, "state_size": 8}
    assert kept["steps"] == 2
    failed = CliRunner().invoke(app, ["sft", str(file), "--out", "x"])
    assert failed.exit_code == 1
    assert "must name model, data and out; got no data" in failed.output


def test_only_complaints_come_without_a_traceback(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from ttcnet.cli import app

    def broken(_):
        raise ValueError("something inside")

    monkeypatch.setattr(sft, "fine_tune", broken)
    done = CliRunner().invoke(app, ["sft", "--model", "m", "--data", "d", "--out", str(tmp_path)])
    assert isinstance(done.exception, ValueError)
    monkeypatch.undo()
    done = CliRunner().invoke(app, ["sft", "--model", "m", "--data", "d", "--out", str(tmp_path), "--batch", "0"])
    assert isinstance(done.exception, SystemExit)
    assert "batch must be a whole number of 1 or more; got 0" in done.output
