"""Ways to spend compute: choosing among samples, and the table of all of them."""

import csv
import json

import pytest

from tests.evaluate.scripted import model_folder, sums, ttcnet
from tests.fake_server import answer, serving
from ttcnet.evaluate.analysis.scaling_table import sample_rows
from ttcnet.evaluate.analysis.selection import Vote, best_of, by_problem
from ttcnet.tasks.jsonl import JsonLines

TASK = JsonLines("sums.jsonl")


def line(sample, answer, verdict="wrong", logprob=-1.0, problem=1):
    told = dict(problem=problem, sample=sample, horizon=8, answer=answer, verdict=verdict, mean_logprob=logprob)
    return told | dict(new_tokens=10, seconds=0.5, note="")


def test_best_of_n_is_the_likeliest():
    samples = [line(0, "1", logprob=-0.5), line(1, "2", logprob=-0.2), line(2, "3", logprob=-0.9)]
    assert best_of(samples)["answer"] == "2"
    assert best_of(samples[:1])["answer"] == "1"
    with pytest.raises(ValueError, match="best-of-n must know the likelihood"):
        best_of([line(0, "1", logprob=None)])
    nothing = line(0, None, logprob=None) | {"new_tokens": 0}
    assert best_of([nothing, *samples[2:]])["answer"] == "3"
    assert best_of([nothing]) == nothing


def test_votes_count_equal_answers_together():
    said = ["3", r"\frac{1}{2}", "0.5", None, "3", r"\frac{2}{4}"]
    samples = [line(sample, answer) for sample, answer in enumerate(said)]
    vote = Vote({1: samples}, TASK)
    assert vote.winner(samples)["sample"] == 1  # a half, in three words
    assert vote.winner(samples[:5])["sample"] == 0  # two against two: the earlier one
    assert vote.winner(samples[3:4])["sample"] == 3
    assert vote.winner([line(0, None)])["answer"] is None


def test_rows_of_samples():
    def problem(number, said):
        return [line(k, text, "right" if text == "7" else "wrong", -k, number) for k, text in enumerate(said)]

    lines = problem(1, ["7", "5", "7", "5"]) + problem(2, ["5", "7", "7", "1"])
    lines.append(line(3, None, "failed", None, 3))
    rows = sample_rows(lines, True, ("best-of-n", "self-consistency"), 4, TASK)
    assert [(row.method, row.n, row.accuracy) for row in rows] == [
        ("best-of-n", 1, 0.5),
        ("best-of-n", 2, 0.5),
        ("best-of-n", 4, 0.5),
        ("self-consistency", 1, 0.5),
        ("self-consistency", 2, 0.5),
        ("self-consistency", 4, 1.0),
    ]
    assert (rows[2].tokens, rows[2].seconds, rows[2].failed) == (45.0, 2.25, 1)
    assert list(by_problem(lines)) == [1, 2]


def test_the_table_of_a_model(tmp_path):
    file = sums(tmp_path / "sums.jsonl", 3)
    model_folder(tmp_path / "model", ttc=True, room=512)
    words = ["eval", "scaling", file, "--model", tmp_path / "model", "--out", tmp_path / "out", "--max-tokens", "10"]
    words += ["--horizons", "0,2", "--n", "2", "--depth", "1", "--breadth", "1"]
    output = ttcnet(*words)
    for word in ("horizon", "best-of-n", "self-consistency", "tree"):
        assert word in output
    rows = list(csv.DictReader((tmp_path / "out" / "scaling.csv").read_text().splitlines()))
    assert len(rows) == 2 * (2 + 2 * 2 + 1)
    assert [row["horizon"] for row in rows if row["method"] == "horizon"] == ["0", "2"] * 2
    assert {row["horizon"] for row in rows if row["method"] != "horizon"} == {"8"}
    content = json.loads((tmp_path / "out" / "scaling.json").read_text())
    assert len(content["rows"]) == len(rows)
    assert "silently" in content["runs"]["no-cot/tree"]["system"]
    assert (tmp_path / "out" / "scaling.png").stat().st_size > 10_000
    before = (tmp_path / "out" / "cot" / "tree" / "generations.0.jsonl").read_text()
    ttcnet(*words)  # all is there
    assert (tmp_path / "out" / "cot" / "tree" / "generations.0.jsonl").read_text() == before


def test_a_server_can_do_all_but_the_horizon(tmp_path):
    def script(request, _):
        last = request["messages"][-1]
        if last["role"] == "assistant":
            assert request["continue_final_message"]
        return answer("5" if last["content"].startswith("Problem:") else r"so \boxed{2}", logprob=-0.3)

    file = sums(tmp_path / "sums.jsonl", 2)
    with serving(script) as (url, seen):
        words = ["eval", "scaling", file, "--server", url, "--out", tmp_path / "out", "--n", "2", "--cot", "on"]
        words += ["--system", "Think."]
        ttcnet(*words)
        assert seen[0]["messages"][0] == {"role": "system", "content": "Think."}
        assert "there are no TTC layers here" in ttcnet(*words, "--horizon", "8", code=1)
        assert "there are no TTC layers here" in ttcnet(*words, "--method", "horizon", code=1)
    rows = list(csv.DictReader((tmp_path / "out" / "scaling.csv").read_text().splitlines()))
    assert [row["method"] for row in rows] == ["horizon", *["best-of-n"] * 2, *["self-consistency"] * 2, "tree"]
    assert {row["accuracy"] for row in rows} == {"0.5"}
    assert {row["horizon"] for row in rows} == {""}


def test_a_server_without_likelihoods_is_told_at_once(tmp_path):
    file = sums(tmp_path / "sums.jsonl", 6)
    with serving(lambda *_: answer(r"\boxed{2}")) as (url, seen):
        words = ["eval", "scaling", file, "--server", url, "--out", tmp_path / "out", "--n", "4", "--cot", "on"]
        assert "best-of-n must know the likelihood" in ttcnet(*words, "--batch", "1", code=1)
        assert len(seen) < 24


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--method", "magic"], "method must be one of horizon, best-of-n"),
        (["--cot", "maybe"], "cot must be on, off or both"),
        (["--horizons", "1;2"], "horizons must be a number"),
    ],
)
def test_bad_input(tmp_path, words, said):
    file = sums(tmp_path / "sums.jsonl", 2)
    assert said in ttcnet("eval", "scaling", file, "--model", "x", "--out", tmp_path / "out", *words, code=1)
