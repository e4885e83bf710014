"""The recipes, at a size that a CPU can train."""

import json
import re
import sys
import threading
from dataclasses import replace

import pytest
import typer

from recipes import lean, math_small, math_tasks, math_workshop, sudoku
from tests.train.tiny import model, sums, tokenizer
from ttcnet.tasks.sudoku import generate
from ttcnet.tasks.sudoku.settings import ARCHITECTURES
from ttcnet.tasks.sudoku.trainer import Trainer


@pytest.fixture
def small(monkeypatch, tmp_path):
    boards = generate(8, givens=(70, 72), seed=0)
    boards.write(tmp_path / "boards.csv")
    for name, config in sudoku.SETTINGS.items():
        monkeypatch.setitem(sudoku.SETTINGS, name, replace(config, layers=1, width=32, heads=2, batch=4))
    monkeypatch.setattr(sudoku, "EVERY", 4)
    where = dict(train=tmp_path / "boards.csv", test=tmp_path / "boards.csv", device="cpu")

    def start(setting, out, **options):
        sudoku.main(setting, out=tmp_path / out, **{"only": None, "minutes": 0, "change": None} | where | options)
        return tmp_path / out

    return start


def test_every_run_of_the_table_is_trained_and_judged(small, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/here/recipes/sudoku.py", "augmented", "--train", "/data/boards.csv"])
    out = small("augmented", "table", steps=2)
    assert sorted(path.name for path in out.iterdir()) == [
        "gdn-0", "mamba-0", "mamba2-0", "samba-0", "transformer-0", "transformer-1", "transformer-2",
        "ttc-0", "ttc-1", "ttc-2",
    ]  # fmt: skip
    for folder in out.iterdir():
        config, metrics = (json.loads((folder / f"{name}.json").read_text()) for name in ("config", "metrics"))
        assert f"{config['architecture']}-{config['seed']}" == folder.name
        assert [result["mode"] for result in metrics["results"]] == ["single", "multi"]
        assert metrics["command"] == "python -m recipes.sudoku augmented --train boards.csv"
        assert (folder / "model" / "model.safetensors").exists()


def test_every_looped_run_is_there_and_can_be_changed():
    found = sudoku.runs("looped-augmented", 100, None, sudoku.parse(["lr=1e-3", "zero_init=true", "interleave=1:1"]))
    assert sorted({name.partition("-")[0] for name in found}) == sorted(ARCHITECTURES)
    assert len(found) == 27
    assert all((run.loops, run.layers, run.context, run.lr) == (32, 1, "token", 1e-3) for run in found.values())
    assert (found["mlp-4"].zero_init, found["mlp-4"].interleave) == (True, "1:1")
    assert (found["gdn-2"].zero_init, found["gdn-2"].interleave) == (False, None)
    with pytest.raises(typer.BadParameter, match=r"set must name a field among .*; got 'rate=1'"):
        sudoku.parse(["rate=1"])


def test_a_looped_run_is_trained_and_judged(small):
    out = small("looped-augmented", "looped", steps=2, only=["mlp-0"], change=["loops=3", "interleave=3:1"])
    kept = json.loads((out / "mlp-0" / "model" / "config.json").read_text())
    assert (kept["loops"], kept["insert"], kept["interleave"]) == (3, "mlp", "3:1")


def test_a_stopped_recipe_goes_on(small):
    whole = small("best", "whole", steps=8)
    parts = small("best", "parts", steps=8, minutes=1e-9)
    assert not (parts / "ttc-0" / "metrics.json").exists()
    assert len((parts / "ttc-0" / "log.jsonl").read_text().splitlines()) == 1  # stopped after 4 steps
    small("best", "parts", steps=8)
    one, two = ((folder / "ttc-0" / "model" / "model.safetensors").read_bytes() for folder in (whole, parts))
    assert one == two
    assert (whole / "ttc-0" / "log.jsonl").read_text() == (parts / "ttc-0" / "log.jsonl").read_text()


def test_a_recipe_that_was_killed_between_two_checkpoints_goes_on(small, monkeypatch):
    """One run is then ahead of the others, and waits for them without a word in its log."""
    whole = small("augmented", "whole", steps=12, only=["transformer-0", "transformer-1"])
    save = Trainer.save

    def killed(trainer, path):
        if (trainer.step, path.parent.name) == (8, "transformer-1"):
            raise RuntimeError
        save(trainer, path)

    monkeypatch.setattr(sudoku, "SAVE_EVERY", 4)
    monkeypatch.setattr(Trainer, "save", killed)
    with pytest.raises(RuntimeError):
        small("augmented", "parts", steps=12, only=["transformer-0", "transformer-1"])
    monkeypatch.setattr(Trainer, "save", save)
    threads = record_first_steps(monkeypatch)
    parts = small("augmented", "parts", steps=12, only=["transformer-0", "transformer-1"])
    for run in ("transformer-0", "transformer-1"):
        logs = [(folder / run / "log.jsonl").read_text() for folder in (whole, parts)]
        assert logs[0] == logs[1]
    assert threads == {("transformer", 0): threading.main_thread(), ("transformer", 1): threading.main_thread()}


def record_first_steps(monkeypatch):
    """In which thread each trainer takes its first step: on a GPU it records a graph, which bears no other work."""
    advance, found = Trainer.advance, {}

    def watched(trainer):
        found.setdefault((trainer.config.architecture, trainer.config.seed), threading.current_thread())
        advance(trainer)

    monkeypatch.setattr(Trainer, "advance", watched)
    return found


def test_what_is_not_there(small, capsys):
    with pytest.raises(typer.BadParameter, match=r"only must name runs or architectures among ttc-0, .*; got lstm"):
        small("augmented", "none", steps=2, only=["lstm"])
    for options, message in (
        (dict(device="abacus"), "device must be one that"),
        (dict(test="x.csv"), "x.csv: must be a file"),
    ):
        with pytest.raises(typer.Exit):
            small("augmented", "none", steps=2, **options)
        assert message in capsys.readouterr().err


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
    monkeypatch.setattr(math_workshop, "HORIZONS", (0, 8, 16))
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
        config, metrics = json.loads((folder / "config.json").read_text()), metrics_of(folder)
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
        assert metrics["command"].startswith("python -m recipes.math_small math --base tiny --out results/here")
    assert len(tokens) == 1  # all have seen the same
    logs = [(out / name / "log.jsonl").read_text() for name in (only or ALL) if name != "base"]
    assert len(set(logs)) == len(logs)


def test_a_gain_is_that_of_runs_that_plan(small_math):
    out = small_math("countdown", "loud", only=["full-0", "mlp-0", "ttc-0"], action_gain=4.0)
    made = {
        name: json.loads((out / name / "config.json").read_text())["adapter"] for name in ("full-0", "mlp-0", "ttc-0")
    }
    assert made["full-0"] is None
    assert "action_gain" not in made["mlp-0"]
    assert made["ttc-0"]["action_gain"] == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 1e-4}, "lr must be what .*ttc-0 was made with, 0.001; got 0.0001"),
        ({"inserted_lr": None}, "inserted_lr must be what .*ttc-0 was made with, 0.01; got 0.001"),
        ({"epochs": 2.0}, "epochs must be what .*ttc-0 was made with, 1.0; got 2.0"),
        ({"action_gain": 4.0}, "adapter must be what .*ttc-0 was made with"),
        ({"action_gain": -1.0}, "action_gain must be a positive finite number; got -1.0"),
    ],
)
def test_a_run_that_was_made_otherwise_is_refused(small_math, capsys, options, message):
    small_math("countdown", "done", only=["base", "ttc-0"])
    small_math("countdown", "done", only=["base", "ttc-0"])  # as it was made: nothing to do
    assert "ttc-0 is done" in capsys.readouterr().out
    with pytest.raises(typer.Exit):
        small_math("countdown", "done", only=["base", "ttc-0"], **options)
    assert re.search(message, " ".join(capsys.readouterr().err.split()))


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
    monkeypatch.setattr(math_workshop, "Workshop", None)  # nothing is trained again
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
    trained = [tuple(example.input_ids) for example in task.train.kept]
    assert len(trained) == 10
    assert all(trained.count(tuple(example.input_ids)) == 1 for example in held_out)  # once, in the file of gsm8k


def test_training_takes_no_more_tokens_at_once_than_asked_for(small_math, monkeypatch):
    seen, cut = list[tuple[float, int]](), lean.micro_batches

    def spy(rows, most):
        made = cut(rows, most)
        seen.extend((most, len(part) * len(part[-1].input_ids)) for part in made)
        return made

    monkeypatch.setattr(lean, "micro_batches", spy)
    small_math("countdown", "few", only=["full-0"], tokens=300)
    assert {most for most, _ in seen} == {300}
    assert max(tokens for _, tokens in seen) <= 300


def test_a_small_run_stops_in_time_and_goes_on(small_math, capsys):
    out = small_math("countdown", "stopped", only=["base", "full-0"], minutes=1e-9)
    assert "Stopped for the time being" in capsys.readouterr().out
    assert not out.exists()
    small_math("countdown", "stopped", only=["base", "full-0"])
    assert metrics_of(out / "full-0")["accuracy"]
    with pytest.raises(typer.BadParameter, match="only must name runs among base, full-0"):
        small_math("countdown", "stopped", only=["ttc"])
    with pytest.raises(typer.BadParameter, match="data must be given for math"):
        small_math("math", "stopped", data=None)
