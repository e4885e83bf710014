"""JSON Lines files as tasks: content of rows, errors in them, grading."""

import json
import re

import pytest

from tests.raising import raises
from ttcnet.tasks import Example, find
from ttcnet.tasks.task import read_examples


def write(path, *rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_problems_of_a_file(tmp_path):
    rows = [{"problem": "1+1?", "answer": "2"}, {"question": "3*5?", "answer": "3*5 = 15\n#### 15"}]
    rows += [{"problem": "6*7?", "answer": 42.0}]
    found = find(str(write(tmp_path / "own.jsonl", *rows))).examples()
    assert found == [Example(1, "1+1?", "2"), Example(2, "3*5?", "15"), Example(3, "6*7?", "42.0")]
    assert read_examples(find(str(tmp_path / "own.jsonl")), limit=1) == found[:1]


@pytest.mark.parametrize("answer", [None, "", "  ", True, ["5"], "reasoning ####"])
def test_rows_without_an_answer_are_named(tmp_path, answer):
    path = write(tmp_path / "bad.jsonl", {"problem": "p", "answer": "1"}, {"problem": "p", "answer": answer})
    with raises("bad-data", "data", re.escape(f"{path} line 2: no answer")):
        find(str(path)).examples()


@pytest.mark.parametrize("target", ["54", None, 54.0, True])
def test_a_puzzle_that_cannot_be_graded_is_named_before_it_is_asked(tmp_path, target):
    good = {"problem": "p", "answer": "(25 - 7) * 3", "numbers": [3, 7, 25], "target": 54}
    path = write(tmp_path / "puzzles.jsonl", good, good | {"target": target})
    with raises("bad-data", "data", re.escape(f"{path} line 2: numbers and target that are no puzzle")):
        find(str(path)).examples()
    assert find(str(write(path, good))).examples()[0].data == {"numbers": [3, 7, 25], "target": 54}


def test_other_faults(tmp_path):
    path = write(tmp_path / "bad.jsonl", {"answer": "1"}, *[{"problem": "p"}] * 7)
    with raises("bad-data", "data", "line 1: no problem; .*line 2: no answer; .*and 3 more"):
        find(str(path)).examples()
    with raises("no-data", "data"):
        find(str(write(tmp_path / "empty.jsonl"))).examples()
    with raises("not-found", "benchmark", "'math501'"):
        find("math501")


def test_puzzles_are_graded_by_their_numbers_and_all_else_as_mathematics(tmp_path):
    puzzle = {"problem": "p", "answer": "(25 - 7) * 3", "numbers": [3, 7, 25], "target": 54}
    task = find(str(write(tmp_path / "both.v2.jsonl", puzzle, {"problem": "q", "answer": "54"})))
    assert task.name == "both"
    one, two = task.examples()
    assert task.grade(one, r"\boxed{3 * (25 - 7)}").right
    assert task.grade(one, r"\boxed{54}").note == "54 is not given"
    assert task.grade(two, r"\boxed{54.0}").right
