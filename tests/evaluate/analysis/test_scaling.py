"""Ways to spend compute: the runs of all methods, and their table."""

import csv
import json

import pytest

from tests.evaluate.analysis.test_selection import line
from tests.evaluate.scripted import model_folder, sums, ttcnet
from tests.fake_server import answer, serving
from tests.raising import told
from ttcnet.evaluate.analysis.scaling_table import sample_rows
from ttcnet.evaluate.analysis.selection import by_problem
from ttcnet.tasks.jsonl import JsonLines

TASK = JsonLines("sums.jsonl")


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
        assert told(ttcnet(*words, "--horizon", "8", code=1), "no-layers", "horizon", "8")
        assert told(ttcnet(*words, "--method", "horizon", code=1), "no-layers", "method horizon")
    rows = list(csv.DictReader((tmp_path / "out" / "scaling.csv").read_text().splitlines()))
    assert [row["method"] for row in rows] == ["horizon", *["best-of-n"] * 2, *["self-consistency"] * 2, "tree"]
    assert {row["accuracy"] for row in rows} == {"0.5"}
    assert {row["horizon"] for row in rows} == {""}


def test_a_server_without_likelihoods_is_an_error_at_once(tmp_path):
    file = sums(tmp_path / "sums.jsonl", 6)
    with serving(lambda *_: answer(r"\boxed{2}")) as (url, seen):
        words = ["eval", "scaling", file, "--server", url, "--out", tmp_path / "out", "--n", "4", "--cot", "on"]
        assert told(ttcnet(*words, "--batch", "1", code=1), "conflict", "best-of-n")
        assert len(seen) < 24


@pytest.mark.parametrize(
    ("words", "code", "field"),
    [
        (["--method", "magic"], "unknown-name", "method"),
        (["--cot", "maybe"], "unknown-name", "cot"),
        (["--horizons", "1;2"], "format", "horizons"),
    ],
)
def test_bad_input(tmp_path, words, code, field):
    file = sums(tmp_path / "sums.jsonl", 2)
    said = ttcnet("eval", "scaling", file, "--model", "x", "--out", tmp_path / "out", *words, code=1)
    assert told(said, code, field)
