"""Many boards: puzzles with their solutions, and the files that hold them.

A file has lines `puzzle,solution` of 81 characters each, 0 or . for a blank; a first line with names of columns is
optional, and so is gzip. Every line is checked when it is read; an error names file and line.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ttcnet.errors import TTCNetError, fail
from ttcnet.storage.reading import read_bytes
from ttcnet.storage.writing import write_bytes

from .grid import UNITS, Board, name_of

HEADER = b"puzzle,solution"
_BAD = 255
_DIGITS = np.full(256, _BAD, np.uint8)
_DIGITS[list(b"0123456789")] = range(10)
_DIGITS[ord(".")] = 0
_ALL_NINE = 0b1111111110


class Fault(NamedTuple):
    """The fault of one pair of boards."""

    row: int
    field: str
    rule: str
    value: str
    cell: int | None = None  # the cell that holds a character which is not allowed
    remedy: str = "Correct the pair or leave it out."


@dataclass(frozen=True, eq=False)
class Boards:
    """Puzzles and their solutions, uint8 (N, 81), 0 for a blank; checked when they are made.

    boards[3] is a puzzle and its solution; boards[:100], boards[mask] and boards[[4, 2]] are Boards.
    """

    puzzles: NDArray[np.uint8]
    solutions: NDArray[np.uint8]

    def __post_init__(self) -> None:
        for name in ("puzzles", "solutions"):
            value = getattr(self, name)
            if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
                kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
                fail(name, "must be a numpy array of uint8", kind, "Convert it with numpy.asarray.", "dtype")
            if value.ndim != 2 or value.shape[1] != 81:
                remedy = "Write every board as one row of 81 digits."
                fail(name, "must have shape (N, 81)", value.shape, remedy, "shape")
        if len(self.puzzles) != len(self.solutions):
            value = f"{len(self.puzzles)} puzzles and {len(self.solutions)} solutions"
            fail("puzzles and solutions", "must be equally many", value, "Give every puzzle its solution.", "shape")
        fault = first_fault(self.puzzles, self.solutions)
        if fault:
            fail(f"{fault.field}s[{fault.row}]", fault.rule, fault.value, fault.remedy, "bad-board")

    def __len__(self) -> int:
        return len(self.puzzles)

    @overload
    def __getitem__(self, index: int) -> tuple[Board, Board]: ...
    @overload
    def __getitem__(self, index: slice | list[int] | NDArray[Any]) -> Boards: ...
    def __getitem__(self, index: Any) -> Any:
        puzzles, solutions = self.puzzles[index], self.solutions[index]
        return _checked(puzzles, solutions) if puzzles.ndim == 2 else (puzzles, solutions)

    def __iter__(self) -> Iterator[tuple[Board, Board]]:
        return zip(self.puzzles, self.solutions, strict=True)

    @property
    def givens(self) -> NDArray[np.int64]:
        """The number of filled cells of every puzzle, (N,)."""
        return np.count_nonzero(self.puzzles, axis=1)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a file that `read` reads, all of it or nothing; with gzip if the name ends in .gz."""
        path = Path(path)
        lines = np.empty((len(self), 164), np.uint8)
        lines[:, :81], lines[:, 82:163] = self.puzzles + ord("0"), self.solutions + ord("0")
        lines[:, 81], lines[:, 163] = ord(","), ord("\n")
        content = HEADER + b"\n" + lines.tobytes()
        if path.suffix == ".gz":
            content = gzip.compress(content, mtime=0)  # no time stamp: the same boards make the same file
        write_bytes(path, content)


def _checked(puzzles: NDArray[np.uint8], solutions: NDArray[np.uint8]) -> Boards:
    """Make boards of arrays that have been checked."""
    boards = object.__new__(Boards)
    object.__setattr__(boards, "puzzles", puzzles)
    object.__setattr__(boards, "solutions", solutions)
    return boards


def read(path: str | os.PathLike[str]) -> Boards:
    """The boards of a CSV file, every line checked."""
    content = _content(Path(path))
    content = content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").rstrip()
    first_line = content.partition(b"\n")[0]
    skipped = int(first_line.lstrip(b'"')[:1].isalpha() and not any(digit in first_line for digit in b"123456789"))
    body = content[len(first_line) + 1 :] if skipped else content
    if not body:
        remedy = "Give lines of puzzle,solution with 81 characters each."
        fail(f"{path}:", "must hold at least one board", f"{len(content)} bytes without any", remedy, "no-data")
    body += b"\n"
    data = np.frombuffer(body, np.uint8)
    ends = np.flatnonzero(data == 10)
    odd = np.flatnonzero(np.diff(ends, prepend=-1) != 164)
    if len(odd):  # lines before the first of odd length may have faults of their own
        ends = ends[: odd[0]]
    lines = data[: 164 * len(ends)].reshape(-1, 164)
    no_comma = np.flatnonzero(lines[:, 81] != ord(","))
    if len(no_comma):
        lines, odd = lines[: no_comma[0]], no_comma
    puzzles, solutions = _DIGITS[lines[:, :81]], _DIGITS[lines[:, 82:163]]
    fault = first_fault(puzzles, solutions)
    if fault:
        if fault.cell is not None:  # show the character
            mark = chr(lines[fault.row, fault.cell + (82 if fault.field == "solution" else 0)])
            fault = fault._replace(value=f"{mark!r} at {name_of(fault.cell)}")
        fail(
            f"{path}, line {fault.row + skipped + 1}: {fault.field}", fault.rule, fault.value, fault.remedy, "bad-board"
        )
    if len(odd):
        _complain_of_shape(path, int(odd[0]) + skipped + 1, body.split(b"\n", int(odd[0]) + 1)[odd[0]])
    return _checked(puzzles, solutions)


def _content(path: Path) -> bytes:
    try:
        content = read_bytes(path, f"{path}:")
    except OSError as error:
        if isinstance(error, TTCNetError):
            raise
        remedy = "Pass a CSV file of puzzle,solution."
        fail(f"{path}:", "must be a file that can be read", error.strerror, remedy, "not-readable", type(error))
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        remedy = "Fetch it again."
        fail(f"{path}:", "must be a whole gzip file", f"one that ends or breaks early ({error})", remedy, "bad-data")


def _complain_of_shape(path: object, number: int, line: bytes) -> None:
    text = line.decode("latin-1")  # one character for every byte
    where, remedy = f"{path}, line {number}:", "Write 81 characters for the puzzle, a comma, 81 for the solution."
    columns = text.split(",")
    if len(columns) != 2:
        shown = repr(text if len(text) <= 40 else text[:40] + "...")
        rule = "must have two columns, puzzle and solution"
        fail(f"{where} the line", rule, f"{len(columns)} in {shown}", remedy, "bad-data")
    name, column = next((name, c) for name, c in zip(("puzzle", "solution"), columns, strict=True) if len(c) != 81)
    fail(f"{where} {name}", "must have 81 characters", f"{len(column)} in {column[:100]!r}", remedy, "bad-board")


def first_fault(puzzles: NDArray[np.uint8], solutions: NDArray[np.uint8]) -> Fault | None:
    """The fault of the first pair of boards that has one."""
    used = np.left_shift(1, np.minimum(solutions.T, 15), dtype=np.uint16, order="C")
    complete = np.ones(len(solutions), bool)
    for unit in UNITS:
        complete &= np.bitwise_or.reduce(used[unit]) == _ALL_NINE
    differs = (puzzles != 0) & (puzzles != solutions)
    faulty = ~complete | differs.any(1)
    if not faulty.any():
        return None
    row = int(faulty.argmax())
    puzzle, solution = puzzles[row], solutions[row]
    for field, value, lowest in (("puzzle", puzzle, 0), ("solution", solution, 1)):
        bad = np.flatnonzero((value < lowest) | (value > 9))
        if len(bad):
            rule = "must hold digits, and 0 or . for blanks" if lowest == 0 else "must hold the digits 1 to 9"
            return Fault(row, field, rule, f"{value[bad[0]]} at {name_of(int(bad[0]))}", int(bad[0]))
    if differs[row].any():
        cell = int(differs[row].argmax())
        value = f"the given {puzzle[cell]} where the solution has {solution[cell]}, at {name_of(cell)}"
        return Fault(row, "puzzle", "must agree with its solution", value)
    for number, unit in enumerate(UNITS):
        digits = solution[unit].tolist()
        if len(set(digits)) < 9:
            twice = next(digit for digit in digits if digits.count(digit) > 1)
            value = f"{digits.count(twice)} times {twice} in {('row', 'column', 'box')[number // 9]} {number % 9 + 1}"
            return Fault(row, "solution", "must have every digit once in every row, column and box", value)
    raise AssertionError("a faulty row has a fault")
