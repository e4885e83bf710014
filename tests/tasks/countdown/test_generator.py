"""Puzzles can be solved, are distinct, and are as hard as was asked for."""

from collections import Counter

import pytest
from scipy import stats

from tests.raising import raises
from ttcnet.tasks.countdown import Difficulty, Verdict, grade, make, row, solve
from ttcnet.tasks.countdown.expressions import read


def test_puzzles_are_solvable_distinct_and_as_hard_as_wished():
    easy = Difficulty(numbers=(3, 3), largest=9, operations="+-", limit=20)
    for difficulty in (Difficulty(), easy, Difficulty(numbers=(2, 6), largest=100, limit=5000)):
        puzzles = make(300, difficulty, seed=1)
        assert len({(tuple(sorted(puzzle.numbers)), puzzle.target) for puzzle in puzzles}) == 300
        fewest, most = difficulty.numbers
        assert {len(puzzle.numbers) for puzzle in puzzles} == set(range(fewest, most + 1))
        for puzzle in puzzles:
            assert 1 <= min(puzzle.numbers) <= max(puzzle.numbers) <= difficulty.largest
            assert puzzle.target <= difficulty.limit
            assert puzzle.target not in puzzle.numbers
            content = row(puzzle)
            assert grade(content, content["solution"]) == Verdict(True, puzzle.expression, f"it makes {puzzle.target}")
            assert Counter(read(content["answer"]).numbers) == Counter(puzzle.numbers)
            assert {step.operation for step in puzzle.steps} <= set(difficulty.operations)
            assert all(type(step.result) is int and step.result > 0 for step in puzzle.steps)


def test_the_distribution_is_the_one_that_is_documented():
    puzzles = make(3000, Difficulty(numbers=(2, 4), largest=100), seed=3)
    sizes = Counter(len(puzzle.numbers) for puzzle in puzzles)
    assert stats.chisquare([sizes[n] for n in (2, 3, 4)]).pvalue > 1e-3
    signs = Counter(step.operation for puzzle in puzzles for step in puzzle.steps)
    assert signs["+"] > signs["*"] > signs["/"] > 0


def test_splits_are_disjoint_and_seeds_differ():
    tiny = Difficulty(numbers=(2, 2), largest=20)
    keys = {
        split: {(tuple(sorted(puzzle.numbers)), puzzle.target) for puzzle in make(50, tiny, seed=seed, split=split)}
        for seed, split in ((0, "train"), (5, "test"))
    }
    assert not keys["train"] & keys["test"]
    assert make(20, seed=0) == make(50, seed=0)[:20] != make(20, seed=1)


@pytest.mark.parametrize(
    ("changes", "code", "field", "value"),
    [
        (dict(numbers=(4, 3)), "out-of-range", "numbers", r"\(4, 3\)"),
        (dict(numbers=(1, 3)), "out-of-range", "numbers", r"\(1, 3\)"),
        (dict(largest=1), "too-small", "largest", "1"),
        (dict(limit=5), "out-of-range", "limit", "5"),
        (dict(operations="+^"), "unknown-name", "operations", r"'\+\^'"),
    ],
)
def test_difficulties_that_cannot_be(changes, code, field, value):
    with raises(code, field, value):
        Difficulty(**changes)


def test_more_puzzles_than_there_are():
    with raises("too-large", "count", r"100, with \d+ found"):
        make(100, Difficulty(numbers=(2, 2), largest=3, operations="+", limit=4))
    with raises("unknown-name", "split"):
        make(1, split="valid")
    with raises("format", "numbers"):
        solve((3, 0), 3)
