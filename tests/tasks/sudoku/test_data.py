"""Files of boards: boards are read as they were written, and errors name file and line."""

import gzip

import numpy as np
import pytest

from tests.raising import raises
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
    ("line", "part", "value"),
    [
        (PUZZLE, "the line", "1 in '53"),
        (f"{GOOD},7", "the line", "3 in "),
        ("", "the line", "1 in ''"),
        (f"{PUZZLE[1:]},{SOLUTION}", "puzzle", "80 in "),
        (f"{PUZZLE},{SOLUTION}9", "solution", "82 in "),
        (f"{PUZZLE}0,{SOLUTION[1:]}", "puzzle", "82 in "),
        (swap(GOOD, 12, "x"), "puzzle", "'x' at row 2, column 4"),
        (swap(GOOD, 81, ";"), "the line", "1 in "),
        (swap(GOOD, 3, "é"), "puzzle", "82 in "),
        (swap(GOOD, 2, "\t"), "puzzle", r"'\\t' at row 1, column 3"),
        (swap(GOOD, 83, "0"), "solution", "'0' at row 1, column 2"),
        (swap(GOOD, 90, "-"), "solution", "'-' at row 1, column 9"),
        (swap(GOOD, 1, "4"), "puzzle", "the given 4 where the solution has 3, at row 1,"),
        (swap(GOOD, 84, "5"), "solution", "2 times 5 in row 1"),
        (f"{'.' * 81},{SOLUTION[:9] * 9}", "solution", "9 times 5 in column 1"),
        (
            "." * 81 + "," + "".join("123456789123456789"[k : k + 9] for k in range(9)),
            "solution",
            "2 times 2 in box 1",
        ),
    ],
)
@pytest.mark.parametrize("header", [True, False])
def test_a_bad_line_is_named(tmp_path, line, part, value, header):
    path = tmp_path / "boards.csv"
    lines = ["puzzle,solution"] * header + [GOOD, GOOD, line, GOOD, "7,7"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with raises("bad-data" if part == "the line" else "bad-board", f"{path}, line {3 + header}: {part}", value):
        sudoku.read(path)


def test_the_first_fault_is_named(tmp_path):
    path = tmp_path / "boards.csv"
    path.write_text("\n".join([GOOD, swap(GOOD, 1, "4"), swap(GOOD, 81, "1"), "short"]))
    with raises("bad-board", f"{path}, line 2: puzzle", "the given 4"):
        sudoku.read(path)
    path.write_text("\n".join([GOOD, GOOD, swap(GOOD, 81, "1"), "short", swap(GOOD, 1, "4")]))
    with raises("bad-data", f"{path}, line 3: the line"):
        sudoku.read(path)


@pytest.mark.parametrize("line", [swap(GOOD, 0, "x"), GOOD.replace(PUZZLE, f'"{PUZZLE}"')])
def test_a_bad_first_line_is_not_taken_for_names_of_columns(tmp_path, line):
    path = tmp_path / "boards.csv"
    path.write_text(f"{line}\n{GOOD}\n")
    with raises("bad-board", f"{path}, line 1: puzzle"):
        sudoku.read(path)


@pytest.mark.parametrize("text", ["", "\n\n", "puzzle,solution\n"])
def test_empty_files(tmp_path, text):
    path = tmp_path / "boards.csv"
    path.write_text(text)
    with raises("no-data", f"{path}:", r"\d+ bytes"):
        sudoku.read(path)


def test_broken_gzip(tmp_path):
    path = tmp_path / "boards.csv.gz"
    made().write(path)
    path.write_bytes(path.read_bytes()[:-100])
    with raises("bad-data", f"{path}:", "one that ends"):
        sudoku.read(path)
    with raises("not-readable", f"{tmp_path / 'nothing.csv'}:"):
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


def test_boards_check_their_arguments():
    boards = made()[:4]
    with raises("dtype", "puzzles", "int64"):
        Boards(boards.puzzles.astype(np.int64), boards.solutions)
    with raises("dtype", "solutions", "list"):
        Boards(boards.puzzles, boards.solutions.tolist())
    with raises("shape", "puzzles", r"\(81,\)"):
        Boards(boards.puzzles[0], boards.solutions[0])
    with raises("shape", "puzzles and solutions", "4 puzzles and 3 solutions"):
        Boards(boards.puzzles, boards.solutions[:3])
    wrong = boards.solutions.copy()
    wrong[2, 40] = 77
    with raises("bad-board", "solutions[2]", "77 at row 5, column 5"):
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
