"""A run: every answer kept and graded, resumed to the batch, split over processes, summed up."""

import json

import pytest

from tests.evaluate.scripted import Scripted, write
from tests.raising import raises
from ttcnet.evaluate.engines.base import Answer
from ttcnet.evaluate.runs.run import RunConfig, run, seed_of
from ttcnet.evaluate.runs.storage import generations
from ttcnet.evaluate.runs.summary import summarise, table
from ttcnet.tasks import Example, find
from ttcnet.tasks.countdown import Difficulty, make, row
from ttcnet.tasks.jsonl import JsonLines
from ttcnet.tasks.task import read_examples
from ttcnet.terminal.console import show

EXAMPLES = [Example(number, f"{number} + 1 = ?", str(number + 1)) for number in range(1, 8)]
TASK = JsonLines("sums.jsonl")  # which is not read: the examples are there


def config(**changes):
    settings = dict(name="sums", task=TASK, examples=EXAMPLES, horizons=(None,), samples=1, temperature=0.0)
    return RunConfig(**settings | dict(max_tokens=16, system="Think.") | changes)


def number_of(ask):
    return int(ask.messages[-1]["content"].split()[0])


def right(ask, horizon):
    return rf"It is $\boxed{{{number_of(ask) + 1}}}$."


def test_every_answer_is_kept_with_all_that_made_it(tmp_path):
    told = []
    engine = Scripted(right)
    assert run(engine, config(), tmp_path, report=lambda done, lines: told.append(done)) == 0
    lines = generations(tmp_path)
    assert [line["problem"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]
    assert lines[2] | {"seconds": 0} == {
        "problem": 3, "sample": 0, "horizon": None, "seed": seed_of(0, 3, 0), "seconds": 0,
        "text": r"It is $\boxed{4}$.", "prompt_tokens": 5, "new_tokens": 3, "finish": "stop", "mean_logprob": -1.0,
        "note": "", "answer": "4", "verdict": "right",
    }  # fmt: skip
    assert engine.asked[0].messages[0] == {"role": "system", "content": "Think."}
    assert told == [0, 1.5, 3, 4.5, 6, 6.5, 7]


def test_a_killed_run_resumes(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(Scripted(right, breaks=1), config(), tmp_path)
    file = tmp_path / "generations.0.jsonl"
    whole = file.read_text()
    file.write_text(whole + whole[:50])  # killed while it was writing
    engine = Scripted(right)
    assert run(engine, config(), tmp_path) == 0
    assert [number_of(ask) for ask in engine.asked] == [4, 5, 6, 7]
    assert len(file.read_text().splitlines()) == len(generations(tmp_path)) == 7


def test_other_settings_are_refused(tmp_path):
    run(Scripted(right), config(), tmp_path)
    with raises("settings-changed", "settings", r"max_tokens.*\(16, 17\)"):
        run(Scripted(right), config(max_tokens=17), tmp_path)
    with raises("settings-changed", "settings", "data"):
        run(Scripted(right), config(examples=[Example(1, "1 + 1 = ?", "3"), *EXAMPLES[1:]]), tmp_path)


def test_the_settings_have_provenance_and_older_folders_lack_it(tmp_path):
    run(Scripted(right), config(), tmp_path)
    file = tmp_path / "settings.json"
    record = json.loads(file.read_text())
    assert {"command", "commit", "versions", "machine"} <= record.pop("provenance").keys()
    assert "provenance" not in summarise(tmp_path, TASK)["settings"]
    file.write_text(json.dumps(record))
    assert run(Scripted(right), config(), tmp_path) == 0
    with raises("settings-changed", "settings", r"max_tokens.*\(16, 17\)"):
        run(Scripted(right), config(max_tokens=17), tmp_path)


def test_a_damaged_line_is_named(tmp_path):
    run(Scripted(right), config(), tmp_path)
    file = tmp_path / "generations.0.jsonl"
    file.write_text("nonsense\n" + file.read_text())
    with raises("damaged", None, "line 1: 'nonsense'"):
        run(Scripted(right), config(), tmp_path)
    file.write_bytes(file.read_bytes().replace(b"nonsense", b"\xff"))
    with raises("damaged", None, "line 1"):
        generations(tmp_path)


def test_a_line_that_is_cut_within_a_letter_is_passed_over(tmp_path):
    run(Scripted(right), config(), tmp_path)
    file = tmp_path / "generations.1.jsonl"  # of another process
    file.write_bytes('{"text": "½'.encode()[:-1])
    assert len(generations(tmp_path)) == 7
    assert run(Scripted(right), config(), tmp_path) == 0


def test_the_table_is_whole_however_narrow_the_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    run(Scripted(right), config(name="a-benchmark-with-a-name", samples=8, temperature=0.6), tmp_path)
    show(table([summarise(tmp_path, TASK)]))
    text = capsys.readouterr().out
    assert "…" not in text
    assert "a-benchmark-with-a-name" in text


def test_failed_samples_are_neither_right_nor_wrong_and_are_tried_again(tmp_path):
    def flaky(ask, horizon):
        return Answer("", None, None, "failed", note="status 500") if number_of(ask) < 3 else right(ask, horizon)

    assert run(Scripted(flaky), config(), tmp_path) == 0
    (row,) = summarise(tmp_path, TASK)["results"]
    assert (row["failed"], row["right"], row["accuracy"]) == (2, 5, 1.0)
    assert generations(tmp_path)[0]["verdict"] == "failed"
    engine = Scripted(right)
    assert run(engine, config(), tmp_path) == 0
    assert [number_of(ask) for ask in engine.asked] == [1, 2]
    (row,) = summarise(tmp_path, TASK)["results"]
    assert (row["failed"], row["right"], row["samples"]) == (0, 7, 7)


def test_horizons_and_samples(tmp_path):
    """Right at horizon 4 in the first of two samples, never at horizon 0; the same seeds at both."""

    def say(ask, horizon):
        first = ask.seed == seed_of(0, number_of(ask), 0)
        return right(ask, horizon) if horizon == 4 and first else r"\boxed{0}"

    engine = Scripted(say, size=100)
    many = config(horizons=(0, 4), samples=2, temperature=0.6)
    assert run(engine, many, tmp_path) == 0
    assert [options["horizon"] for options in engine.options] == [0, 4]
    assert len(engine.asked) == 28
    assert len({ask.seed for ask in engine.asked}) == 14
    low, high = summarise(tmp_path, TASK)["results"]
    assert (low["horizon"], low["accuracy"], low["pass@2"]) == (0, 0.0, 0.0)
    assert (high["horizon"], high["accuracy"], high["pass@2"]) == (4, 0.5, 1.0)
    assert high["pass@2_interval"][1] == pytest.approx(1.0)


def test_two_processes_share_the_work(tmp_path):
    first, second = Scripted(right), Scripted(right)
    assert run(first, config(), tmp_path, rank=0, world=2) == 3
    assert run(second, config(), tmp_path, rank=1, world=2) == 0
    assert len(first.asked) == 4
    assert len(second.asked) == 3
    assert len(generations(tmp_path)) == 7
    # one process resumes what two have made
    alone = Scripted(right)
    assert run(alone, config(), tmp_path) == 0
    assert alone.asked == []


def test_the_summary_counts_and_lists(tmp_path):
    said = {1: r"\boxed{2}", 2: "", 3: r"\boxed{9}", 4: Answer("it is 5 or", 5, 16, "length")}
    run(Scripted(lambda ask, _: said.get(number_of(ask), "I do not know")), config(), tmp_path)
    content = summarise(tmp_path, TASK)
    (row,) = content["results"]
    assert (row["right"], row["wrong"], row["unparsable"], row["truncated"]) == (2, 1, 4, 1)
    assert row["unparsable_answers"] == [[2, 0], [5, 0], [6, 0], [7, 0]]
    assert row["accuracy"] == pytest.approx(2 / 7)
    assert row["accuracy_interval"] == pytest.approx([0.0822, 0.6411], abs=1e-4)
    assert row["new_tokens"] == 1 + 0 + 1 + 16 + 4 * 3
    assert content["versions"]["antlr4-python3-runtime"] == "4.13.2"
    assert json.loads((tmp_path / "summary.json").read_text()) == content


def test_temperatures_are_finite():
    with raises("out-of-range", "temperature", "inf"):
        config(temperature=float("inf"))


def test_several_greedy_samples_are_pointless():
    with raises("out-of-range", "temperature"):
        config(samples=8)


def test_problems_with_half_a_letter_are_refused():
    with raises("bad-data", "problem 2 of sums", r"'1 \\ud83d'"):
        config(examples=[Example(1, "1", "1"), Example(2, "1 \ud83d", "1")])


def test_puzzles_of_countdown_are_graded_by_their_numbers(tmp_path):
    """Their answer, an expression, does not serve: its value is the target, which the problem names."""
    rows = [row(puzzle) for puzzle in make(3, Difficulty(), split="test")]
    file = write(tmp_path / "puzzles.jsonl", *rows)
    task = find(str(file))
    solutions = {one["problem"]: one["solution"] for one in rows}
    said = iter([solutions[rows[0]["problem"]], f"\\boxed{{{rows[1]['target']}}}", ""])
    puzzles = config(task=task, examples=read_examples(task))
    run(Scripted(lambda ask, horizon: next(said)), puzzles, tmp_path / "out")
    lines = generations(tmp_path / "out")
    assert [line["verdict"] for line in lines] == ["right", "wrong", "unparsable"]
    assert "is not given" in lines[1]["note"]
