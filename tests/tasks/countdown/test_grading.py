"""The grader is not fooled by any text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.raising import raises
from ttcnet.tasks.countdown import grade, solutions

ROW = {"numbers": [3, 7, 25, 7], "target": 54}


@pytest.mark.parametrize(
    ("text", "right", "reason"),
    [
        (r"so \boxed{(25 - 7) * 3}.", True, "it makes 54"),
        ("25 - 7 = 18\n(25 - 7) * 3", True, "it makes 54"),
        (r"\boxed{1} no: \boxed{3 × (25 − 7) = 54}", True, "it makes 54"),
        (r"\boxed{3 \times \left(25 - 7\right)}", True, "it makes 54"),
        ("7 * 7 + 25 / 5", False, "5 is not given"),
        ("(25 + 7 / 7 + 1) * 3", False, "1 is not given"),
        ("(25 - 7) * 3 + 3 - 3", False, "3 is used 3 times and given once"),
        ("7 * 7 * 7 - 25", False, "7 is used 3 times and given 2 times"),
        ("(25 - 7) * 3 = 55", False, "it says that it makes something other than 54"),
        ("25 + 7", False, "it makes 32, not 54"),
        ("25 / 3 + 7", False, "it makes 46/3, not 54"),
        ("3 / (7 - 7)", False, "it divides by zero"),
        ("54", False, "54 is not given"),
        ("", False, "there is no answer"),
        (" \n\n", False, "there is no answer"),
        (r"\boxed{(25 - 7) * 3", False, "there is no answer"),
        (r"\boxed{}", False, "there is no answer"),
        ("(25 - 7) * 3 + 0 * 2", False, "0 is not given"),
        ("-7 + 25", False, "it is no expression: '-' stands where a number belongs"),
        ("25 7 3", False, "it is no expression: two numbers stand side by side"),
        ("3(25 - 7)", False, "it is no expression: '(' stands where an operation belongs"),
        ("(25 - 7 * 3", False, "it is no expression: a bracket is not closed"),
        ("25 - 7) * 3", False, "it is no expression: ')' stands where an operation belongs"),
        ("25 -", False, "it is no expression: 'the end' stands where a number belongs"),
        ("25 ** 3", False, "it is no expression: '*' stands where a number belongs"),
        ("__import__('os')", False, "it is no expression: it holds '_'"),
        ("2⁵ - 7", False, "it is no expression: it holds '⁵'"),
        ("25.0 * 3", False, "it is no expression: it holds '.'"),
        ("(" * 500, False, "it is no expression: it has 500 characters, more than 400"),
        ("25 - 7 = = 18", False, "it is no expression: 'the end' stands where a number belongs"),
    ],
)
def test_verdicts(text, right, reason):
    found = grade(ROW, text)
    assert (found.right, found.note) == (right, reason)
    assert (found.kind == "unparsable") == (reason == "there is no answer")


def test_fractions_on_the_way_are_fine():
    assert grade({"numbers": [8, 3, 8, 3], "target": 24}, r"\boxed{8 / (3 - 8 / 3)}").right
    assert "6 / (1 - 3 / 4)" in [found.expression for found in solutions((1, 3, 4, 6), 24)]


@given(st.text(alphabet="0123456789+-*/() =\\boxed{}×$\n", max_size=80))
def test_no_text_breaks_the_grader(text):
    verdict = grade(ROW, text)
    assert verdict.note


def test_rows_without_a_puzzle_are_refused():
    with raises("bad-data", "row"):
        grade({"answer": "3"}, "3")


@pytest.mark.parametrize("text", ["(" * 199 + "3" + ")" * 199, "(" * 400, "3" + "*(3" * 99])
def test_deep_brackets_are_wrong_and_nothing_else(text):
    verdict = grade(ROW, text)
    assert not verdict.right
    assert "brackets are more than 50 deep" in verdict.note
    assert grade(ROW, "(" * 40 + "25 - 7" + ")" * 40 + " * 3").right
