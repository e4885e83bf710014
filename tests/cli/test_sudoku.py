"""Input that the commands cannot use is an error in one sentence, before any work."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from tests.raising import raises, told
from ttcnet.cli import app
from ttcnet.models import TTCNetForCellClassification
from ttcnet.tasks.sudoku import Boards, generate
from ttcnet.tasks.sudoku.evaluation import evaluate
from ttcnet.tasks.sudoku.settings import SudokuTraining


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, and boards."""
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("sudoku")
    TTCNetForCellClassification(SudokuTraining(layers=2, width=32, heads=2).model()).save_pretrained(
        place / "run/model"
    )
    generate(4, givens=70, seed=1).write(place / "boards.csv")
    return place


def complaint(*arguments):
    run = CliRunner().invoke(app, ["sudoku", *map(str, arguments)])
    assert isinstance(run.exception, SystemExit), run.exception
    assert run.exit_code == 1
    return run.stderr.replace("Loading the model ...\n", "")


@pytest.mark.parametrize("command", [("eval", "--data"), ("train", "--out", "x", "--data"), ("probe", "--train")])
def test_files_that_cannot_be_read(folder, command):
    other = ["--test", folder / "boards.csv"] if command[0] == "probe" else []
    causes = (("none.csv", "No such file or directory", "not-readable"), (".", "Is a directory", "not-readable"))
    for name, why, code in causes:
        said = complaint(*command, folder / name, *other)
        assert told(said, code, f"{folder / name}:", why)
        assert said.count("\n") == 1


def test_folders_without_a_model(folder, tmp_path):
    options = ["--data", folder / "boards.csv"]
    run = folder / "run"
    assert told(complaint("eval", run, *options), "no-model", "model", f"{run}, .* {run / 'model'}")
    assert told(complaint("eval", tmp_path, *options), "not-found", "model", "config.json")
    broken = shutil.copytree(run / "model", tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"cut off" * 9)
    assert told(complaint("eval", broken, *options), "no-model", "model", "broken")
    other = shutil.copytree(run / "model", tmp_path / "other")
    (other / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    assert told(complaint("solve", "." * 81, "--model", other), "no-model", "model", "other")


@pytest.mark.parametrize("command", [("eval", "--data"), ("train", "--out", "x", "--data")])
def test_transformers_missing(folder, command, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    said = complaint(*command, folder / "boards.csv").splitlines()[-1]
    assert told(said, "package", "ttcnet sudoku", r"'ttcnet\[models\]'")
    assert "transformers" in said


def test_outputs_are_checked_before_any_work(folder, tmp_path):
    options = ["--data", folder / "boards.csv"]
    said = complaint("eval", folder / "run/model", *options, "--out", tmp_path)
    assert told(said, "not-writable", "out")
    assert told(complaint("demo", "--picture", tmp_path / "x.bmp"), "format", "picture", "x.bmp")
    for device in ("abacus", "cuda:99", "cpu:x", ""):
        assert told(complaint("play", "--device", device), "device", "device", f"'{device}'")


def test_full_boards_are_refused_before_they_are_read_by_a_model():
    boards = generate(2, seed=0)

    def model(*_, **__):
        raise AssertionError("too late")

    model.device = torch.device("cpu")
    with raises("bad-board", "puzzles", "at index 0"):
        evaluate(model, Boards(boards.solutions, boards.solutions))


def labels(run):
    return [line.partition(":")[0] for line in run.stdout.splitlines()]


def test_results_go_to_stdout_and_the_rest_to_stderr(folder):
    run = CliRunner().invoke(app, ["sudoku", "eval", str(folder / "run/model"), "--data", str(folder / "boards.csv")])
    assert run.exit_code == 0, run.output
    assert [line.partition(":")[0] for line in run.stdout.splitlines()] == [
        "one pass, horizon 4",
        "cell by cell, horizon 4",
    ]
    assert "Loading the model ..." in run.stderr


@pytest.mark.parametrize("given", [["0,3"], ["0", "3"]])
def test_several_horizons(folder, tmp_path, given):
    options = [word for horizon in given for word in ("--horizon", horizon)]
    call = ["eval", str(folder / "run/model"), "--data", str(folder / "boards.csv"), "--mode", "single", *options]
    run = CliRunner().invoke(app, ["sudoku", *call, "--out", str(tmp_path / "out.json")])
    assert [line.partition(":")[0] for line in run.stdout.splitlines()] == [
        "one pass, horizon 0",
        "one pass, horizon 3",
    ]
    found = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [(each["mode"], each["horizon"]) for each in found] == [("single", 0), ("single", 3)]


@pytest.mark.parametrize("by", ["givens", "guesses"])
def test_accuracy_by_givens_and_by_guesses(folder, tmp_path, by):
    generate(2, guesses=(4, 9), seed=1).write(tmp_path / "boards.csv")
    call = ["eval", str(folder / "run/model"), "--data", str(tmp_path / "boards.csv"), "--mode", "single", "--by", by]
    run = CliRunner().invoke(app, ["sudoku", *call, "--out", str(tmp_path / "out.json")])
    assert run.exit_code == 0, run.output
    lines = [line.split()[:2] for line in run.stdout.splitlines()]
    assert lines[1] == [by, "number"]
    assert (["4-9", "2"] in lines) == (by == "guesses")
    assert lines[-1] == ["all", "2"]
    (found,) = json.loads((tmp_path / "out.json").read_text())["results"]
    bands = [(band["guesses"], band["boards"]["total"]) for band in found.get("by_guesses", [])]
    assert bands == ([("4-9", 2)] if by == "guesses" else [])


@pytest.mark.slow
def test_a_model_without_ttc_layers_has_no_horizon(folder, tmp_path):
    config = SudokuTraining(architecture="transformer", layers=2, width=32, heads=2).model()
    TTCNetForCellClassification(config).save_pretrained(tmp_path)
    options = [tmp_path, "--data", folder / "boards.csv", "--device", "cpu"]
    assert told(complaint("eval", *options, "--horizon", "0,4"), "no-layers", "horizon")
    run = CliRunner().invoke(app, ["sudoku", "eval", *map(str, options)])
    assert labels(run) == ["one pass", "cell by cell"]


def test_compiling_is_announced_and_loading_is_not(tmp_path):
    code = "from ttcnet.tasks import sudoku; print(sudoku.count('.' * 81))"
    for expected in (True, False):
        call = [sys.executable, "-c", code]
        done = subprocess.run(call, env={"NUMBA_CACHE_DIR": str(tmp_path)}, check=True, capture_output=True, text=True)
        assert done.stdout == "2\n"
        assert ("compiling the Sudoku solver" in done.stderr) == expected


def test_train_and_eval(tmp_path):
    generate(40, givens=(30, 34), seed=0).write(tmp_path / "boards.csv")
    sizes = ["--steps", "3", "--layers", "1", "--width", "32", "--heads", "2", "--ttc-heads", "3", "--batch", "2"]
    options = ["--data", str(tmp_path / "boards.csv"), "--device", "cpu"]
    run = CliRunner().invoke(app, ["sudoku", "train", *options, *sizes, "--out", str(tmp_path / "run")])
    assert run.exit_code == 0, run.output
    assert json.loads((tmp_path / "run" / "model" / "config.json").read_text())["ttc_heads"] == 3
    model, out = str(tmp_path / "run" / "model"), str(tmp_path / "scores.json")
    limits = ["--limit", "2", "--horizon", "0", "--horizon", "2", "--out", out]
    run = CliRunner().invoke(app, ["sudoku", "eval", model, *options, *limits])
    assert run.exit_code == 0, run.output
    assert run.output.count("boards") == 4
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert [(result["mode"], result["horizon"]) for result in scores["results"]] == [
        ("single", 0), ("multi", 0), ("single", 2), ("multi", 2),
    ]  # fmt: skip
    ways = ["--limit", "2", "--mode", "single", "--horizon", "0,2", "--loops", "1,3", "--out", out]
    run = CliRunner().invoke(app, ["sudoku", "eval", model, *options, *ways])
    assert run.exit_code == 0, run.output
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert [(result["loops"], result["horizon"]) for result in scores["results"]] == [(1, 0), (1, 2), (3, 0), (3, 2)]
    assert "one pass, loops 3, horizon 2: boards" in run.output
    run = CliRunner().invoke(app, ["sudoku", "eval", model, *options, "--loops", "0"])
    assert told(run.output, "too-small", "loops", "0")
    run = CliRunner().invoke(app, ["sudoku", "train", *options, "--architecture", "lstm", "--out", str(tmp_path / "x")])
    assert run.exit_code == 1
    assert told(run.output, "unknown-name", "architecture", "'lstm'")
