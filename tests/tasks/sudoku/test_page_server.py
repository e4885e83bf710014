"""A model at work: moves, verdicts, values of plans, the page and the commands around them."""

import json
import socket
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import ttcnet.tasks.sudoku.page_answers
import ttcnet.tasks.sudoku.page_server
from tests.raising import raises, told
from ttcnet.cli import app
from ttcnet.models import TTCNetForCellClassification
from ttcnet.nn import TTCLayer
from ttcnet.tasks.sudoku import generate, parse
from ttcnet.tasks.sudoku.decode import probabilities
from ttcnet.tasks.sudoku.page_answers import answer
from ttcnet.tasks.sudoku.page_server import serve
from ttcnet.tasks.sudoku.settings import SudokuTraining
from ttcnet.tasks.sudoku.solver import verdict
from ttcnet.tasks.sudoku.step_by_step import Move, moves, plan_values, settling

from .browser import BROWSER, browser

PUZZLE = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return TTCNetForCellClassification(SudokuTraining(layers=2, width=32, heads=2).model()).eval()


@pytest.fixture(scope="module")
def looped():
    """A looped model without plans."""
    torch.manual_seed(0)
    config = SudokuTraining(architecture="transformer", layers=2, loops=6, width=32, heads=2).model()
    return TTCNetForCellClassification(config).eval()


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
    assert "row 1, column 1" in verdict(board)
    assert "row 1, column 3" in verdict(board)
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
    assert found["solution"].startswith("534678912")
    bad = ("puzzle=123", f"puzzle={PUZZLE}&horizon=99", f"puzzle={PUZZLE}&horizon=x", f"puzzle={PUZZLE}&loops=0")
    for path in [f"{name}?{query}" for name in ("/solve", "/settle") for query in (*bad, f"puzzle={PUZZLE}&loops=257")]:
        with pytest.raises(urllib.error.HTTPError) as error:
            get(address, path)
        assert error.value.code == 400
        assert "must" in json.loads(error.value.read())["error"]
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(address, "/../secret")


def test_facts_about_a_model_for_the_page(model, looped):
    told = answer("/about", model, {})
    assert (told["stage"], told["loops"], told["horizon"]) == ("block", 1, 4)
    assert {board["level"] for board in told["boards"]} == {"easy", "hard", "hardest"}
    told = answer("/about", looped, {})
    assert (told["stage"], told["loops"], told["most"], told["horizon"]) == ("loop", 6, 24, None)


def test_a_board_settles(model, looped):
    board = parse(PUZZLE)
    found = answer("/settle", model, {"puzzle": [PUZZLE], "horizon": ["2"]})
    assert len(found["stages"]) == len(found["right"]) == len(found["without"]) == 2  # blocks
    assert found["horizons"][-1] == 32
    assert len(found["values"][0]) == len(found["horizons"])
    found = answer("/settle", looped, {"puzzle": [PUZZLE], "loops": ["9"]})
    assert len(found["stages"]) == 9
    assert (found["without"], found["values"]) == (None, []), "there are no plans"
    digits, sure = settling(looped, board, None, 9)
    for stage, digit, certain, right in zip(found["stages"], digits, sure, found["right"], strict=True):
        assert stage["digits"] == "".join(map(str, digit))
        assert stage["sure"] == [round(100 * float(each)) for each in certain]
        assert right == sum(a == b for a, b in zip(stage["digits"], found["solution"], strict=True)) - 30
    several = answer("/settle", looped, {"puzzle": ["1" + "." * 80]})
    assert "more than one" in several["warning"]
    assert several["right"] is None
    assert answer("/settle", looped, {"puzzle": ["11" + "." * 79]})["stages"] == []
    full = "".join(map(str, generate(1, seed=0).solutions[0]))
    assert answer("/settle", looped, {"puzzle": [full]})["stages"] == []


@pytest.mark.parametrize("target", ["http://[::1/solve", f"/solve?puzzle={PUZZLE}&horizon=" + "9" * 5000, "x"])
def test_malformed_requests_get_an_answer(address, target, capfd):
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=20) as client:
        host = address.removeprefix("http://")
        client.sendall(f"GET {target} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        said = client.makefile("rb").read()
    assert said.startswith((b"HTTP/1.0 400", b"HTTP/1.0 404"))
    assert b"int_max_str_digits" not in said
    assert capfd.readouterr().err == ""


def test_a_page_that_leaves_is_no_fault(model, monkeypatch, capfd):
    asked, left = threading.Event(), threading.Event()

    def slow(*_):
        asked.set()
        assert left.wait(20)
        return {"moves": ["much"] * 10**6}

    monkeypatch.setattr(ttcnet.tasks.sudoku.page_server, "answer", slow)
    server = serve(model, port=0)
    server.daemon_threads = False  # server_close waits for the answer
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with socket.create_connection(("127.0.0.1", server.server_port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # hang up at once
        host = f"Host: localhost:{server.server_port}"
        client.sendall(f"GET /solve?puzzle={PUZZLE} HTTP/1.0\r\n{host}\r\n\r\n".encode())
        assert asked.wait(20)
    left.set()
    server.shutdown()
    server.server_close()
    thread.join()
    assert "Traceback" not in capfd.readouterr().err


def ask(address, *lines):
    """The first line of the answer to a request with these lines."""
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=20) as client:
        client.sendall("\r\n".join([*lines, "", ""]).encode())
        return client.makefile("rb").readline().decode().strip()


def test_only_requests_for_this_machine_are_answered(address):
    """A page of evil.example that has a browser ask here, under its own name, learns nothing."""
    port = address.rpartition(":")[2]
    for name in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]"):
        assert ask(address, "GET / HTTP/1.1", f"Host: {name}:{port}") == "HTTP/1.0 200 OK"
    others = [f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{int(port) - 1}", "", f"localhost.evil.example:{port}"]
    for host in [f"Host: {name}" for name in others] + ["X: y", f"Host: localhost:{port}\r\nHost: evil.example"]:
        for path in ("/", f"/solve?puzzle={PUZZLE}"):
            assert ask(address, f"GET {path} HTTP/1.1", host) == "HTTP/1.0 403 Forbidden"
    assert " 404 " in ask(address, "GET http://evil.example/ HTTP/1.1", f"Host: localhost:{port}")
    assert " 501 " in ask(address, "POST / HTTP/1.1", f"Host: localhost:{port}", "Content-Length: 1000000000000")


@pytest.fixture
def impatient(model):
    server = serve(model, port=0, patience=0.5)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield ("127.0.0.1", server.server_port)
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("letters", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
def test_who_says_nothing_is_dropped(impatient, letters, capfd):
    with socket.create_connection(impatient, timeout=20) as client:
        client.sendall(letters)
        begin = time.monotonic()
        assert client.recv(100) == b""
    assert time.monotonic() - begin < 10
    assert capfd.readouterr().err == ""


def test_who_says_a_letter_now_and_then_is_dropped(impatient, capfd):
    with socket.create_connection(impatient, timeout=20) as client:
        begin = time.monotonic()
        with suppress(OSError):
            for letter in b"GET / HTTP/1.1\r\nX: " + b"y" * 200:
                client.sendall(bytes([letter]))
                time.sleep(0.1)
    assert time.monotonic() - begin < 10
    assert capfd.readouterr().err == ""


def test_abandoned_requests_are_not_computed(model, monkeypatch):
    computed, begun = [], threading.Event()

    def endless(*_):
        while True:
            computed.append(time.monotonic())
            begun.set()
            time.sleep(0.01)
            yield Move(0, 1, 1.0)

    monkeypatch.setattr(ttcnet.tasks.sudoku.page_answers, "moves", endless)
    server = serve(model, port=0)
    server.daemon_threads = False  # server_close waits for the answer
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    host = f"Host: localhost:{server.server_port}"
    with socket.create_connection(("127.0.0.1", server.server_port)) as client:
        client.sendall(f"GET /solve?puzzle={PUZZLE} HTTP/1.0\r\n{host}\r\n\r\n".encode())
        assert begun.wait(20)
    server.shutdown()
    server.server_close()
    thread.join()
    assert computed


def test_a_port_that_is_taken(model):
    said = raises("port", "port", r"\d+: ")
    with socket.create_server(("127.0.0.1", 0)) as other, said:
        serve(model, other.getsockname()[1])


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
    assert "olved" in page


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_a_person_at_the_page(address, tmp_path, monkeypatch):
    """Sees a board settle at once, drags its stages, chooses another, types a puzzle, drags the horizon, makes a
    mistake, pastes a puzzle."""
    asked = []

    def noted(path, model, question, wanted):
        if path != "/about":
            asked.append((path, question["puzzle"][0], question["horizon"][0]))
        return answer(path, model, question, wanted)

    monkeypatch.setattr(ttcnet.tasks.sudoku.page_server, "answer", noted)
    text, given = "message.textContent", "cells.filter(cell => cell.className == 'given').length"
    with browser(tmp_path) as page:
        page.open(address)
        page.wait(f"/After 2 blocks/.test({text})")
        assert page.value("document.querySelectorAll('#curve polyline').length") == 3
        assert page.value("document.querySelectorAll('#values polyline').length") == 1  # of one TTC layer
        assert page.value("$('looped').hidden && !$('planned').hidden"), "there are no loops, but plans"
        assert page.value("document.documentElement.scrollWidth <= innerWidth")
        page.value("stage.focus()")
        page.press("ArrowLeft", 37)
        page.wait(f"$('at').value == '1 of 2' && /After 1 blocks/.test({text})")
        page.click("#levels p:nth-child(3) button")
        page.wait(f"/After 2 blocks/.test({text}) && {given} < 30")
        assert page.value("document.querySelector('button[aria-pressed=true]').value == puzzle()")
        assert "solution" not in page.value(text)
        page.click("#empty")
        page.click("#board input")
        page.type("5")
        page.press("ArrowRight", 39)
        page.type("x3")  # only digits are accepted
        asked.clear()
        page.click("#solve")
        page.wait("document.querySelectorAll('#board .filled, #board .wrong').length > 20")
        page.wait(f"/contradict/.test({text})")
        assert asked == [("/solve", "53" + "0" * 79, "4")]
        assert page.value("cells.every(cell => /^[1-9]$/.test(cell.value))")
        assert "more than one solution" in page.value(text)
        page.value("horizon.focus()")
        page.press("ArrowRight", 39)
        page.wait(f"steps.value == '5 steps ahead' && /After 2 blocks/.test({text})")
        assert asked[1:] == [("/settle", "53" + "0" * 79, "5")]
        page.click("#board input:nth-child(3)")
        page.type("5")
        page.click("#solve")
        page.wait(f"/no solution: the digits at row 1, column 1; row 1, column 3/.test({text})")
        page.click("#board input")
        page.type(PUZZLE[:80])
        assert "81 digits, and 0 . _ or * for blanks; this has 80" in page.value(text)
        page.type(" ".join(PUZZLE.replace("0", ".")))
        assert page.value("cells.map(cell => cell.value || '0').join('')") == PUZZLE


def test_commands(model, tmp_path):
    model.save_pretrained(tmp_path)
    options = ["--model", str(tmp_path), "--device", "cpu"]
    run = CliRunner().invoke(app, ["sudoku", "solve", PUZZLE, *options])
    assert run.exit_code == 1
    assert "Not solved" in run.output, "an untrained model cannot"
    assert "Loading the model ..." in run.stderr
    assert run.output.count("|") >= 18
    run = CliRunner().invoke(app, ["sudoku", "solve", "55" + PUZZLE[2:], *options])
    assert "no solution" in run.output
    assert run.exit_code == 1
    run = CliRunner().invoke(app, ["sudoku", "solve", "12345", *options])
    assert told(run.output, "bad-board", "puzzle", "5")
    (full,) = generate(1, seed=0).solutions
    run = CliRunner().invoke(app, ["sudoku", "solve", "".join(map(str, full)), *options])
    assert "Solved." in run.output


def test_of_many_solutions_any_is_right(model, tmp_path, monkeypatch):
    """A solution is right even if the exact solver does not find it first."""
    model.save_pretrained(tmp_path)
    (solution,) = generate(1, seed=0).solutions
    two = "1" + "." * 80
    other = (solution.astype(int) - solution[0]) % 9 + 1  # relabelled, to begin with 1
    found = [Move(cell, int(digit), 1.0) for cell, digit in enumerate(other) if cell]
    monkeypatch.setattr(ttcnet.tasks.sudoku.step_by_step, "moves", lambda *_: found)
    run = CliRunner().invoke(app, ["sudoku", "solve", two, "--model", str(tmp_path), "--device", "cpu"], color=True)
    assert run.exit_code == 0, run.output
    assert "more than one solution" in run.output
    assert "Solved." in run.output
    assert "\x1b[31m" not in run.output, "no cell is red"
    found[0] = replace(found[0], digit=1)
    run = CliRunner().invoke(app, ["sudoku", "solve", two, "--model", str(tmp_path), "--device", "cpu"], color=True)
    assert run.exit_code == 1
    assert "\x1b[31m" in run.output


def test_one_board_is_solved_on_one_thread(model):
    before = torch.get_num_threads()
    threads = []
    hook = model.register_forward_hook(lambda *_: threads.append(torch.get_num_threads()))
    list(moves(model, parse(PUZZLE)))
    assert set(threads) == {1}
    threads.clear()
    probabilities(model, torch.zeros(9, 81, dtype=torch.long))
    hook.remove()
    assert threads == [before] == [torch.get_num_threads()]
