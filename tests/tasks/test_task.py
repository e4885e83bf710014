"""The Task protocol: every task that ttcnet has follows it, and so does a file of one's own."""

import json
from pathlib import Path

import pytest

from tests.evaluate.scripted import Scripted, model_folder, ttcnet
from tests.raising import raises
from ttcnet.evaluate.runs.run import RunConfig, run
from ttcnet.evaluate.runs.storage import generations
from ttcnet.evaluate.runs.summary import summarise
from ttcnet.tasks import NAMES, Example, Task, Verdict, find
from ttcnet.tasks.math import BENCHMARKS
from ttcnet.tasks.task import digest, read_examples

TOY = Path(__file__).with_name("backwards.py")
PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"
WITHOUT_DATA = [name for name in NAMES if name not in BENCHMARKS]


def test_the_toy_is_the_example_of_the_page():
    assert f"```python\n{TOY.read_text()}```\n" in PAGE.read_text()
    assert len(TOY.read_text().splitlines()) < 100


@pytest.mark.parametrize("name", [*WITHOUT_DATA, str(TOY)], ids=[*WITHOUT_DATA, "toy"])
def test_every_task_can_be_asked_and_graded(name):
    task = find(name)
    assert isinstance(task, Task)
    examples = read_examples(task)
    assert [example.number for example in examples] == list(range(1, len(examples) + 1))
    assert digest(examples) == digest(task.examples()) != digest(examples[1:])
    for example in examples[:3]:
        assert task.prompt(example)
        right, empty = task.grade(example, example.answer), task.grade(example, "")
        assert (right.kind, empty.kind) == ("right", "unparsable")
        assert task.same(right.answer, right.answer)
    figures = task.metrics([[right, empty]], 2)
    assert (figures["accuracy"].mean, figures["pass@2"].mean) == (0.5, 1.0)
    assert set(task.metrics([], 1).values()) == {None}


def test_a_task_of_ones_own_is_run_and_summed_up(tmp_path):
    """Answers range from one letter too few to all right; the folder has the prompt as it was put, and the scores."""
    task = find(str(TOY))
    said = iter(["gninnalp", "It is nozirox.", "", "citardauq", "no"])
    config = RunConfig("toy", task, read_examples(task), (None,), 1, 0.0, 8, task.system)
    assert run(Scripted(lambda ask, horizon: next(said)), config, tmp_path) == 0
    lines = generations(tmp_path)
    assert [line["verdict"] for line in lines] == ["right", "wrong", "unparsable", "right", "wrong"]
    assert [line["scores"]["letters"] for line in lines] == [1.0, 6 / 7, 0.0, 1.0, 0.0]
    first = json.loads((tmp_path / "problems.jsonl").read_text().splitlines()[0])
    assert first == {"number": 1, "text": "Spell the word planning backwards.", "answer": "gninnalp"}
    (row,) = summarise(tmp_path, task)["results"]
    assert row["accuracy"] == 0.4
    assert row["letters"] == pytest.approx((2 + 6 / 7) / 5)
    assert row["letters_interval"][0] < row["letters"] < row["letters_interval"][1]


def test_a_task_of_ones_own_on_the_command_line(tmp_path):
    model_folder(tmp_path / "model", room=256)
    words = [TOY, "--model", tmp_path / "model", "--max-tokens", "4"]
    output = ttcnet("eval", "math", *words, "--out", tmp_path / "out", "--samples", "2", "--temperature", "1")
    assert "letters, %" in output
    assert "backwards" in output
    summary = json.loads((tmp_path / "out" / "backwards" / "summary.json").read_text())
    assert summary["settings"]["system"] == find(str(TOY)).system
    assert "math-verify" not in summary["versions"]
    assert "gold: gninnalp" in ttcnet("eval", "show", tmp_path / "out" / "backwards", "--problem", "1")


def test_a_file_without_a_task_is_refused(tmp_path):
    path = tmp_path / "empty.py"
    path.write_text("task = 3\n")
    with raises("bad-task", "benchmark", "empty.py"):
        find(str(path))


def test_an_example_that_cannot_be_graded_is_noticed_before_anything_is_generated():
    class Broken(Task):
        name = "broken"

        def examples(self):
            return [Example(1, "1?", "1"), Example(2, "2?", "two")]

        def grade(self, example, text):
            return Verdict(text == str(int(example.answer)), text or None)

    with pytest.raises(ValueError, match="two"):
        read_examples(Broken())
    assert len(read_examples(Broken(), limit=1)) == 1


def test_the_defaults():
    class Plain(Task):
        name = "plain"

    task, yes, no = Plain(), Verdict(True, "1"), Verdict(False, None)
    assert task.prompt(Example(1, "1?", "1")) == "1?"
    assert (task.samples, task.temperature, task.horizon, task.max_tokens) == (1, 0.0, 8, 4096)
    assert (task.same("1", "1"), task.same("1", "1.0")) == (True, False)
    assert set(task.metrics([[yes], [no]], 1)) == {"accuracy"}
    found = task.metrics([[yes, no], [no, no], [yes]], 2)  # the last has one answer: another failed
    assert found["accuracy"].mean == pytest.approx(0.5)
    assert found["pass@2"].mean == 0.5


def test_runs_of_before_are_resumed():
    """Their settings hold this fingerprint."""
    puzzle = Example(2, "Reach 54.", "(25 - 7) * 3", {"numbers": [3, 7, 25], "target": 54})
    assert digest([Example(1, "1 + 1 = ?", "2"), puzzle]) == "40fcb86a9bd971ed"


BODY = """
from ttcnet.tasks import Example, Task, Verdict


class Own(Task):
    name = "own"
    FIELD

    def examples(self):
        EXAMPLES
        return [Example(1, "1 + 1", "2"), Example(2, "2 + 2", "4")]

    def prompt(self, example):
        PROMPT
        return example.text

    def grade(self, example, text):
        GRADE
        return Verdict(text == example.answer, text or None)

    def metrics(self, verdicts, samples):
        METRICS
        return super().metrics(verdicts, samples)


task = Own()
"""
PLACES = ("FIELD", "EXAMPLES", "PROMPT", "GRADE", "METRICS")
ODD = {  # an odd value at a place, the kind of error, and a part of its message
    "raises": (None, "1 / 0", "ZeroDivisionError"),
    "ends": (None, "raise SystemExit(0)", "SystemExit"),
    "no Python": (None, "def (", "SyntaxError"),
    "no module": (None, "import nosuchmodule", "nosuchmodule"),
    "zeros": (None, "\0", "null bytes"),
    "FIELD": ("FIELD", "1 / 0", "ZeroDivisionError"),
    "name": ("FIELD", "name = '../../x'", "../../x"),
    "packages": ("FIELD", "packages = 5", "must be an iterable"),
    "EXAMPLES": ("EXAMPLES", "1 / 0", "ZeroDivisionError"),
    "end": ("EXAMPLES", "raise SystemExit", "SystemExit"),
    "none": ("EXAMPLES", "return []", "no list of at least one"),
    "nothing": ("EXAMPLES", "return None", "no list of at least one"),
    "others": ("EXAMPLES", "return [1]", "no list of at least one"),
    "counted from 0": ("EXAMPLES", "return [Example(0, 'x', 'y')]", "count from 1"),
    "a number": ("EXAMPLES", "return [Example(1, 5, 'y')]", "TypeError"),
    "data": ("EXAMPLES", "return [Example(1, 'x', 'y', {'set': {1}})]", "not JSON serializable"),
    "PROMPT": ("PROMPT", "1 / 0", "ZeroDivisionError"),
    "no prompt": ("PROMPT", "return None", "None where a text belongs"),
    "GRADE": ("GRADE", "[][0]", "IndexError"),
    "no grade": ("GRADE", "return None", "no Verdict"),
    "a truth": ("GRADE", "return True", "no Verdict"),
    "odd answer": ("GRADE", "return Verdict(True, 5)", "5 where a text belongs"),
    "half a letter": ("GRADE", "return Verdict(True, chr(0xd800))", "where a text belongs"),
    "not finite": ("GRADE", "return Verdict(True, 'x', scores={'a': float('nan')})", "not finite"),
    "odd scores": ("GRADE", "return Verdict(True, 'x', scores={'a': 'b'})", "could not convert"),
}


def own(folder, place, what):
    body = f"{BODY}\n{what}\n" if place is None else BODY.replace(place, what)
    for each in PLACES:
        body = body.replace(f"{each}\n", "pass\n")
    path = folder / "own.py"
    path.write_text(body)
    return path


@pytest.mark.parametrize("way", ODD)
def test_errors_of_user_tasks_are_reported_with_the_reason(way, tmp_path):
    place, what, said = ODD[way]
    with raises("bad-task", value=said):
        read_examples(find(str(own(tmp_path, place, what))))


@pytest.mark.parametrize(
    "field", ["horizon = -1", "samples = 0", "max_tokens = '5'", "temperature = 'x'", "system = 5"]
)
def test_fields_of_a_task_have_their_kinds(field, tmp_path):
    with raises("type" if "'" in field or field == "system = 5" else "too-small", value=field.split()[-1]):
        find(str(own(tmp_path, "FIELD", field)))


def test_a_task_of_ones_own_that_is_whole(tmp_path):
    assert len(read_examples(find(str(own(tmp_path, "FIELD", "pass"))))) == 2


@pytest.mark.parametrize("way", ["raises", "no Python", "EXAMPLES", "none", "GRADE", "no grade"])
@pytest.mark.parametrize("command", ["eval math", "eval scaling", "eval lm --tasks", "grpo --task"])
def test_commands_tell_of_such_tasks(command, way, tmp_path):
    place, what, _ = ODD[way]
    model_folder(tmp_path / "model")
    words = [*command.split(), own(tmp_path, place, what), "--model", tmp_path / "model", "--out", tmp_path / "out"]
    output = ttcnet(*words, code=1)
    assert "Something went wrong" not in output
    assert "bad-task]" in output


@pytest.mark.parametrize(
    ("place", "what", "said"),
    [("GRADE", "if text: return None", "no Verdict"), ("GRADE", "if text: 1 / 0", "ZeroDivisionError"),
     ("METRICS", "1 / 0", "ZeroDivisionError"), ("METRICS", "return {'accuracy': 5}", "no Mean")],
)  # fmt: skip
def test_errors_after_the_answers_are_reported_too(place, what, said, tmp_path):
    task = find(str(own(tmp_path, place, what)))
    config = RunConfig("own", task, read_examples(task), (1,), 1, 0.0, 64, "")
    with raises("bad-task", "task", said):
        run(Scripted(lambda ask, _: "words"), config, tmp_path / "run")
        summarise(tmp_path / "run", task)


def test_numbers_of_numpy_are_stored(tmp_path):
    what = "import numpy; return Verdict(numpy.True_, 'x', scores={'a': numpy.float32(0.5), 'b': True})"
    task = find(str(own(tmp_path, "GRADE", what)))
    config = RunConfig("own", task, read_examples(task), (1,), 1, 0.0, 64, "")
    run(Scripted(lambda ask, _: "words"), config, tmp_path / "run")
    assert [line["scores"] for line in generations(tmp_path / "run")] == [{"a": 0.5, "b": 1.0}] * 2
