"""One board: its geometry, and its ways from and to text.

A board is an array of 81 digits, row by row, with 0 for a blank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttcnet.errors import fail

Board = NDArray[np.uint8]

BLANKS = "0._*"
_DRAWING = frozenset("|+-") | {chr(code) for code in range(0x2500, 0x2580)}  # and the box-drawing characters

_cells = np.arange(81)
_unit_of = np.stack([_cells // 9, 9 + _cells % 9, 18 + _cells // 27 * 3 + _cells % 9 // 3])
UNITS = np.stack([np.flatnonzero((_unit_of == unit).any(0)) for unit in range(27)])  # rows, columns, boxes: (27, 9)
_related = (_unit_of[:, :, None] == _unit_of[:, None, :]).any(0) & ~np.eye(81, dtype=bool)
PEERS = np.stack([np.flatnonzero(row) for row in _related])  # the cells that share a unit with a cell: (81, 20)


def parse(text: str) -> Board:
    """A board from text: 81 digits with 0 . _ or * for blanks; white space and drawing such as | + - is ignored.

    Examples:
        >>> parse("53..7.... 6..195... .98....6. 8...6...3 4..8.3..1 7...2...6 .6....28. ...419..5 ....8..79")[:5]
        array([5, 3, 0, 0, 7], dtype=uint8)
    """
    if not isinstance(text, str):
        fail("text", "must be a string", type(text).__name__, "Use `format` to make one of an array.", "type")
    digits = []
    for place, character in enumerate(text):
        if character in BLANKS:
            digits.append(0)
        elif character in "123456789":
            digits.append(int(character))
        elif not character.isspace() and character not in _DRAWING:
            value = f"{character!r} at position {place + 1}"
            remedy = "Remove or replace this character."
            fail("puzzle", "must hold digits, and 0 . _ or * for blanks", value, remedy, "bad-board")
    if len(digits) != 81:
        remedy = "Write a board row by row, with one character for every cell."
        fail("puzzle", "must have 81 cells", len(digits), remedy, "bad-board")
    return np.array(digits, np.uint8)


def board(value: Any, name: str = "puzzle") -> Board:
    """A board from text or from anything that is an array of 81 integers between 0 and 9, (81,) or (9, 9)."""
    if isinstance(value, str):
        return parse(value)
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        remedy = "Pass a string of 81 characters or an array of 81 integers."
        fail(name, "must be a string or hold integers", array.dtype, remedy, "dtype")
    if array.shape not in ((81,), (9, 9)):
        fail(name, "must have shape (81,) or (9, 9)", array.shape, "Pass one board at a time.", "shape")
    if array.min() < 0 or array.max() > 9:
        remedy = "Write 0 for a blank."
        fail(name, "must hold the digits 0 to 9", f"{array.min()} to {array.max()}", remedy, "bad-board")
    return array.reshape(81).astype(np.uint8)


def format(value: Any, blank: str = "0") -> str:  # noqa: A001
    """A board as 81 characters.

    Examples:
        >>> format(parse("." * 80 + "7"))[-3:]
        '007'
    """
    return "".join(blank if digit == 0 else str(digit) for digit in board(value, "board").tolist())


def draw(value: Any, blank: str = ".", style: Callable[[int, str], str] | None = None) -> str:
    """A drawing of a board for the terminal. `style` may dress a cell: it is given its number, 0 to 80, and its text.

    Examples:
        >>> print(draw("53..7...." + "." * 72).partition("-")[0].rstrip())
        5 3 . | . 7 . | . . .
        . . . | . . . | . . .
        . . . | . . . | . . .
    """
    text = format(value, blank)
    cells = [style(cell, mark) if style else mark for cell, mark in enumerate(text)]
    lines = []
    for row in range(9):
        if row in (3, 6):
            lines.append("------+-------+------")
        lines.append(" | ".join(" ".join(cells[9 * row + k : 9 * row + k + 3]) for k in (0, 3, 6)))
    return "\n".join(lines)


def name_of(cell: int) -> str:
    """How messages call a cell."""
    return f"row {cell // 9 + 1}, column {cell % 9 + 1}"
