"""The shipped model, and the demo that shows it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from tests.raising import raises
from ttcnet.cli import app, sudoku_watch
from ttcnet.models import TTCNetForCellClassification
from ttcnet.tasks import sudoku
from ttcnet.tasks.sudoku import demo, generate
from ttcnet.tasks.sudoku.decode import in_one_pass
from ttcnet.tasks.sudoku.evaluation import evaluate
from ttcnet.tasks.sudoku.metrics import Rate
from ttcnet.tasks.sudoku.samples import FILE
from ttcnet.tasks.sudoku.samples import samples as sudoku_samples
from ttcnet.tasks.sudoku.settings import SudokuTraining
from ttcnet.tasks.sudoku.shipped import FOLDER
from ttcnet.tasks.sudoku.step_by_step import Move, settling


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
    with raises("type", "puzzles", "one string"):
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


def test_the_card_of_the_shipped_model_has_the_measured_figures():
    results = Path(__file__).parents[3] / "experiments/sudoku/results/shipped"
    found = json.loads((results / "test.json").read_text())["results"]
    rates = {(each["mode"], each["loops"]): 100 * each["boards"]["rate"] for each in found}
    card = " ".join((FOLDER / "README.md").read_text().split())
    one, cells = rates["single", 32], rates["multi", 32]
    assert f"{one:.1f} % in one pass and {cells:.1f} % cell by cell with 32 loops" in card
    assert f"{rates['single', 64]:.1f} and {rates['multi', 64]:.1f} % with 64" in card
    last = json.loads((results / "log.jsonl").read_text().splitlines()[-1])
    assert f"{last['step']:,} steps" in card


def test_right_cells_are_green_and_wrong_ones_red():
    boards = generate(1, givens=(40, 40), seed=0)
    puzzle, solution = boards.puzzles[0], boards.solutions[0]
    first, second = np.flatnonzero(puzzle == 0)[:2]
    wrong = int(solution[second]) % 9 + 1
    moves = [Move(int(first), int(solution[first]), 0.9), Move(int(second), wrong, 0.4)]
    game = demo.Game(puzzle, solution, puzzle[None], None, moves, 1.0)
    text = demo._board(puzzle, solution, game.answer)
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


@pytest.fixture(scope="module")
def looped(tmp_path_factory):
    """A model of one block, applied eight times, with TTC in every other."""
    torch.manual_seed(0)
    config = SudokuTraining(layers=1, loops=8, interleave="2:1", width=32, heads=2).model()
    folder = tmp_path_factory.mktemp("looped")
    TTCNetForCellClassification(config).eval().save_pretrained(folder)
    return folder


def test_the_demo_command(tmp_path):
    picture = tmp_path / "folder" / "sudoku.png"
    options = ["--givens", "72", "--givens", "70", "--picture", str(picture), "--device", "cpu"]
    done = CliRunner().invoke(app, ["sudoku", "demo", *options])
    assert done.exit_code == 0, done.output
    assert "9 of 9 blanks right" in done.output
    assert "11 of 11 blanks right" in done.output
    assert "the horizon makes no difference" in done.output or "by horizon" in done.output
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_demo_of_a_looped_model(looped, tmp_path):
    """An untrained one: it is wrong, loop by loop and cell by cell; and it has loops and plans to compare."""
    picture = tmp_path / "sudoku.png"
    options = ["--model", str(looped), "--givens", "70", "--loops", "4", "--picture", str(picture), "--device", "cpu"]
    done = CliRunner().invoke(app, ["sudoku", "demo", *options])
    assert done.exit_code == 0, done.output
    assert "loop 4 of 4" in done.output
    assert "11 filled" in done.output
    assert "by loops" in done.output
    assert "horizon" in done.output
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_model_is_compared_at_settings_that_it_has(looped):
    net = TTCNetForCellClassification.from_pretrained(looped)
    assert demo.settings(net) == {
        "loops": [(1, 4), (2, 4), (4, 4), (8, 4), (16, 4), (32, 4)],
        "horizon": [(8, 0), (8, 1), (8, 4), (8, 8), (8, 16)],
    }
    assert [pair[0] for pair in demo.settings(net, 4)["loops"]] == [1, 2, 4, 8, 16]
    flat = TTCNetForCellClassification(SudokuTraining(architecture="transformer", layers=2, width=32, heads=2).model())
    assert demo.settings(flat) == {"": [(1, 4)]}
    assert list(demo.settings(TTCNetForCellClassification(SudokuTraining(layers=2, width=32, heads=2).model()))) == [
        "horizon"
    ]


def test_a_table_that_would_show_nothing_is_a_sentence():
    same, other = [Rate(0.5, 0.4, 0.6, 1, 2)] * 3, [Rate(0.75, 0.4, 0.8, 3, 4)] * 3
    said = demo.table("horizon", [(8, 0), (8, 4)], {(8, 0): same, (8, 4): same})
    assert (
        said == "On the boards of the package the horizon makes no difference to this model: 50.0 % / 50.0 % / 50.0 %."
    )
    shown = demo.table("horizon", [(8, 0), (8, 4)], {(8, 0): same, (8, 4): other})
    assert [list(column.cells) for column in shown.columns][:2] == [["no plans", "4"], ["50.0 %", "75.0 %"]]


def test_the_boards_of_the_package():
    found = sudoku_samples()
    assert {each.level for each in found} == {"easy", "hard", "hardest"}
    assert FILE.stat().st_size < 10_000
    for each in found:
        assert each.guesses == sudoku.rate(each.puzzle)
    hard = demo.level("hard")
    assert sum(each.level == "hard" for each in found) == len(hard) == len(np.unique(hard.solutions, axis=0))


def test_settling_ends_where_one_pass_does(looped):
    net = TTCNetForCellClassification.from_pretrained(looped).eval()
    boards = demo.level("hard")[:1]
    puzzle = boards.puzzles[0]
    digits, sure = settling(net, puzzle, 2, 16)
    assert digits.shape == sure.shape == (16, 81)
    assert (digits[:, puzzle > 0] == puzzle[puzzle > 0]).all()
    for loops in (1, 8, 16):
        wanted = in_one_pass(net, torch.from_numpy(boards.puzzles).long(), 2, loops)[0]
        assert (digits[loops - 1] == wanted.numpy()).all(), "after loop k is what k loops say"


def test_everything_is_compiled_before_a_puzzle_is_timed(model, tmp_path, monkeypatch):
    read = []
    model.register_forward_hook(lambda *_: read.append(1))
    monkeypatch.setattr(sudoku_watch, "load", lambda *_: model)

    def watch(*_):
        assert read
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "watch", watch)
    done = CliRunner().invoke(app, ["sudoku", "demo", "--givens", "72", "--picture", str(tmp_path / "x.png")])
    assert done.exit_code == 130, done.output
