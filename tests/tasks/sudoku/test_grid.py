"""Boards from and to text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.raising import raises
from tests.tasks.sudoku.boards import PUZZLE
from ttcnet.tasks import sudoku
from ttcnet.tasks.sudoku.grid import PEERS, UNITS, board

boards = st.lists(st.integers(0, 9), min_size=81, max_size=81).map(lambda digits: np.array(digits, np.uint8))


def test_units_and_peers():
    assert UNITS.shape == (27, 9)
    assert PEERS.shape == (81, 20)
    assert (np.bincount(UNITS.ravel()) == 3).all()
    assert UNITS[0].tolist() == list(range(9))
    assert UNITS[9].tolist() == list(range(0, 81, 9))
    assert UNITS[22].tolist() == [30, 31, 32, 39, 40, 41, 48, 49, 50]
    assert all(cell not in PEERS[cell] and cell in PEERS[peer] for cell in range(81) for peer in PEERS[cell])


@given(boards, st.sampled_from("0._*"))
def test_text_and_back(cells, blank):
    assert (sudoku.parse(sudoku.format(cells, blank)) == cells).all()
    assert (sudoku.parse(sudoku.draw(cells, blank)) == cells).all()
    assert (board(cells.reshape(9, 9).astype(np.int64)) == cells).all()


def test_drawings_of_others_are_read():
    text = "┌───────┐\n" + "\n".join(f"│ {PUZZLE[k : k + 9]} │" for k in range(0, 81, 9)) + "\n+---+\n"
    assert sudoku.format(sudoku.parse(text), ".") == PUZZLE


def test_draw():
    lines = sudoku.draw(PUZZLE).splitlines()
    assert len(lines) == 11
    assert lines[:4] == [
        "5 3 . | . 7 . | . . .",
        "6 . . | 1 9 5 | . . .",
        ". 9 8 | . . . | . 6 .",
        "------+-------+------",
    ]
    dressed = sudoku.draw(PUZZLE, style=lambda cell, text: f"<{text}>" if cell == 1 else text)
    assert dressed.startswith("5 <3> . |")


@pytest.mark.parametrize(
    ("make", "code", "field", "value"),
    [
        (lambda: sudoku.parse(PUZZLE[1:]), "bad-board", "puzzle", "80"),
        (lambda: sudoku.parse("53x" + PUZZLE), "bad-board", "puzzle", "'x' at position 3"),
        (lambda: sudoku.parse("²" + PUZZLE[1:]), "bad-board", "puzzle", "'²' at position 1"),
        (lambda: sudoku.parse(5), "type", "text", "int"),
        (lambda: sudoku.format(np.zeros(80, int)), "shape", "board", r"\(80,\)"),
        (lambda: sudoku.format(np.full(81, 10)), "bad-board", "board", "10 to 10"),
        (lambda: sudoku.count(np.zeros(81)), "dtype", "puzzle", "float64"),
    ],
)
def test_bad_boards(make, code, field, value):
    with raises(code, field, value):
        make()
