"""All ways to reach a target, by exhaustion.

Values on the way may be fractions. Where + is allowed they are never negative or zero: a target above zero that can be
reached with those can be reached without, by turning differences round and leaving numbers out. Two solutions count as
one where they differ only in the order of steps, or of the operands of + and *.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ttcnet.errors import fail

from .expressions import OPERATIONS, Step, Term, Value, join, number


class Solution(NamedTuple):
    """Steps to the target, and all of them as one expression."""

    steps: tuple[Step, ...]
    expression: str


def solve(numbers: Sequence[int], target: int, operations: str = OPERATIONS) -> Solution | None:
    """A solution, or None if there is none. Five numbers take up to half a second, six up to ten.

    Examples:
        >>> solve((3, 7, 25), 54).expression
        '(25 - 7) * 3'
    """
    return next(_search(*_start(numbers, target, operations), set()), None)


def solutions(numbers: Sequence[int], target: int, operations: str = OPERATIONS) -> Iterator[Solution]:
    """Every solution. There are thousands of ways to combine four numbers, and millions for six.

    Examples:
        >>> [found.expression for found in solutions((1, 2, 3), 7)]
        ['3 * 2 + 1']
    """
    seen = set()
    for found in _search(*_start(numbers, target, operations), None):
        if found.expression not in seen:
            seen.add(found.expression)
            yield found


def check_operations(operations: str) -> str:
    if not operations or set(operations) - set(OPERATIONS):
        fail("operations", f"must be some of {OPERATIONS}", repr(operations), "Pass '+-', for example.", "unknown-name")
    return operations


def pairs(pool: Sequence[Term]) -> Iterator[tuple[Term, Term, list[Term]]]:
    """Two terms, the larger first, and those that are left."""
    for i, one in enumerate(pool):
        for j in range(i + 1, len(pool)):
            two, rest = pool[j], [term for k, term in enumerate(pool) if k not in (i, j)]
            yield (one, two, rest) if (one.value, one.text) >= (two.value, two.text) else (two, one, rest)


def _start(numbers: Sequence[int], target: int, operations: str) -> tuple[list[Term], Value, str, tuple[Step, ...]]:
    if not numbers or any(not isinstance(value, int) or value < 1 for value in numbers):
        remedy = "Pass (3, 7, 25), for example."
        fail("numbers", "must be one or more whole numbers above 0", list(numbers), remedy, "format")
    if not isinstance(target, int) or target < 0:
        fail("target", "must be a whole number of 0 or more", target, "Pass 54, for example.", "too-small")
    return [number(value) for value in numbers], target, check_operations(operations), ()


def _search(
    pool: list[Term], target: Value, operations: str, steps: tuple[Step, ...], dead: set[tuple[Value, ...]] | None
) -> Iterator[Solution]:
    """Solutions from here. States in `dead` lead to nothing new; every state that is visited is added to it."""
    if not steps:
        yield from (Solution((), term.text) for term in pool if term.value == target)
    if dead is not None:
        values = tuple(sorted(term.value for term in pool))
        if values in dead:
            return
        dead.add(values)
    for one, two, rest in pairs(pool):
        for operation in operations:
            for left, right in _turns(one, two, operation, "+" in operations):
                term, step = join(left, operation, right)
                if term.value == target:
                    yield Solution((*steps, step), term.text)
                if term.value > 0 or "+" not in operations:
                    yield from _search([*rest, term], target, operations, (*steps, step), dead)


def _turns(one: Term, two: Term, operation: str, positive: bool) -> Iterator[tuple[Term, Term]]:
    """The orders of two terms, the larger first, that are worth a try."""
    if operation != "/" or two.value:
        yield one, two
    alike = one.value == two.value or operation in "+*" or (operation == "-" and positive)
    if not alike and (operation != "/" or one.value):
        yield two, one
