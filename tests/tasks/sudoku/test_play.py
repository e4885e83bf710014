"""A model at work: moves, verdicts, values of plans, the page and the commands around them."""

import json
import shutil
import subprocess
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from ttcnet.cli import app
from ttcnet.models import TTCNetForCellClassification
from ttcnet.nn import TTCLayer
from ttcnet.tasks.sudoku import generate, parse
from ttcnet.tasks.sudoku.server import serve
from ttcnet.tasks.sudoku.session import moves, plan_values, verdict
from ttcnet.tasks.sudoku.training import TrainConfig

PUZZLE = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return TTCNetForCellClassification(TrainConfig(layers=2, width=32, heads=2).model()).eval()


@pytest.fixture
def address(model):
    server = serve(model, port=0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def get(address, path):
    with urllib.request.urlopen(address + path) as response:
        return response.read().decode()


def test_moves_fill_the_board(model):
    board = parse(PUZZLE)
    found = list(moves(model, board, horizon=2))
    assert sorted(move.cell for move in found) == np.flatnonzero(board == 0).tolist()
    assert all(1 <= move.digit <= 9 and 0 < move.confidence <= 1 for move in found)


def test_verdicts():
    board = parse(PUZZLE)
    assert verdict(board) == ""
    assert "more than one solution" in verdict(parse("1" + "." * 80))
    board[2] = 5  # a second 5 in the first row
    assert "row 1 column 1" in verdict(board)
    assert "row 1 column 3" in verdict(board)
    board = parse(PUZZLE)
    board[2] = 1  # no digit is twice anywhere, and yet
    assert verdict(board) == "This puzzle has no solution."


def test_values_of_plans(model):
    board = parse(PUZZLE)
    values = plan_values(model, board, range(1, 6))
    assert values.shape == (1, 5)
    assert (values <= 0).all()
    layer = next(module for module in model.modules() if isinstance(module, TTCLayer))
    caught = []
    layer.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    with torch.no_grad():
        model(torch.from_numpy(board.astype(np.int64))[None])
        _, plan = layer(caught[0][0][torch.from_numpy(board == 0)], 3, return_plan=True)
    assert values[0, 2] == pytest.approx(-plan.cost.mean().item(), rel=1e-5)
    assert plan_values(model, generate(1, seed=0).solutions[0], range(1, 3)).size == 0


def test_the_server_answers(address):
    assert "<title>Sudoku by planning</title>" in get(address, "/")
    found = json.loads(get(address, f"/solve?puzzle={PUZZLE}&horizon=2"))
    assert len(found["moves"]) == 51
    assert len(found["values"][0]) == 32
    for path in ("/solve?puzzle=123", f"/solve?puzzle={PUZZLE}&horizon=99", f"/solve?puzzle={PUZZLE}&horizon=x"):
        with pytest.raises(urllib.error.HTTPError) as error:
            get(address, path)
        assert error.value.code == 400
        assert "must" in json.loads(error.value.read())["error"]
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(address, "/../secret")


def test_the_server_listens_on_localhost_alone(model):
    server = serve(model, port=0)
    assert server.server_address[0] == "127.0.0.1"
    server.server_close()


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_in_a_browser(address, tmp_path):
    """The page loads, asks, and fills in every cell."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    command += ["--virtual-time-budget=20000", "--dump-dom", f"{address}/?solve&puzzle={PUZZLE}"]
    page = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert page.count('class="given"') == 30
    assert page.count('class="filled') + page.count('class="wrong') == 51
    assert "<polyline" in page
    assert "contradict" in page


def test_commands(model, tmp_path):
    model.save_pretrained(tmp_path)
    options = ["--model", str(tmp_path), "--device", "cpu"]
    run = CliRunner().invoke(app, ["sudoku", "solve", PUZZLE, *options])
    assert run.exit_code == 1
    assert "Not solved" in run.output, "an untrained model cannot"
    assert run.output.count("|") >= 18
    run = CliRunner().invoke(app, ["sudoku", "solve", "55" + PUZZLE[2:], *options])
    assert "no solution" in run.output
    assert run.exit_code == 1
    run = CliRunner().invoke(app, ["sudoku", "solve", "12345", *options])
    assert "puzzle must have 81 cells; got 5" in run.output
    (full,) = generate(1, seed=0).solutions
    run = CliRunner().invoke(app, ["sudoku", "solve", "".join(map(str, full)), *options])
    assert "Solved." in run.output
