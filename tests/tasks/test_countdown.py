"""Countdown: puzzles that can be solved, a solver that misses nothing, a grader that is not fooled."""

import json
import operator
from collections import Counter
from fractions import Fraction
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from tests.raising import raises, told
from ttcnet.cli import app
from ttcnet.storage.reading import rows
from ttcnet.tasks.chat import conversation
from ttcnet.tasks.countdown import Difficulty, Verdict, grade, make, row, solutions, solve
from ttcnet.tasks.countdown.expressions import read

ROW = {"numbers": [3, 7, 25, 7], "target": 54}
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


def test_the_command(tmp_path):
    out = tmp_path / "deep" / "puzzles.jsonl"
    done = CliRunner().invoke(app, ["countdown", "make", "--out", str(out), "--count", "5", "--numbers", "4"])
    assert done.exit_code == 0, done.output
    assert "5 puzzles are in" in done.output
    made = [each.content for each in rows(str(out))]
    assert [json.loads(line) for line in out.read_text().splitlines()] == made
    assert all(len(each["numbers"]) == 4 and grade(each, each["solution"]).right for each in made)
    assert conversation(made[0])[1]["content"] == made[0]["solution"]
    for wrong, code, field in ((["--numbers", "3-"], "format", "numbers"), (["--split", "x"], "unknown-name", "split")):
        failed = CliRunner().invoke(app, ["countdown", "make", "--out", str(tmp_path / "new.jsonl"), *wrong])
        assert failed.exit_code == 1
        assert told(failed.output, code, field)


@pytest.mark.parametrize("text", ["(" * 199 + "3" + ")" * 199, "(" * 400, "3" + "*(3" * 99])
def test_deep_brackets_are_wrong_and_nothing_else(text):
    verdict = grade(ROW, text)
    assert not verdict.right
    assert "brackets are more than 50 deep" in verdict.note
    assert grade(ROW, "(" * 40 + "25 - 7" + ")" * 40 + " * 3").right


def test_a_file_that_is_there_is_not_replaced(tmp_path):
    out = tmp_path / "puzzles.jsonl"
    out.write_text("mine")
    for path in (out, tmp_path):
        done = CliRunner().invoke(app, ["countdown", "make", "--count", "1", "--out", str(path)])
        assert done.exit_code == 1
        assert told(done.output, "exists", "out", str(path))
    assert out.read_text() == "mine"


def test_targets_that_the_solver_does_not_look_for():
    with raises("too-small", "target", "-2"):
        solve((3, 5), -2)
    with raises("format", "numbers"):
        solve((3.5, 1), 2)
