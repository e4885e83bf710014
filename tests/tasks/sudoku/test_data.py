"""Files of boards: what is read is what was written, and what is wrong is named with file and line."""

import gzip
import re

import numpy as np
import pytest

from tests.tasks.sudoku.boards import PUZZLE, SOLUTION, made, shared, valid
from ttcnet.tasks import sudoku
from ttcnet.tasks.sudoku import Boards

GOOD = f"{PUZZLE},{SOLUTION}"


def same(one, other):
    return np.array_equal(one.puzzles, other.puzzles) and np.array_equal(one.solutions, other.solutions)


def swap(text, place, character):
    return text[:place] + character + text[place + 1 :]


@pytest.mark.parametrize("name", ["boards.csv", "boards.csv.gz"])
def test_write_and_read(tmp_path, name):
    boards, path = made(), tmp_path / name
    boards.write(path)
    assert same(sudoku.read(path), boards)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    first = path.read_bytes()
    boards.write(path)
    assert path.read_bytes() == first
    text = (gzip.decompress(first) if name.endswith("gz") else first).decode()
    puzzle, solution = boards[0]
    assert text.startswith(f"puzzle,solution\n{sudoku.format(puzzle)},{sudoku.format(solution)}\n")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "boards.csv"
    made()[:3].write(path)
    monkeypatch.setattr("os.replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made()[:5].write(path)
    assert len(sudoku.read(path)) == 3
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"{GOOD}\n{GOOD}\n",
        f"{GOOD}\n{GOOD}",
        f"puzzle,solution\n{GOOD}\n{GOOD}\n\n\n",
        f"\ufeffquizzes,solutions\r\n{GOOD}\r\n{GOOD}\r\n",
        f'"puzzle","solution"\n{GOOD}\r\n{GOOD}\n'.replace(".", "0"),
    ],
)
def test_ways_to_write_a_file(tmp_path, text):
    path = tmp_path / "boards.csv"
    path.write_bytes(text.encode())
    boards = sudoku.read(str(path))
    assert boards.puzzles.dtype == boards.solutions.dtype == np.uint8
    assert [sudoku.format(puzzle, ".") for puzzle, _ in boards] == [PUZZLE] * 2
    assert [sudoku.format(solution) for _, solution in boards] == [SOLUTION] * 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (PUZZLE, "the line must have two columns, puzzle and solution; got 1 in '53"),
        (f"{GOOD},7", "the line must have two columns, puzzle and solution; got 3 in "),
        ("", "the line must have two columns, puzzle and solution; got 1 in ''"),
        (f"{PUZZLE[1:]},{SOLUTION}", "puzzle must have 81 characters; got 80 in "),
        (f"{PUZZLE},{SOLUTION}9", "solution must have 81 characters; got 82 in "),
        (f"{PUZZLE}0,{SOLUTION[1:]}", "puzzle must have 81 characters; got 82 in "),
        (swap(GOOD, 12, "x"), "puzzle must hold digits, and 0 or . for blanks; got 'x' at row 2, column 4"),
        (swap(GOOD, 81, ";"), "the line must have two columns"),
        (swap(GOOD, 3, "é"), "puzzle must have 81 characters; got 82"),
        (swap(GOOD, 2, "\t"), r"puzzle must hold digits.*; got '\\t' at row 1, column 3"),
        (swap(GOOD, 83, "0"), "solution must hold the digits 1 to 9; got '0' at row 1, column 2"),
        (swap(GOOD, 90, "-"), "solution must hold the digits 1 to 9; got '-' at row 1, column 9"),
        (
            swap(GOOD, 1, "4"),
            "puzzle must agree with its solution; got the given 4 where the solution has 3, at row 1,",
        ),
        (swap(GOOD, 84, "5"), "solution must have every digit once in every row.*; got 2 times 5 in row 1"),
        (
            f"{'.' * 81},{SOLUTION[:9] * 9}",
            "solution must have every digit once in every row, column and box; got 9 times 5 in column 1",
        ),
        (
            "." * 81 + "," + "".join("123456789123456789"[k : k + 9] for k in range(9)),
            "solution must have every digit once in every row, column and box; got 2 times 2 in box 1",
        ),
    ],
)
@pytest.mark.parametrize("header", [True, False])
def test_a_bad_line_is_named(tmp_path, line, message, header):
    path = tmp_path / "boards.csv"
    lines = ["puzzle,solution"] * header + [GOOD, GOOD, line, GOOD, "7,7"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(f"{path}, line {3 + header}: ") + message):
        sudoku.read(path)


def test_the_first_fault_is_named(tmp_path):
    path = tmp_path / "boards.csv"
    path.write_text("\n".join([GOOD, swap(GOOD, 1, "4"), swap(GOOD, 81, "1"), "short"]))
    with pytest.raises(ValueError, match="line 2: puzzle must agree"):
        sudoku.read(path)
    path.write_text("\n".join([GOOD, GOOD, swap(GOOD, 81, "1"), "short", swap(GOOD, 1, "4")]))
    with pytest.raises(ValueError, match="line 3: the line must have two columns"):
        sudoku.read(path)


@pytest.mark.parametrize("line", [swap(GOOD, 0, "x"), GOOD.replace(PUZZLE, f'"{PUZZLE}"')])
def test_a_bad_first_line_is_not_taken_for_names_of_columns(tmp_path, line):
    path = tmp_path / "boards.csv"
    path.write_text(f"{line}\n{GOOD}\n")
    with pytest.raises(ValueError, match=r"boards\.csv, line 1: puzzle must"):
        sudoku.read(path)


@pytest.mark.parametrize("text", ["", "\n\n", "puzzle,solution\n"])
def test_empty_files(tmp_path, text):
    path = tmp_path / "boards.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"boards.csv: must hold at least one board; got \d+ bytes"):
        sudoku.read(path)


def test_broken_gzip(tmp_path):
    path = tmp_path / "boards.csv.gz"
    made().write(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"boards\.csv\.gz: must be a whole gzip file; got one that ends"):
        sudoku.read(path)
    with pytest.raises(FileNotFoundError, match=r"nothing\.csv"):
        sudoku.read(tmp_path / "nothing.csv")


def test_boards_are_a_sequence():
    boards = made()
    assert len(boards) == 200
    assert same(boards[:5], Boards(boards.puzzles[:5], boards.solutions[:5]))
    assert same(boards[[7, 3]], Boards(boards.puzzles[[7, 3]], boards.solutions[[7, 3]]))
    assert set(boards[boards.givens == 30].givens) == {30}
    puzzle, solution = boards[-1]
    assert puzzle.shape == solution.shape == (81,)
    assert sum(1 for _ in boards) == 200
    assert boards.givens.tolist() == [sum(digit > 0 for digit in puzzle.tolist()) for puzzle in boards.puzzles]


def test_boards_check_what_they_are_given():
    boards = made()[:4]
    with pytest.raises(TypeError, match="puzzles must be a numpy array of uint8; got int64"):
        Boards(boards.puzzles.astype(np.int64), boards.solutions)
    with pytest.raises(TypeError, match="solutions must be a numpy array of uint8; got list"):
        Boards(boards.puzzles, boards.solutions.tolist())
    with pytest.raises(ValueError, match=r"puzzles must have shape \(N, 81\); got \(81,\)"):
        Boards(boards.puzzles[0], boards.solutions[0])
    with pytest.raises(ValueError, match="must be equally many; got 4 puzzles and 3 solutions"):
        Boards(boards.puzzles, boards.solutions[:3])
    wrong = boards.solutions.copy()
    wrong[2, 40] = 77
    with pytest.raises(ValueError, match=r"solutions\[2\] must hold the digits 1 to 9; got 77 at row 5, column 5"):
        Boards(np.zeros_like(wrong), wrong)


def test_the_published_boards():
    train, test = (sudoku.read(shared(f"{name}.csv")) for name in ("train-9k", "test-1k"))
    assert (len(train), len(test)) == (9000, 1000)
    assert set(test.givens) == set(range(17, 35))
    assert valid(test.solutions)
    assert not {bytes(board) for board in train.solutions} & {bytes(board) for board in test.solutions}


def test_many_boards_are_read():
    boards = sudoku.read(shared("train-180k.csv.gz"))
    assert len(boards) == 180_000
    assert set(boards.givens) == set(range(17, 35))
