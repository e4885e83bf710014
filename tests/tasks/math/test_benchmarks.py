"""Where problems come from, and what is wrong with them."""

import json
import re

import pytest

from ttcnet.tasks.math import BENCHMARKS, Problem, benchmark, conversation, problems, system_prompt


def write(path, *rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_the_settings_of_the_paper():
    assert [(each.horizon, each.samples, each.temperature) for each in BENCHMARKS.values()] == [
        (8, 1, 0.0),
        *[(16, 8, 0.6)] * 3,
        (8, 1, 0.0),
    ]


def test_problems_of_a_file(tmp_path):
    rows = [{"problem": "1+1?", "answer": "2"}, {"question": "3*5?", "answer": "3*5 = 15\n#### 15"}]
    rows += [{"problem": "6*7?", "answer": 42.0}]
    found = problems(benchmark(str(write(tmp_path / "own.jsonl", *rows))))
    assert found == [Problem(1, "1+1?", "2"), Problem(2, "3*5?", "15"), Problem(3, "6*7?", "42.0")]
    assert problems(benchmark(str(tmp_path / "own.jsonl")), limit=1) == found[:1]


def test_a_name_is_looked_up_in_the_folder_of_data(tmp_path):
    write(tmp_path / "amc83.jsonl", {"problem": "p", "answer": 1})
    found = benchmark("amc", tmp_path)
    assert (found.samples, problems(found)) == (8, [Problem(1, "p", "1")])
    with pytest.raises(FileNotFoundError, match=re.escape("data must hold math500.jsonl; got " + str(tmp_path))):
        benchmark("math500", tmp_path)
    assert benchmark("math500").source == "HuggingFaceH4/MATH-500"


def test_the_hub_is_asked_with_a_configuration_where_there_is_one(monkeypatch):
    import datasets

    asked = []
    row = {"question": "q", "answer": "so\n#### 7"}
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: asked.append((args, kwargs)) or [row])
    assert problems(benchmark("gsm8k")) == [Problem(1, "q", "7")]
    assert problems(benchmark("aime24")) == [Problem(1, "q", "7")]
    gsm8k = (("openai/gsm8k",), {"split": "test", "name": "main"})
    assert asked == [gsm8k, (("HuggingFaceH4/aime_2024",), {"split": "train"})]


@pytest.mark.parametrize("name", ["math500", "gsm8k"])
def test_without_a_network_a_folder_is_named_as_the_way_out(monkeypatch, name):
    import datasets

    def load_dataset(*_, **__):
        raise ConnectionError("Couldn't reach it")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    said = f"Couldn't reach it. Check the network; or pass --data FOLDER with {BENCHMARKS[name].files[0]}"
    with pytest.raises(ValueError, match=re.escape(said)):
        problems(benchmark(name))


@pytest.mark.parametrize("answer", [None, "", "  ", True, ["5"], "reasoning ####"])
def test_rows_without_an_answer_are_named(tmp_path, answer):
    path = write(tmp_path / "bad.jsonl", {"problem": "p", "answer": "1"}, {"problem": "p", "answer": answer})
    with pytest.raises(ValueError, match=re.escape(f"{path} line 2: no answer")):
        problems(benchmark(str(path)))


@pytest.mark.parametrize("target", ["54", None, 54.0, True])
def test_a_puzzle_that_cannot_be_graded_is_named_before_it_is_asked(tmp_path, target):
    good = {"problem": "p", "answer": "(25 - 7) * 3", "numbers": [3, 7, 25], "target": 54}
    path = write(tmp_path / "puzzles.jsonl", good, good | {"target": target})
    with pytest.raises(ValueError, match=re.escape(f"{path} line 2: numbers and target that are no puzzle")):
        problems(benchmark(str(path)))
    assert problems(benchmark(str(write(path, good))))[0].puzzle == {"numbers": [3, 7, 25], "target": 54}


def test_other_faults(tmp_path):
    path = write(tmp_path / "bad.jsonl", {"answer": "1"}, *[{"problem": "p"}] * 7)
    with pytest.raises(ValueError, match=r"line 1: no problem; .*line 2: no answer; .*and 3 more"):
        problems(benchmark(str(path)))
    with pytest.raises(ValueError, match="at least one row"):
        problems(benchmark(str(write(tmp_path / "empty.jsonl"))))
    with pytest.raises(FileNotFoundError, match="benchmark must be a known name or a file; got 'math501'"):
        benchmark("math501")


def test_prompts():
    assert conversation("1+1?", "") == [{"role": "user", "content": "1+1?"}]
    with_cot, without = (conversation("1+1?", system_prompt(cot))[0]["content"] for cot in (True, False))
    assert "step by step" in with_cot
    assert without.startswith("Solve math problems silently.")
    assert r"\boxed{...}" in without
