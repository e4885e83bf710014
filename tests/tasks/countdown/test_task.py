"""Countdown as a task: puzzles of the test split, votes by value."""

from ttcnet.tasks.countdown import Difficulty, grade, make
from ttcnet.tasks.countdown.task import Countdown


def test_puzzles_are_of_the_test_split():
    examples = Countdown(20, Difficulty(numbers=(3, 3)), seed=1).examples()
    puzzles = make(20, Difficulty(numbers=(3, 3)), seed=1, split="test")
    assert [(example.data["numbers"], example.data["target"]) for example in examples] == [
        (list(puzzle.numbers), puzzle.target) for puzzle in puzzles
    ]
    assert all(grade(example.data, example.answer).right for example in examples)


def test_expressions_of_one_value_are_the_same_answer():
    task = Countdown()
    assert task.same("(25 - 7) * 3", "3 * (25 - 7)")
    assert not task.same("25 - 7", "25 + 7")
    assert task.same("half of it", "half of it")
    assert not task.same("half of it", "1 / 0")
