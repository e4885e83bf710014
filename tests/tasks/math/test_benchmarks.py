"""Benchmarks of the paper: their settings, and where their problems come from."""

import json
import re

import pytest

from tests.raising import raises
from ttcnet.tasks import Example, find
from ttcnet.tasks.math import BENCHMARKS


def write(path, *rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_the_settings_of_the_paper():
    assert [(each.horizon, each.samples, each.temperature) for each in BENCHMARKS.values()] == [
        (8, 1, 0.0),
        *[(16, 8, 0.6)] * 3,
        (8, 1, 0.0),
    ]


def test_a_name_is_looked_up_in_the_folder_of_data(tmp_path):
    write(tmp_path / "amc83.jsonl", {"problem": "p", "answer": 1})
    found = find("amc", tmp_path)
    assert (found.samples, found.examples()) == (8, [Example(1, "p", "1")])
    with raises("not-found", "data", re.escape(str(tmp_path))):
        find("math500", tmp_path)
    assert find("math500").source == "HuggingFaceH4/MATH-500"


def test_the_hub_is_asked_with_a_configuration_where_there_is_one(monkeypatch):
    import datasets

    asked = []
    row = {"question": "q", "answer": "so\n#### 7"}
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: asked.append((args, kwargs)) or [row])
    assert find("gsm8k").examples() == [Example(1, "q", "7")]
    assert find("aime24").examples() == [Example(1, "q", "7")]
    gsm8k = (("openai/gsm8k",), {"split": "test", "name": "main"})
    assert asked == [gsm8k, (("HuggingFaceH4/aime_2024",), {"split": "train"})]


@pytest.mark.parametrize("name", ["math500", "gsm8k"])
def test_without_a_network_a_folder_is_named_as_the_way_out(monkeypatch, name):
    import datasets

    def load_dataset(*_, **__):
        raise ConnectionError("Couldn't reach it")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with raises("bad-data", "data", "Couldn't reach it") as found:
        find(name).examples()
    assert f"--data FOLDER with {BENCHMARKS[name].files[0]}" in found.value.remedy


def test_prompts():
    task = BENCHMARKS["math500"]
    assert task.prompt(Example(1, "1+1?", "2")) == "1+1?"
    assert "step by step" in task.system
    assert task.system_no_cot.startswith("Solve math problems silently.")
    assert r"\boxed{...}" in task.system_no_cot


def test_answers_are_graded_and_compared_as_mathematics():
    task = BENCHMARKS["math500"]
    example = Example(1, "How large is it?", "3/4")
    texts = (r"It is $\boxed{75\%}$.", r"\boxed{75}", "No idea.")
    assert [task.grade(example, text).kind for text in texts] == ["right", "wrong", "unparsable"]
    assert task.same(r"\frac{1}{2}", "0.5")
    assert not task.same("1", "2")
