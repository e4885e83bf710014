"""The inner loops of the solver, compiled by numba at first use and kept on disk.

The digits that a cell may still hold are a mask of nine bits; a board is 81 masks. A cell whose mask has one bit is
filled, and that digit has been taken from its peers (`spread`); a digit with one place left in a row, column or box is
put there (`settle`). Where neither helps, the search branches in two: a cell is a digit, or it is not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ttcnet.machine.compile_cache import jit

from .grid import PEERS, UNITS

Array = Any
Integer = Any  # numba sees np.int64 always, so that every function is compiled once
FULL = 0b111111111
SIZES = np.array([mask.bit_count() for mask in range(512)], np.uint8)
kernel = jit(nogil=True, error_model="numpy")


@kernel
def random_below(state: Array, below: Integer) -> Integer:
    """A random number from 0 to below - 1, by splitmix64: the same on every machine and in every version."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.int64((z >> np.uint64(11)) % np.uint64(below))


@kernel
def spread(board: Array, cell: int, queue: Array) -> bool:
    """Take a filled cell's digit from its peers, and continue with peers that this fills. False if one is empty."""
    if SIZES[board[cell]] != 1:
        return board[cell] != 0
    queue[0] = cell
    waiting = 1
    while waiting:
        waiting -= 1
        source = queue[waiting]
        digit = board[source]
        for k in range(20):
            peer = PEERS[source, k]
            mask = board[peer]
            if mask & digit:
                mask &= ~digit
                if mask == 0:
                    return False
                board[peer] = mask
                if SIZES[mask] == 1:
                    queue[waiting] = peer
                    waiting += 1
    return True


@kernel
def settle(board: Array, queue: Array) -> bool:
    """Put every digit that has one place left in a unit there, until there is none. False on a contradiction."""
    changed = True
    while changed:
        changed = False
        for u in range(27):
            once, twice = 0, 0
            for k in range(9):
                mask = board[UNITS[u, k]]
                twice |= once & mask
                once |= mask
            if once != FULL:
                return False
            single = once & ~twice
            if single == 0:
                continue
            for k in range(9):
                cell = UNITS[u, k]
                here = board[cell] & single
                if here and here != board[cell]:
                    if SIZES[here] != 1:
                        return False
                    board[cell] = here
                    changed = True
                    if not spread(board, cell, queue):
                        return False
    return True


@kernel
def _branch(board: Array, random: Array) -> tuple[Integer, Integer]:
    """A cell to branch on and a digit, as a mask; the cell is -1 if all are filled.

    The cell with the fewest digits; if that is more than two, a digit with only two places in some unit is better.
    """
    best, fewest = -1, 10
    for cell in range(81):
        size = SIZES[board[cell]]
        if 1 < size < fewest:
            best, fewest = cell, size
            if size == 2:
                break
    if best < 0:
        return -1, 0
    if fewest > 2 and len(random) == 0:
        for u in range(27):
            once, twice, more = 0, 0, 0
            for k in range(9):
                mask = board[UNITS[u, k]]
                more |= twice & mask
                twice |= once & mask
                once |= mask
            pair = twice & ~more
            if pair:
                digit = pair & -pair
                for k in range(9):
                    if board[UNITS[u, k]] & digit:
                        return UNITS[u, k], digit
    mask = np.int64(board[best])
    if len(random):
        for _ in range(random_below(random, fewest)):
            mask &= mask - 1
    return best, mask & -mask


@kernel
def search(stack: Array, cell: Integer, random: Array, limit: Integer, found: Array) -> int:
    """Count the solutions of the board stack[0], up to `limit`; the first len(found) of them are written down.

    `cell` is where that board was changed last. `random` is the state of a generator for digits in random order, or
    empty.
    """
    queue, changed = np.empty(81, np.int64), np.empty(82, np.int64)
    changed[0] = cell
    number, depth = 0, 0
    while depth >= 0:
        board = stack[depth]
        if not (spread(board, changed[depth], queue) and settle(board, queue)):
            depth -= 1
            continue
        cell, digit = _branch(board, random)
        if cell < 0:
            if number < len(found):
                for k in range(81):
                    found[number, k] = _digit(board[k])
            number += 1
            if number == limit:
                return number
            depth -= 1
            continue
        for k in range(81):
            stack[depth + 1, k] = board[k]
        stack[depth + 1, cell] = digit
        board[cell] &= ~digit
        changed[depth], changed[depth + 1] = cell, cell
        depth += 1
    return number


@kernel
def _digit(mask: int) -> int:
    digit = 0
    while mask:
        mask >>= 1
        digit += 1
    return digit


@kernel
def start(puzzle: Array, board: Array) -> bool:
    """The masks of a puzzle. False if two givens contradict each other, at once or after obvious steps."""
    queue = np.empty(81, np.int64)
    for cell in range(81):
        board[cell] = FULL
    for cell in range(81):
        if puzzle[cell]:
            digit = 1 << (puzzle[cell] - 1)
            if not board[cell] & digit:
                return False
            if board[cell] != digit:
                board[cell] = digit
                if not spread(board, cell, queue):
                    return False
    return True


@kernel
def solve(puzzle: Array, limit: int, found: Array) -> int:
    """The number of solutions of a puzzle, up to `limit`; the first len(found) are written to `found`."""
    stack = np.empty((82, 81), np.uint16)
    if not start(puzzle, stack[0]):
        return 0
    return search(stack, np.int64(0), np.empty(0, np.uint64), limit, found)
