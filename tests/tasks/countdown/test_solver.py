"""The solver finds all solutions, and no others."""

import operator
from fractions import Fraction
from itertools import permutations, product

import pytest

from tests.raising import raises
from ttcnet.tasks.countdown import grade, solutions, solve

COMPUTE = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def reachable(numbers, operations):
    """All values of expressions of these numbers: whatever splits in two, by definition."""
    found = set()
    for size in range(1, len(numbers) + 1):
        for chosen in permutations(map(Fraction, numbers), size):
            found |= ordered(chosen, operations)
    return found


def ordered(numbers, operations):
    if len(numbers) == 1:
        return set(numbers)
    found = set()
    for cut in range(1, len(numbers)):
        for one, two in product(ordered(numbers[:cut], operations), ordered(numbers[cut:], operations)):
            found |= {COMPUTE[sign](one, two) for sign in operations if sign != "/" or two}
    return found


@pytest.mark.parametrize("operations", ["+-*/", "-", "-/", "+*", "*/"])
@pytest.mark.parametrize("numbers", [(2, 3, 7), (4, 4, 1), (5, 5, 2), (6, 1, 9, 3)])
def test_the_solver_finds_reachable_targets_and_no_others(numbers, operations):
    possible = {int(value) for value in reachable(numbers, operations) if value.denominator == 1}
    for target in (*range(1, 20), *range(20, 60, 7)):
        found = solve(numbers, target, operations)
        assert (found is not None) == (target in possible), target
        every = list(solutions(numbers, target, operations))
        assert bool(every) == (target in possible)
        assert len({each.expression for each in every}) == len(every)
        for each in every if found is None else [found, *every]:
            verdict = grade({"numbers": numbers, "target": target}, each.expression)
            assert verdict.right, (each, verdict)
            assert set(each.expression) <= set("0123456789 ()" + operations)


def test_targets_that_the_solver_does_not_look_for():
    with raises("too-small", "target", "-2"):
        solve((3, 5), -2)
    with raises("format", "numbers"):
        solve((3.5, 1), 2)
