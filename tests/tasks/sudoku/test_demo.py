"""The shipped model, and the demo that shows it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from ttcnet.cli import app
from ttcnet.tasks import sudoku
from ttcnet.tasks.sudoku import demo, generate, watching
from ttcnet.tasks.sudoku.evaluation import evaluate
from ttcnet.tasks.sudoku.session import Move
from ttcnet.tasks.sudoku.shipped import FOLDER


@pytest.fixture(scope="module")
def model():
    return sudoku.pretrained()


def test_the_shipped_model_solves_boards(model):
    boards = generate(30, givens=(30, 34), seed=11)
    assert evaluate(model, boards, "single").scores.boards.right >= 24
    easy = generate(2, givens=(50, 50), seed=12)
    puzzles, answers = ([sudoku.format(board) for board in of] for of in (easy.puzzles, easy.solutions))
    assert sudoku.solve(model, puzzles) == answers
    assert sudoku.solve(model, easy.puzzles) == answers
    with pytest.raises(TypeError, match=r"puzzles must be a list of puzzles; got one string."):
        sudoku.solve(model, puzzles[0])


def test_the_shipped_model_is_small_and_leaves_random_numbers_alone():
    assert (FOLDER / "model.safetensors").stat().st_size < 15e6
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model = sudoku.pretrained()
    assert torch.equal(torch.rand(3), expected)
    assert not model.training
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert f"{parameters:,} parameters" in (FOLDER / "README.md").read_text()


def test_the_shipped_model_is_the_run_that_its_card_names():
    run = Path(__file__).parents[3] / "results/sudoku/best/ttc-0"
    config, metrics = (json.loads((run / f"{name}.json").read_text()) for name in ("config", "metrics"))
    card = " ".join((FOLDER / "README.md").read_text().split())
    assert f"{config['steps']:,} steps of {config['batch']} boards" in card
    assert config["augmentation"] == "relabel+reveal"
    single, multi = (100 * each["boards"]["rate"] for each in metrics["results"])
    assert f"{single:.1f} % of boards in one pass, {multi:.1f} % cell by cell" in card


def test_right_cells_are_green_and_wrong_ones_red():
    boards = generate(1, givens=(40, 40), seed=0)
    puzzle, solution = boards.puzzles[0], boards.solutions[0]
    first, second = np.flatnonzero(puzzle == 0)[:2]
    wrong = int(solution[second]) % 9 + 1
    moves = [Move(int(first), int(solution[first]), 0.9), Move(int(second), wrong, 0.4)]
    game = demo.Game(puzzle, solution, moves, 1.0)
    text = demo._board(game)
    styles = [(text.plain[span.start : span.end], str(span.style)) for span in text.spans]
    assert (str(solution[first]), "green") in styles
    assert (str(wrong), "red") in styles
    assert sum(style == "bold" for _, style in styles) == 40
    assert sum(style == "dim" for _, style in styles) == 39
    assert game.right == 1
    assert "1 right, 1 wrong" in demo._score(game).plain


def test_a_full_board_is_a_game_without_moves(model):
    boards = generate(1, givens=(40, 40), seed=0)
    full = boards.solutions[0]
    assert demo.watch(model, full, full, Console(quiet=True)).moves == []


def test_the_demo_command(tmp_path):
    picture = tmp_path / "folder" / "sudoku.png"
    options = ["--givens", "72", "--givens", "70", "--boards", "3", "--picture", str(picture), "--device", "cpu"]
    done = CliRunner().invoke(app, ["sudoku", "demo", *options])
    assert done.exit_code == 0, done.output
    assert "9 filled: 9 right, 0 wrong" in done.output
    assert "11 filled: 11 right, 0 wrong" in done.output
    assert "3 boards in a single pass" in done.output
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_is_compiled_is_compiled_before_a_puzzle_is_timed(model, tmp_path, monkeypatch):
    read = []
    model.register_forward_hook(lambda *_: read.append(1))
    monkeypatch.setattr(watching, "load", lambda *_: model)

    def watch(*_):
        assert read
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "watch", watch)
    done = CliRunner().invoke(app, ["sudoku", "demo", "--givens", "72", "--picture", str(tmp_path / "x.png")])
    assert done.exit_code == 130, done.output
