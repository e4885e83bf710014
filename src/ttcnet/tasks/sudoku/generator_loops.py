"""The inner loops of the generator, compiled by numba at first use and kept on disk: full boards, and emptying them."""

from __future__ import annotations

import numpy as np

from .solver_loops import FULL, Array, Integer, kernel, random_below, search, start


@kernel
def dig(puzzle: Array, givens: int, random: Array, stack: Array, late: Array) -> bool:
    """Empty cells of a full board in random order, those that are `late` after the others, while its solution stays the
    only one. True if `givens` remain."""
    order = np.concatenate((np.flatnonzero(~late), np.flatnonzero(late)))
    early = 81 - np.count_nonzero(late)
    in_order, nothing = np.empty(0, np.uint64), np.empty((0, 81), np.uint8)
    left = 81
    for k in range(81):
        if left == givens:
            break
        other = k + random_below(random, (early if k < early else 81) - k)
        order[k], order[other] = order[other], order[k]
        cell = order[k]
        digit = puzzle[cell]
        puzzle[cell] = 0
        start(puzzle, stack[0])
        stack[0, cell] &= ~(1 << (digit - 1))  # is there a solution with another digit in this cell?
        if search(stack, cell, in_order, np.int64(1), nothing):
            puzzle[cell] = digit
        else:
            left -= 1
    return left == givens


@kernel
def seeded(seed: Integer, number: Integer) -> Integer:
    """The state of random numbers for one puzzle: the seed scrambled, then its number, scrambled again."""
    random = np.empty(1, np.uint64)
    random[0] = seed
    random[0] ^= np.uint64(random_below(random, np.int64(1 << 52))) << np.uint64(11)
    random[0] += number
    return np.uint64(random_below(random, np.int64(1 << 52))) << np.uint64(11)


@kernel
def random_full(random: Array, stack: Array, found: Array) -> None:
    """A full board at random, written to found[0]."""
    for cell in range(81):
        stack[0, cell] = FULL
    search(stack, np.int64(0), random, np.int64(1), found)


@kernel
def generate(first: int, seed: Integer, lowest: int, highest: int, tries: int, puzzles: Array, solutions: Array) -> int:
    """Fill `puzzles` and `solutions` with numbers first, first + 1, ... of a seed's puzzles.

    Each has random numbers of its own. Returns how many were made; fewer than all mean that `tries` full boards did not
    do for the next one.
    """
    random = np.empty(1, np.uint64)
    stack, nowhere = np.empty((82, 81), np.uint16), np.zeros(81, np.bool_)
    for made in range(len(puzzles)):
        random[0] = seeded(seed, np.uint64(first + made))
        givens = lowest + random_below(random, highest - lowest + 1)
        done = False
        for _ in range(tries):
            random_full(random, stack, solutions[made : made + 1])
            puzzles[made] = solutions[made]
            done = dig(puzzles[made], givens, random, stack, nowhere)
            if done:
                break
        if not done:
            return made
    return len(puzzles)
