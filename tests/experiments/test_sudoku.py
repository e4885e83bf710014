"""The Sudoku table, at a size that a CPU can train."""

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from experiments.sudoku import __main__ as sudoku
from tests.raising import raises, told
from ttcnet.tasks.sudoku import generate
from ttcnet.tasks.sudoku.settings import ARCHITECTURES
from ttcnet.train.learner import Learner
from ttcnet.train.run import Run


@pytest.fixture
def small(monkeypatch, tmp_path):
    boards = generate(8, givens=(70, 72), seed=0)
    boards.write(tmp_path / "boards.csv")
    for name, config in sudoku.SETTINGS.items():
        monkeypatch.setitem(sudoku.SETTINGS, name, replace(config, layers=1, width=32, heads=2, batch=4))
    monkeypatch.setattr(sudoku, "EVERY", 4)
    where = dict(train=tmp_path / "boards.csv", test=[tmp_path / "boards.csv"], device="cpu")

    def start(setting, out, **options):
        sudoku.main(setting, out=tmp_path / out, **{"only": None, "minutes": 0, "change": None} | where | options)
        return tmp_path / out

    return start


def test_every_run_of_the_table_is_trained_and_judged(small, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/here/experiments/sudoku", "augmented", "--train", "/data/boards.csv"])
    out = small("augmented", "table", steps=2)
    assert sorted(path.name for path in out.iterdir()) == [
        "gdn-0", "mamba-0", "mamba2-0", "samba-0", "transformer-0", "transformer-1", "transformer-2",
        "ttc-0", "ttc-1", "ttc-2",
    ]  # fmt: skip
    for folder in out.iterdir():
        config, metrics = (json.loads((folder / f"{name}.json").read_text()) for name in ("settings", "metrics"))
        assert f"{config['architecture']}-{config['seed']}" == folder.name
        assert [result["mode"] for result in metrics["results"]] == ["single", "multi"]
        assert metrics["command"] == "python -m experiments.sudoku augmented --train boards.csv"
        assert (folder / "model" / "model.safetensors").exists()


def test_every_looped_run_is_there_and_can_be_changed():
    found = sudoku.runs("looped-augmented", 100, None, sudoku.parse(["lr=1e-3", "zero_init=true", "interleave=1:1"]))
    assert sorted({name.partition("-")[0] for name in found}) == sorted(ARCHITECTURES)
    assert len(found) == 27
    assert all((run.loops, run.layers, run.context, run.lr) == (32, 1, "token", 1e-3) for run in found.values())
    assert (found["mlp-4"].zero_init, found["mlp-4"].interleave) == (True, "1:1")
    assert (found["gdn-2"].zero_init, found["gdn-2"].interleave) == (False, None)
    with raises("unknown-field", "set", "'rate=1'"):
        sudoku.parse(["rate=1"])
    for change, field, value in (("lr=abc", "lr", "'abc'"), ("width=1.5", "width", r"1\.5")):
        with raises("type", field, value):
            sudoku.runs("strict", 100, None, sudoku.parse([change]))


def test_a_looped_run_is_trained_and_judged(small, monkeypatch):
    for name, value in (("LOOPS", (4, 8)), ("HORIZONS", (0, 16)), ("AT_LOOPS", 8)):
        monkeypatch.setattr(sudoku, name, value)
    changes = dict(change=["loops=4", "loops_per_step=2", "interleave=2:1"], mode=["single"])
    out = small("looped-hard", "looped", steps=2, only=["mlp-0", "ttc-0"], **changes)
    kept = json.loads((out / "mlp-0" / "model" / "config.json").read_text())
    assert (kept["loops"], kept["recall"], kept["insert"], kept["interleave"]) == (4, True, "mlp", "2:1")
    own, loops = [(None, None)], [(None, 4), (None, 8)]
    for name, horizons in (("mlp-0", []), ("ttc-0", [(0, 8), (16, 8)])):
        found = json.loads((out / name / "metrics.json").read_text())["results"]
        assert [(each["horizon"], each["loops"]) for each in found] == own + loops + horizons
        assert {(each["data"], each["mode"]) for each in found} == {("boards", "single")}


def test_a_stopped_recipe_resumes(small):
    whole = small("best", "whole", steps=8)
    parts = small("best", "parts", steps=8, minutes=1e-9)
    assert not (parts / "ttc-0" / "metrics.json").exists()
    assert len((parts / "ttc-0" / "log.jsonl").read_text().splitlines()) == 1  # stopped after 4 steps
    small("best", "parts", steps=8)
    small("best", "parts", steps=8)  # finished runs are skipped
    one, two = ((folder / "ttc-0" / "model" / "model.safetensors").read_bytes() for folder in (whole, parts))
    assert one == two
    assert (whole / "ttc-0" / "log.jsonl").read_text() == (parts / "ttc-0" / "log.jsonl").read_text()


def test_a_recipe_that_was_killed_between_two_checkpoints_resumes(small, monkeypatch):
    """One run is then ahead of the others, and waits for them without a word in its log."""
    whole = small("augmented", "whole", steps=12, only=["transformer-0", "transformer-1"])
    save = Run.save

    def killed(run, step, tensors):
        if (step, run.folder.name) == (8, "transformer-1"):
            raise RuntimeError
        save(run, step, tensors)

    monkeypatch.setattr(sudoku, "SAVE_EVERY", 4)
    monkeypatch.setattr(Run, "save", killed)
    with pytest.raises(RuntimeError):
        small("augmented", "parts", steps=12, only=["transformer-0", "transformer-1"])
    monkeypatch.setattr(Run, "save", save)
    threads = record_first_steps(monkeypatch)
    parts = small("augmented", "parts", steps=12, only=["transformer-0", "transformer-1"])
    for run in ("transformer-0", "transformer-1"):
        logs = [(folder / run / "log.jsonl").read_text() for folder in (whole, parts)]
        assert logs[0] == logs[1]
    assert threads == {("transformer", 0): threading.main_thread(), ("transformer", 1): threading.main_thread()}


def record_first_steps(monkeypatch):
    """Note the thread of each trainer's first step: on a GPU the step records a graph, beside which nothing may run."""
    advance, found = Learner.advance, {}

    def watched(trainer):
        found.setdefault((trainer.objective.config.architecture, trainer.seed), threading.current_thread())
        advance(trainer)

    monkeypatch.setattr(Learner, "advance", watched)
    return found


def test_missing_names_are_errors(small, capsys):
    with pytest.raises(typer.Exit):
        small("augmented", "none", steps=2, only=["lstm"])
    assert told(capsys.readouterr().err, "unknown-name", "only", "lstm")
    for options, error in (
        (dict(device="abacus"), ("device", "device", "'abacus'")),
        (dict(test=[Path("x.csv")]), ("not-readable", "x.csv:")),
    ):
        with pytest.raises(typer.Exit):
            small("augmented", "none", steps=2, **options)
        assert told(capsys.readouterr().err, *error)
