"""Input of a run of fine-tuning: settings, data, a model; and errors in them."""

import json
import math
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import ttcnet.adapter as adapter
from tests.raising import raises, told
from tests.train.conftest import ADAPTER
from tests.train.tiny import model, sums, tokenizer
from ttcnet.cli import app
from ttcnet.settings import from_table, read_toml
from ttcnet.storage.reading import rows
from ttcnet.train import example_store, sft
from ttcnet.train.examples import prepare
from ttcnet.train.settings import FineTuning

pytestmark = pytest.mark.filterwarnings("ignore")  # of datasets and transformers, to each other


def test_errors_come_before_anything_is_learned(make, tmp_path):
    def refused(code, field, value="", net=None, **changes):
        with raises(code, field, value):
            sft.fine_tune(make(**changes), model() if net is None else net, tokenizer())

    refused("stateful", "packing", packing=True, max_length=32, adapter=ADAPTER | {"insert": "gdn"})
    refused("conflict", "batch", "6", batch=6)
    refused("unknown-name", "report_to", "nothing", report_to="nothing")
    refused("unknown-name", "horizon sampler", "8", horizon="8")
    refused("out-of-range", "inserted_lr", "0.0", inserted_lr=0.0)
    refused("conflict", "inserted_lr", "0.1", adapter=None, inserted_lr=0.1)
    refused("format", "every", "2.5", adapter={"every": 2.5})
    assert not (tmp_path / "run").exists()
    short = model(max_position_embeddings=4)
    for given in (None, 32):
        refused("too-long", "max_length", f"{given}, and a row of 12", short, max_length=given)
    refused("too-long", "tokenizer", "3", model(vocab_size=20))
    refused("too-large", "every", "8", adapter={"every": 8})
    sft.fine_tune(make(steps=2), model(), tokenizer())  # none of these stands in the way of a run that is right
    refused("settings-changed", "settings", r"'lr': \(0.003, 0.1\)", steps=2, lr=0.1)
    (tmp_path / "run").rename(tmp_path / "moved")
    sft.fine_tune(make("moved", steps=2), model(), tokenizer())
    (tmp_path / "moved" / "settings.json").write_text("{")
    refused("damaged", str(tmp_path / "moved" / "settings.json"), out=str(tmp_path / "moved"))


def test_a_model_that_cannot_be_loaded(make, tmp_path):
    def refused(code, name):
        with raises(code, "model", re.escape(f"'{name}'")):
            sft.fine_tune(make(model=str(name)))

    refused("not-found", tmp_path / "nowhere")
    model().save_pretrained(tmp_path / "base")
    refused("no-model", tmp_path / "base")  # no tokenizer
    tokenizer().save_pretrained(tmp_path / "base")
    weights = tmp_path / "base" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    refused("no-model", tmp_path / "base")


def test_examples_are_made_once(make, monkeypatch, tmp_path):
    monkeypatch.setattr(example_store, "ROWS", 7)
    made = example_store.examples_of(make(), tokenizer(), tmp_path / "examples")
    plain = prepare(rows(make().data), tokenizer())
    assert made.report == plain.report
    assert [(row["input_ids"], row["labels"]) for row in made.rows] == plain.rows
    with monkeypatch.context() as patched:
        patched.setattr(example_store, "prepare", None)
        again = example_store.examples_of(make(), tokenizer(), tmp_path / "examples")
        assert list(again.rows) == list(made.rows)
        patched.setattr(example_store, "is_first_process", lambda: False)
        assert example_store.examples_of(make(), tokenizer(), tmp_path / "examples").report == made.report
    assert (
        example_store.examples_of(make(system="the"), tokenizer(), tmp_path / "examples").tokens == made.tokens + 2 * 40
    )
    with (tmp_path / "data.jsonl").open("a") as file:
        file.write('{"problem": "1", "solution": "1"}\n')
    assert len(example_store.examples_of(make(), tokenizer(), tmp_path / "examples").rows) == 41
    with (tmp_path / "data.jsonl").open("a") as file:
        file.write('{"problem": "1"}\n')
    with raises("bad-data", "data", "data.jsonl line 42: no answer"):
        example_store.examples_of(make(), tokenizer(), tmp_path / "examples")
    assert sorted(path.name for path in (tmp_path / "examples").iterdir()) == ["examples.arrow", "examples.json"]
    facts = tmp_path / "examples" / "examples.json"
    facts.write_text(facts.read_text().replace('"tokens": ', '"tokens": "many", "more": '))
    with raises("damaged", f"{facts}: counts.tokens", "many"):
        example_store.examples_of(make(), tokenizer(), tmp_path / "examples")


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"lr": "2e-5"}, "type"),
        ({"steps": True}, "type"),
        ({"packing": "yes"}, "type"),
        ({"system": 5}, "type"),
        ({"adapter": "ttc"}, "type"),
        ({"lr": math.inf}, "out-of-range"),
        ({"lr": 1e30}, "out-of-range"),
        ({"inserted_lr": 1.1}, "out-of-range"),
        ({"weight_decay": 1e30}, "out-of-range"),
        ({"steps": 10**21}, "too-large"),
        ({"epochs": 1e300}, "too-large"),
        ({"out": "./m"}, "conflict"),
        ({"epochs": math.nan}, "out-of-range"),
        ({"weight_decay": -1}, "out-of-range"),
        ({"seed": -1}, "out-of-range"),
        ({"seed": 10**18}, "out-of-range"),
        ({"warm_up": 1}, "out-of-range"),
        ({"max_length": 0}, "too-small"),
        ({"train": "some"}, "unknown-name"),
        ({"data": ""}, "missing"),
    ],
)
def test_values_that_do_not_fit(value, code):
    (name,) = value
    with raises(code, f"settings: {name}" if code == "type" else name):
        from_table(FineTuning, dict(model="m", data="d", out="o") | value)
    with raises(code, name):
        FineTuning(**dict(model="m", data="d", out="o") | value)


def test_settings_from_a_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('model = "m"\ndata = "d"\nout = "o"\nlr = 1e-4\n[adapter]\nevery = "16:2"\n')
    found = from_table(FineTuning, read_toml(path) | {"out": "elsewhere"})
    assert (found.lr, found.out, found.adapter, found.weight_decay) == (1e-4, "elsewhere", {"every": "16:2"}, 0.1)
    assert from_table(FineTuning, dict(model="m", data="d", out="o", adapter="none")).adapter is None
    with raises("conflict", "train"):
        from_table(FineTuning, dict(model="m", data="d", out="o", adapter=None, train="inserted"))


def test_variants_need_a_file():
    refused = CliRunner().invoke(app, ["sft", "--variant", "small"])
    assert refused.exit_code == 1
    assert refused.stderr.endswith("[conflict]\n")


@pytest.mark.parametrize("base", ["llama3-8b", "qwen2.5-math-7b"])
@pytest.mark.parametrize("arm", ["attention", "full", "gdn", "mamba", "mesanet", "mlp", "retnet", "ttc"])
def test_every_row_of_the_papers_table_has_its_settings(base, arm):
    """Each has the setting of its name, and otherwise the paper's."""
    path = Path(__file__).parents[2] / "experiments/math/settings.toml"
    found = from_table(FineTuning, read_toml(path, [base, arm]), path.name)
    assert found.out == f"runs/math/{base}-{arm}"
    assert base.partition("-")[0].rstrip("0123456789.") in found.model.lower()
    assert (found.batch, found.lr, found.weight_decay, found.warm_up, found.epochs) == (96, 2e-5, 0.1, 0.1, 1)
    assert found.train == "all"
    if arm == "full":
        assert found.adapter is None
    else:
        config = adapter.TTCAdapterConfig.from_dict(found.adapter)
        assert (config.insert, config.every, config.heads, config.rank) == (arm, 8, 16, 16)
        assert config.places(32) == {7: 1, 15: 1, 23: 1, 31: 1}


def test_the_command(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from ttcnet.cli import app

    data, base = sums(tmp_path / "data.jsonl"), tmp_path / "base"
    model().save_pretrained(base)
    tokenizer().save_pretrained(base)
    file = tmp_path / "run.toml"
    file.write_text(f'model = "{base}"\nsteps = 9\nbf16 = false\n[adapter]\nevery = 2\nheads = 2\nstate_size = 8\n')
    options = ["--data", str(data), "--out", str(tmp_path / "run"), "--steps", "2", "--batch", "4", "--heads", "4"]
    monkeypatch.setattr(sys, "argv", ["ttcnet", "sft", str(file)])
    done = CliRunner().invoke(app, ["sft", str(file), *options, "--train", "inserted"])
    assert done.exit_code == 0, done.output
    assert f"The adapter is in {tmp_path / 'run' / 'adapter'}" in done.output
    record = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert record["provenance"]["command"] == "ttcnet sft run.toml"
    assert {"machine", "versions", "commit"} < set(record["provenance"])
    assert record["adapter"] == {"context": "token", "every": 2, "heads": 4, "state_size": 8}
    assert record["steps"] == 2
    again = CliRunner().invoke(app, ["sft", str(file), *options, "--train", "inserted", "--every", "2"])
    assert again.exit_code == 0, again.output  # 2 on the command line is 2 in the file
    (tmp_path / "empty.jsonl").write_text("\n")
    failed = CliRunner().invoke(app, ["sft", str(file), "--out", "x", "--data", str(tmp_path / "empty.jsonl")])
    assert told(failed.output, "no-data", "data", f"none in {tmp_path / 'empty.jsonl'}")
    failed = CliRunner().invoke(app, ["sft", str(file), "--out", "x"])
    assert failed.exit_code == 1
    assert told(failed.output, "missing", str(file), "no data")


def test_help_shows_every_setting_with_its_default():
    import dataclasses

    import typer.main

    from ttcnet.cli import app
    from ttcnet.cli.sft import KEYS, sft

    options = {each.name: each for each in typer.main.get_command(app).commands["sft"].params}
    for field in dataclasses.fields(FineTuning):
        if field.name not in ("model", "data", "out", "adapter"):
            assert options[field.name].default == field.default, field.name
            assert field.default is not None or "none" in options[field.name].help, field.name
    for field in dataclasses.fields(adapter.TTCAdapterConfig):
        if field.name in ("insert", "every", "heads"):
            assert options[field.name].default == type(options[field.name].default)(field.default)
        elif field.default is not None:
            assert f"{field.name} = {str(field.default).lower()}" in KEYS
        else:
            assert field.name in KEYS
    assert sft.__doc__


def test_rows_left_out_are_printed_and_recorded(make, tmp_path, capsys):
    (tmp_path / "data.jsonl").write_text(
        "".join(json.dumps({"problem": "1 + " * times, "solution": "2"}) + "\n" for times in (1, 2, 1, 30))
    )
    sft.fine_tune(make(steps=1, max_length=20, train="inserted"), model(), tokenizer())
    told = " ".join(capsys.readouterr().err.split())
    assert told.count("1 of 4 rows (25 %) left out as too long (the longest has 64 tokens)") == 2, "before and after"
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["provenance"]["examples"]["too_long"] == 1


def test_only_our_errors_come_without_a_traceback(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from ttcnet.cli import app
    from ttcnet.terminal.console import FAULT

    def broken(_, **__):
        raise ValueError("something inside")

    monkeypatch.setattr(sft, "fine_tune", broken)
    done = CliRunner().invoke(app, ["sft", "--model", "m", "--data", "o/d", "--out", str(tmp_path)])
    assert f"{FAULT} ValueError: something inside. Please report it" in done.output
    monkeypatch.setenv("TTCNET_DEBUG", "1")
    done = CliRunner().invoke(app, ["sft", "--model", "m", "--data", "o/d", "--out", str(tmp_path)])
    assert isinstance(done.exception, ValueError)
    monkeypatch.undo()
    done = CliRunner().invoke(app, ["sft", "--model", "m", "--data", "d", "--out", str(tmp_path), "--batch", "0"])
    assert isinstance(done.exception, SystemExit)
    assert told(done.output, "too-small", "batch", "0")
