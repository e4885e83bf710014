"""The inner loops of ratings and of hard boards, compiled by numba at first use and kept on disk.

A rating counts guesses: where neither a cell with one digit left nor a digit with one place left helps, a cell with the
fewest digits is taken at random, and one of its digits is tried. How many are tried until the solution is found depends
on luck, so that the mean over many random orders is taken.
"""

from __future__ import annotations

import numpy as np

from .generator_loops import dig, random_full, seeded
from .solver_loops import SIZES, Array, Integer, kernel, random_below, settle, spread, start

HASTY, CAREFUL = np.int64(8), np.int64(32)  # orders in which a move is rated, first and then where that was promising
APART = 4  # moves between puzzles of one family
PATIENCE = 300  # moves without gain
MOVES = 1_000_000  # for one family


@kernel
def _guess(board: Array, random: Array) -> tuple[Integer, Integer]:
    """A cell, any of those with the fewest digits, -1 if all are filled; and any of its digits, as a mask."""
    best, fewest, equals = np.int64(-1), 10, 0
    for cell in range(81):
        size = SIZES[board[cell]]
        if size == 1 or size > fewest:
            continue
        if size < fewest:
            fewest, equals = size, 0
        equals += 1
        if random_below(random, np.int64(equals)) == 0:
            best = np.int64(cell)
    if best < 0:
        return best, np.int64(0)
    mask = np.int64(board[best])
    for _ in range(random_below(random, np.int64(fewest))):
        mask &= mask - 1
    return best, mask & -mask


@kernel
def guesses(puzzle: Array, orders: Integer, random: Array, stack: Array) -> Integer:
    """The guesses until a solution is found, the sum over so many random orders. The puzzle must have a solution."""
    queue, changed = np.empty(81, np.int64), np.empty(82, np.int64)
    start(puzzle, stack[0])
    settle(stack[0], queue)
    settled = stack[0].copy()
    total = np.int64(0)
    for _ in range(orders):
        stack[0] = settled
        changed[0] = 0
        depth, fresh = 0, True  # whether the board on top is settled
        while True:
            board = stack[depth]
            if not fresh and not (spread(board, changed[depth], queue) and settle(board, queue)):
                depth -= 1
                continue
            cell, digit = _guess(board, random)
            if cell < 0:
                break
            total += 1
            fresh = False
            stack[depth + 1] = board
            stack[depth + 1, cell] = digit
            board[cell] &= ~digit
            changed[depth], changed[depth + 1] = cell, cell
            depth += 1
        if total == 0:  # nor will there be one in other orders
            break
    return total


@kernel
def _distance(total: Integer, orders: Integer, low: Integer, high: Integer) -> Integer:
    """How far a puzzle is from a range of ratings, in guesses of CAREFUL orders: 0 within. `total` is of `orders`."""
    if 2 * total < (2 * low - 1) * orders:
        return np.int64(1 + (low * orders - total) * CAREFUL // orders)
    if 2 * total >= (2 * high + 1) * orders:
        return np.int64(1 + (total - high * orders) * CAREFUL // orders)
    return np.int64(0)


@kernel
def _move(puzzle: Array, solution: Array, random: Array, stack: Array) -> None:
    """Change a puzzle a little; its solution stays. A given is taken away, and all cells but the other givens are
    filled and emptied again in random order; then givens are emptied that are needed no longer."""
    place = random_below(random, np.int64(np.count_nonzero(puzzle)))
    stays = puzzle != 0
    for cell in range(81):
        if stays[cell]:
            if place == 0:
                stays[cell] = False
                break
            place -= 1
    puzzle[:] = solution
    dig(puzzle, 0, random, stack, stays)


@kernel
def generate(
    number: Integer, seed: Integer, low: Integer, high: Integer, orders: Integer, puzzles: Array, solutions: Array
) -> int:
    """Fill `puzzles` and `solutions` with the family `number` of a seed: puzzles whose ratings are in a range, mostly
    of one full board, the same however many are asked for.

    The full board is emptied as far as it goes. From there a walk of small moves leads towards the range, and through
    it: a move counts unless it leads away. Where nothing is gained in PATIENCE moves, another full board is taken.
    Returns how many were made; fewer than all if MOVES do not do.
    """
    random, fixed = np.empty(1, np.uint64), np.empty(1, np.uint64)
    stack, found = np.empty((82, 81), np.uint16), np.empty((1, 81), np.uint8)
    puzzle, other, nowhere = np.empty(81, np.uint8), np.empty(81, np.uint8), np.zeros(81, np.bool_)
    random[0] = seeded(seed, np.uint64(number))
    away, idle, walked, made = np.int64(-1), 0, 0, 0
    for _ in range(MOVES):
        if away < 0 or idle > PATIENCE:
            random_full(random, stack, found)
            puzzle[:] = found[0]
            dig(puzzle, 0, random, stack, nowhere)
            away = _distance(guesses(puzzle, CAREFUL, random, stack), CAREFUL, low, high)
            idle, walked = 0, APART
        if away == 0 and walked >= APART:
            fixed[0] = 0
            away = _distance(guesses(puzzle, orders, fixed, stack), orders, low, high)
            if away == 0:
                puzzles[made], solutions[made] = puzzle, found[0]
                made, walked = made + 1, 0
                if made == len(puzzles):
                    break
        other[:] = puzzle
        _move(other, found[0], random, stack)
        idle += 1
        known = (other == puzzle).all()
        for k in range(made):
            known |= (other == puzzles[k]).all()
        if known:
            continue
        if _distance(guesses(other, HASTY, random, stack), HASTY, low, high) > away:
            continue
        there = _distance(guesses(other, CAREFUL, random, stack), CAREFUL, low, high)
        if there <= away:
            if there == 0 or there < away:
                idle = 0
            puzzle[:] = other
            away = there
            walked += 1
    return made
