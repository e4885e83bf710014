"""experiments/shortest_paths: the task against a search of its own, a small run to its tables, and resumption."""

import json
from itertools import pairwise, permutations

import torch
import typer
from typer.testing import CliRunner

from experiments.shortest_paths.__main__ import main
from experiments.shortest_paths.graphs import LONG, NODES, Questions, draw, solve, tokens
from experiments.shortest_paths.paths import ARMS, KNOB
from experiments.shortest_paths.table import paths_table
from tests.raising import told

FEW = ["--steps", "3", "--batch", "8", "--seeds", "2", "--rates", "1e-3,1e-2", "--pool", "64", "--tested", "64"]


def ways(lengths, start, goal):
    """All paths that visit no node twice, with their lengths."""
    others = [node for node in range(NODES) if node not in (start, goal)]
    for count in range(len(others) + 1):
        for between in permutations(others, count):
            path = (start, *between, goal)
            yield sum(float(lengths[a, b]) for a, b in pairwise(path)), path


def test_the_next_node_is_on_the_shortest_of_all_paths():
    questions = draw(40, seed=3)
    following, edges = solve(questions)
    found = [
        min(ways(*question))[1]
        for question in zip(questions.lengths, questions.start.tolist(), questions.goal.tolist(), strict=True)
    ]
    assert following.tolist() == [path[1] for path in found]
    assert edges.tolist() == [len(path) - 1 for path in found]
    assert len(set(edges.tolist())) > 2


def test_tokens_hold_the_question_and_its_answer():
    given, (x, y) = draw(3000, seed=5), tokens(3000, seed=5)
    nodes = torch.arange(NODES)
    lengths = torch.zeros(3000, NODES, NODES, dtype=torch.float64)
    lengths[:, nodes[:, None] != nodes] = (1.5 * x[:, : NODES * (NODES - 1)].double()).exp()
    start, goal = x[:, -2 * NODES :].unflatten(1, (2, NODES)).argmax(-1).T
    assert torch.equal(solve(Questions(lengths, start, goal))[0], y.argmax(1))
    torch.testing.assert_close(lengths, given.lengths, rtol=1e-5, atol=1e-6)
    assert x.mean(0).abs().max() < 0.1
    assert (x.std(0) - 1).abs().max() < 0.1
    long = tokens(3000, seed=5, long=True)
    assert len(long.x) == int((solve(given)[1] >= LONG).sum()) > 300


def test_from_a_run_to_the_tables(tmp_path):
    app, out = typer.Typer(), tmp_path / "results"
    app.command()(main)
    assert "Not run yet" in paths_table("right", out)
    result = CliRunner().invoke(app, ["--out", str(out), *FEW])
    assert result.exit_code == 0, result.output
    runs = {arm: json.loads((out / arm / "run" / "metrics.json").read_text()) for arm in ARMS}
    assert [each["horizon"] for each in runs["system"]["results"]] == [*KNOB, *KNOB]
    off = next(each for each in runs["system"]["results"] if each["horizon"] == 0)
    assert off["right"] != runs["system"]["results"][3]["right"]
    assert all(len(each["right"]) == 2 for run in runs.values() for each in run["results"])
    tuning = json.loads((out / "mlp" / "tuning" / "metrics.json").read_text())
    assert runs["mlp"]["rate"] == float(min(tuning["validation"], key=tuning["validation"].get))
    for arm in ("mlp", "mlp-2.5"):
        assert runs[arm]["parameters"] >= runs["system"]["parameters"]
    table = paths_table("right", out)
    share = sum(runs["linear"]["results"][0]["right"]) / 2
    assert f"| no layer | 0 | {runs['linear']['rate']:g} | {100 * share:.1f} ±" in table
    assert "1. right more often" in paths_table("answers", out)
    assert "| T = 32 |" in paths_table("horizon", out)
    before = (out / "mlp" / "run" / "metrics.json").read_bytes()
    again = CliRunner().invoke(app, ["--out", str(out), *FEW, "--only", "mlp"])
    assert again.exit_code == 0
    assert (out / "mlp" / "run" / "metrics.json").read_bytes() == before


def test_an_unknown_arm_is_named():
    app = typer.Typer()
    app.command()(main)
    result = CliRunner().invoke(app, ["--out", "nowhere", "--only", "nothing"])
    assert result.exit_code == 1
    assert told(result.output, "unknown-name", "only", "nothing")
