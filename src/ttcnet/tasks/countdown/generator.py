"""Puzzles that can be solved, as hard as wished.

How one is drawn: the number of numbers evenly from a range; each number evenly from 1 .. largest, repetitions allowed.
Two of them are drawn and replaced by the result of an operation, and so on until one value is left, which is the
target. The pair is drawn evenly; the operation evenly from those allowed that lead to a whole number from 1 to `limit`
and change something: no difference of equals, no product with 1, no quotient that is not whole or has the divisor 1.
Draws that get stuck, or whose target is among the numbers, start again. A puzzle comes once, in any order of its
numbers. One puzzle in ten, by a digest of numbers and target, belongs to the test split, for every difficulty and
seed: a puzzle for training is never in a test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from ttcnet.bounds import check_count
from ttcnet.errors import fail

from .expressions import OPERATIONS, Step, Term, join, number
from .solver import check_operations

SPLITS = ("train", "test")
PATIENCE = 10_000  # draws without a new puzzle


@dataclass(frozen=True)
class Difficulty:
    """Args:
    numbers: the fewest and the most numbers of a puzzle, 2 to 8.
    largest: of the numbers.
    operations: some of + - * /.
    limit: the largest value on the way, and the largest target.
    """

    numbers: tuple[int, int] = (3, 4)
    largest: int = 30
    operations: str = OPERATIONS
    limit: int = 999

    def __post_init__(self) -> None:
        fewest, most = self.numbers
        if not 2 <= fewest <= most <= 8:
            remedy = "Pass (3, 4), for example."
            fail("numbers", "must go from a lower to a higher one, 2 to 8", self.numbers, remedy, "out-of-range")
        if self.largest < 2:
            fail("largest", "must be 2 or more", self.largest, "Pass 30, for example.", "too-small")
        if self.limit < self.largest:
            remedy = "Pass a larger number."
            fail("limit", f"must be at least largest, {self.largest}", self.limit, remedy, "out-of-range")
        check_operations(self.operations)


@dataclass(frozen=True)
class Puzzle:
    """Numbers, the target, and the way by which it was drawn."""

    numbers: tuple[int, ...]
    target: int
    steps: tuple[Step, ...]
    expression: str

    @property
    def split(self) -> str:
        """The split that it belongs to."""
        key = f"{sorted(self.numbers)} {self.target}"
        return "test" if hashlib.sha256(key.encode()).digest()[0] % 10 == 0 else "train"


def make(
    count: int,
    difficulty: Difficulty | None = None,
    *,
    seed: int = 0,
    split: str = "train",
    report: Callable[[int], object] = lambda made: None,
) -> list[Puzzle]:
    """`count` puzzles, no two alike. The same seed gives the same puzzles, and a larger count more of them. `report` is
    told now and then how many there are.

    Examples:
        >>> [(puzzle.numbers, puzzle.target, puzzle.expression) for puzzle in make(1, seed=3)]
        [((18, 22, 20), 376, '22 * 18 - 20')]
    """
    if count < 0:
        fail("count", "must be 0 or more", count, "Pass how many puzzles to make.", "too-small")
    check_count("count", count)
    if split not in SPLITS:
        fail("split", f"must be one of {', '.join(SPLITS)}", repr(split), "Use one of those.", "unknown-name")
    difficulty = Difficulty() if difficulty is None else difficulty
    random = Random(f"countdown/{seed}/{split}")
    made: dict[tuple[tuple[int, ...], int], Puzzle] = {}
    fruitless = 0
    while len(made) < count:
        puzzle = _draw(difficulty, random)
        key = None if puzzle is None else (tuple(sorted(puzzle.numbers)), puzzle.target)
        if puzzle is None or key is None or key in made or puzzle.split != split:
            fruitless += 1
            if fruitless == PATIENCE:
                value = f"{count}, with {len(made)} found"
                remedy = "Ask for fewer, or raise numbers, largest or limit."
                fail("count", "must be within reach", value, remedy, "too-large")
            continue
        made[key], fruitless = puzzle, 0
        if len(made) % 1000 == 0:
            report(len(made))
    return list(made.values())


def _draw(difficulty: Difficulty, random: Random) -> Puzzle | None:
    numbers = tuple(random.randint(1, difficulty.largest) for _ in range(random.randint(*difficulty.numbers)))
    pool, steps = [number(value) for value in numbers], []
    while len(pool) > 1:
        one, two = (pool.pop(random.randrange(len(pool))) for _ in range(2))
        left, right = (one, two) if one.value >= two.value else (two, one)
        open_ = [operation for operation in difficulty.operations if _fits(left, operation, right, difficulty.limit)]
        if not open_:
            return None
        term, step = join(left, random.choice(open_), right)
        pool.append(term)
        steps.append(step)
    target = int(pool[0].value)
    return None if target in numbers else Puzzle(numbers, target, tuple(steps), pool[0].text)


def _fits(left: Term, operation: str, right: Term, limit: int) -> bool:
    a, b = left.value, right.value
    if operation == "+":
        return a + b <= limit
    if operation == "-":
        return a > b
    if operation == "*":
        return b > 1 and a * b <= limit
    return b > 1 and a % b == 0
