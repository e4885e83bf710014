"""The small table of mathematics, at a size that a CPU can train."""

import json
import sys

import pytest
import torch
import typer

from experiments.math_small import __main__ as math_small
from experiments.math_small import learner
from experiments.math_small import run as math_run
from experiments.math_small import tasks as math_tasks
from experiments.math_small.table import math_small_table
from tests.raising import told
from tests.train.tiny import model, sums, tokenizer
from ttcnet.adapter import TTCAdapterConfig
from ttcnet.nn import Inserted, TTCLayer


@pytest.fixture
def small_math(monkeypatch, tmp_path):
    """Both tasks with a model of two layers and a handful of rows."""
    model().save_pretrained(tmp_path / "tiny")
    tokenizer().save_pretrained(tmp_path / "tiny")
    for name in ("gsm8k-train", "math-train-7500", "gsm8k-test", "math500"):
        content = sums(tmp_path / f"{name}.jsonl", 6).read_text().splitlines()
        kept = [json.loads(line) | {"answer": str(number)} for number, line in enumerate(content)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    monkeypatch.setattr(math_tasks, "HELD_OUT", 2)
    monkeypatch.setattr(math_tasks, "PUZZLES", {"train": 10, "test": 3})
    for task in math_tasks.TASKS:
        monkeypatch.setitem(math_tasks.LIMITS, task, 4)
    monkeypatch.setattr(math_small, "ADAPTER", dict(every=2, heads=4, state_size=8))
    monkeypatch.setattr(math_run, "HORIZONS", (0, 8, 16))
    monkeypatch.setattr(math_small, "INTERLEAVED", ("1-1", "2-2"))
    monkeypatch.setattr(sys, "argv", ["x", "math", "--base", str(tmp_path / "tiny"), "--out", "results/here"])

    def start(task, out, **options):
        where = dict(base=tmp_path / "tiny", data=tmp_path, out=tmp_path / out, device="cpu", epochs=1.0, minutes=0)
        math_small.main(task, **where | {"only": None, "lr": 1e-3, "inserted_lr": 1e-2} | options)
        return tmp_path / out

    return start


def metrics_of(folder):
    return json.loads((folder / "metrics.json").read_text())


ALL = [
    "attention-0", "base", "full-0", "full-1", "full-2", "gdn-0", "mamba-0", "mesanet-0", "mlp-0", "retnet-0",
    "ttc-0", "ttc-1", "ttc-1-1", "ttc-2", "ttc-2-2", "ttc-fixed", "ttc-homogeneous", "ttc-uniform",
]  # fmt: skip


@pytest.mark.parametrize("only", [["base", "full-0", "ttc-0", "ttc-fixed"], pytest.param(None, marks=pytest.mark.slow)])
def test_every_run_of_the_small_table_is_trained_and_judged(small_math, only):
    out = small_math("countdown", "countdown", only=only)
    assert sorted(path.name for path in out.iterdir()) == (only or ALL)
    tokens = set()
    for folder in out.iterdir():
        config, metrics = json.loads((folder / "settings.json").read_text()), metrics_of(folder)
        plans = folder.name.startswith("ttc")
        horizons = [0, 8, 16] if plans else [None]
        assert [each["horizon"] for each in metrics["likelihood"]] == horizons
        answered = [0, 8, 16] if folder.name == "ttc-0" else [8, 16] if plans else [None]
        assert [each["horizon"] for each in metrics["accuracy"]] == answered
        assert all(each["total"] == 3 for each in metrics["accuracy"])
        assert (folder / "log.jsonl").exists() == config["trained"] == (folder.name != "base")
        if config["trained"]:
            tokens.add(metrics["tokens"])
            assert config["inserted_lr"] == (None if folder.name.startswith("full") else 1e-2)
        assert not (folder / "measured.json").exists()
        assert metrics["command"].startswith("python -m experiments.math_small math --base tiny --out results/here")
    assert len(tokens) == 1  # all have seen the same
    logs = [(out / name / "log.jsonl").read_text() for name in (only or ALL) if name != "base"]
    assert len(set(logs)) == len(logs)


def test_a_frozen_base_stays_as_it_is(small_math, monkeypatch):
    monkeypatch.setattr(math_small, "FROZEN", dict(every=2))
    monkeypatch.setattr(math_small, "FROZEN_TRAINING", dict(steps=2, batch=4))
    likelihoods, seen = math_run.RunMaker._likelihoods, {}

    def check_the_base(maker, trained, run, folder):
        theirs = dict(maker.base.named_parameters())
        now = {name: p.detach() for name, p in trained.named_parameters()}
        own = [name for name in now if name not in theirs]
        seen[folder.name] = [name for name, p in theirs.items() if not torch.equal(now[name], p)]
        assert all(name.startswith("model.layers.1.inserted.") for name in own)
        assert bool(own) == any(bool(now[name].abs().max()) for name in own if name.endswith("out.weight"))
        return likelihoods(maker, trained, run, folder)

    monkeypatch.setattr(math_run.RunMaker, "_likelihoods", check_the_base)
    only = ["base", *(f"{arm}-0" for arm in math_small.FROZEN_ARMS), "mlp-1"]
    out = small_math("countdown", "frozen", only=only, frozen=True, lr=None, inserted_lr=None)
    assert seen == {name: [] for name in only}
    config = {name: json.loads((out / name / "settings.json").read_text()) for name in only}
    assert {each["lr"] for each in config.values() if each["trained"]} == {math_small.FROZEN_LR}
    assert config["system-0"]["adapter"]["context"] == "system"
    assert config["ttc-0"]["adapter"]["context"] == "token"
    assert len({metrics_of(out / name)["tokens"] for name in only if name.endswith("-0")}) == 1
    text = math_small_table("countdown-frozen", _named(out))
    assert "| TTC that writes systems | " in text
    assert next(row for row in text.splitlines() if row.startswith("| MLP |")).split(" | ")[2] == "2"


def _named(out):
    """Results whose frozen runs of countdown are these."""
    (out.parent / "all").mkdir()
    out.rename(out.parent / "all" / "countdown-frozen")
    return out.parent / "all"


def test_a_larger_mlp_is_two_and_a_half_times_as_large():
    def size(arm):
        config = TTCAdapterConfig(**math_small.ADAPTER | math_small.FROZEN | math_small.FROZEN_ARMS[arm])
        options = config.layer_options(576)
        made = TTCLayer(**options, device="meta") if config.insert == "ttc" else Inserted("mlp", options, device="meta")
        return sum(p.numel() for p in made.parameters())

    assert size("mlp") / size("ttc") == pytest.approx(1, abs=0.02)
    assert size("mlp-2.5") / size("mlp") == pytest.approx(2.5, abs=0.05)
    assert size("system") / size("mlp") == pytest.approx(1, abs=0.1)
    config = TTCAdapterConfig(**math_small.ADAPTER | math_small.FROZEN)
    assert config.places(30) == {23: 1}


def test_a_gain_is_that_of_runs_that_plan(small_math):
    out = small_math("countdown", "loud", only=["full-0", "mlp-0", "ttc-0"], action_gain=4.0)
    made = {
        name: json.loads((out / name / "settings.json").read_text())["adapter"] for name in ("full-0", "mlp-0", "ttc-0")
    }
    assert made["full-0"] is None
    assert "action_gain" not in made["mlp-0"]
    assert made["ttc-0"]["action_gain"] == 4


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"lr": 1e-4}, r"'lr': \(0.001, 0.0001\)"),
        ({"inserted_lr": None}, r"'inserted_lr': \(0.01, 0.001\)"),
        ({"epochs": 2.0}, r"'epochs': \(1.0, 2.0\)"),
        ({"action_gain": 4.0}, r"'adapter': \({'every'"),
        ({"action_gain": -1.0}, None),
    ],
)
def test_a_run_that_was_made_otherwise_is_refused(small_math, capsys, options, value):
    small_math("countdown", "done", only=["base", "ttc-0"])
    small_math("countdown", "done", only=["base", "ttc-0"])  # as it was made: nothing to do
    assert "ttc-0 is done" in capsys.readouterr().out
    with pytest.raises(typer.Exit):
        small_math("countdown", "done", only=["base", "ttc-0"], **options)
    wrong = ("out-of-range", "action_gain", "-1.0")
    assert told(capsys.readouterr().err, *(("settings-changed", "settings", value) if value else wrong))


def test_the_rate_of_the_rest_may_be_said_or_not(small_math, capsys):
    small_math("countdown", "done", only=["full-0", "ttc-0"], inserted_lr=1e-3)  # lr
    small_math("countdown", "done", only=["full-0", "ttc-0"], inserted_lr=None)
    assert capsys.readouterr().out.count("ttc-0 is done") == 2


def test_answers_wait_where_they_cannot_be_graded(small_math, monkeypatch, capsys):
    monkeypatch.setattr(math_small, "find_spec", lambda name: None)
    out = small_math("math", "math", only=["base", "ttc-0"])
    assert "ttc-0 waits to be graded" in capsys.readouterr().out
    assert not (out / "base" / "metrics.json").exists()
    monkeypatch.setattr(math_small, "find_spec", lambda name: object())
    monkeypatch.setattr(math_run, "RunMaker", None)  # nothing is trained again
    monkeypatch.setattr(math_small, "grade", lambda task, answers: [answer["answer"] == "3" for answer in answers])
    small_math("math", "math", only=["base", "ttc-0"])
    found = metrics_of(out / "ttc-0")
    assert [(each["benchmark"], each["horizon"]) for each in found["accuracy"]] == [
        (name, steps) for steps in (0, 8, 16) for name in ("gsm8k", "math500")
    ]
    assert all((each["right"], each["total"]) == (1, 6) for each in found["accuracy"])
    assert {each["benchmark"] for each in found["likelihood"]} == {"gsm8k", "math-held-out"}
    assert found["rows"] == 10
    small_math("math", "math", only=["base", "ttc-0"])  # and nothing is left to do


def test_the_held_out_rows_are_not_trained_on(small_math, tmp_path):
    task = math_tasks.load("math", tmp_path, tokenizer())
    assert {each.name: (len(each.problems), len(each.solutions)) for each in task.benchmarks} == {
        "gsm8k": (6, 6), "math500": (6, 0), "math-held-out": (0, 2)
    }  # fmt: skip
    held_out = task.benchmarks[2].solutions
    trained = [tuple(example.input_ids) for example in task.train.rows]
    assert len(trained) == 10
    assert all(trained.count(tuple(example.input_ids)) == 1 for example in held_out)  # once, in the file of gsm8k


def test_training_takes_no_more_tokens_at_once_than_asked_for(small_math, monkeypatch):
    seen, cut = list[tuple[float, int]](), learner.micro_batches

    def spy(rows, most):
        made = cut(rows, most)
        seen.extend((most, len(part) * len(part[-1].input_ids)) for part in made)
        return made

    monkeypatch.setattr(learner, "micro_batches", spy)
    small_math("countdown", "few", only=["full-0"], tokens=300)
    assert {most for most, _ in seen} == {300}
    assert max(tokens for _, tokens in seen) <= 300


def test_a_small_run_stops_in_time_and_resumes(small_math, capsys):
    out = small_math("countdown", "stopped", only=["base", "full-0"], minutes=1e-9)
    assert "Stopped for the time being" in capsys.readouterr().out
    assert not out.exists()
    small_math("countdown", "stopped", only=["base", "full-0"])
    assert metrics_of(out / "full-0")["accuracy"]
    with pytest.raises(typer.Exit):
        small_math("countdown", "stopped", only=["ttc"])
    assert told(capsys.readouterr().err, "unknown-name", "only", "ttc")
    with pytest.raises(typer.Exit):
        small_math("math", "stopped", data=None)
    assert told(capsys.readouterr().err, "missing", "data")
