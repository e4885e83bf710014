"""Countdown by reward, at a size that a CPU can train: from the base model to the tables."""

import json

import pytest

from experiments.countdown_grpo import __main__ as grpo
from experiments.countdown_grpo.table import grpo_table, paired
from experiments.math_small import run as math_run
from experiments.math_small import tasks as math_tasks
from tests.train.tiny import model, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers


def test_from_the_base_to_the_tables(tmp_path, monkeypatch):
    model().save_pretrained(tmp_path / "tiny")
    tokenizer().save_pretrained(tmp_path / "tiny")
    monkeypatch.setattr(math_tasks, "PUZZLES", {"train": 12, "test": 3})
    monkeypatch.setitem(math_tasks.LIMITS, "countdown", 4)
    monkeypatch.setattr(math_run, "HORIZONS", (0, 8))
    monkeypatch.setattr(grpo, "HORIZONS", (0, 8))
    monkeypatch.setitem(grpo.ARMS, "ttc", dict(every=2, heads=4, state_size=8))
    monkeypatch.setattr(grpo, "EXAMPLES", 8)
    monkeypatch.setattr(grpo, "STEPS", 2)
    monkeypatch.setattr(grpo, "POLICY", dict(batch=4, samples=2, max_tokens=4, held_out_every=1))
    where = dict(base=tmp_path / "tiny", work=tmp_path / "work", out=tmp_path / "results", device="cpu", lr=1e-3)
    grpo.main("runs", only=["full-0", "ttc-0"], **where)
    for name, horizons in (("full-0", [None]), ("ttc-0", [0, 8])):
        found = json.loads((tmp_path / "results/runs" / name / "metrics.json").read_text())
        for when in ("start", "end"):
            assert [each["horizon"] for each in found["accuracy"][when]] == horizons
            assert all(each["total"] == 3 for each in found["accuracy"][when])
        log = [json.loads(line) for line in (tmp_path / "results/runs" / name / "log.jsonl").read_text().splitlines()]
        assert [line["step"] for line in log] == [0, 1, 2]
        assert all("held_out" in line for line in log)
    for table in ("gains", "horizons", "curves"):
        assert "|" in grpo_table(table, tmp_path / "results")
    before = (tmp_path / "results/runs/ttc-0/metrics.json").read_bytes()
    grpo.main("runs", only=["ttc-0"], **where)  # which is done
    assert (tmp_path / "results/runs/ttc-0/metrics.json").read_bytes() == before


def test_the_difference_of_gains_is_taken_seed_by_seed():
    def run(arm, seed, start, end):
        accuracy = {when: [dict(horizon=None, rate=rate)] for when, rate in (("start", start), ("end", end))}
        return dict(arm=arm, seed=seed, accuracy=accuracy)

    found = [run("full", 0, 0.3, 0.4), run("ttc", 0, 0.3, 0.5), run("full", 1, 0.2, 0.5), run("ttc", 1, 0.2, 0.54)]
    difference, error = paired(found)
    assert difference == pytest.approx(7)
    assert error == pytest.approx(6)
    assert paired(found[:2]) is None


def test_runs_are_named_before_they_are_made():
    assert list(grpo.runs("runs", 1e-5)) == ["full-0", "ttc-0", "full-1", "ttc-1", "full-2", "ttc-2"]
    assert len(grpo.runs("pilots", None)) == 6
