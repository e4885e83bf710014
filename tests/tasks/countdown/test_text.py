"""The text of a solution."""

from collections import Counter

from ttcnet.tasks.countdown import Difficulty, make, row
from ttcnet.tasks.countdown.expressions import read


def test_steps_lead_to_the_answer():
    for puzzle in make(200, Difficulty(numbers=(4, 5)), seed=2):
        *lines, box = row(puzzle)["solution"].split("\n")
        left = Counter(puzzle.numbers)
        for line in lines:
            claim, _, rest = line.partition(", left: ")
            text, _, result = claim.partition(" = ")
            value, used = read(text)
            left = left - Counter(used) + Counter([int(result)])
            assert value == int(result)
            assert Counter(int(number) for number in rest.split(", ") if number) == (left if rest else Counter())
        assert left == Counter([puzzle.target])
        assert box == f"\\boxed{{{puzzle.expression}}}"
