"""ttcnet bench full-size, at a tiny shape on the CPU."""

import csv
import math

import pytest
from typer.testing import CliRunner

from tests.raising import told
from ttcnet.bench import full_size
from ttcnet.bench.full_size import ARMS, SHAPES, measure_full_size, points
from ttcnet.cli import app

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and peft
TINY = ["bench", "full-size", "--device", "cpu", "--shape", "tiny", "--length", "16", "--steps", "2"]


@pytest.mark.slow
def test_every_arm_is_measured_and_a_finished_one_is_kept(tmp_path):
    out = tmp_path / "full.csv"
    first = CliRunner().invoke(app, [*TINY, "--out", str(out)])
    assert first.exit_code == 0, first.output
    lines = out.read_text().splitlines()
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["arm"] for row in rows] == list(ARMS["tiny"])
    for row in rows:
        assert float(row["step_ms"]) > 0
        assert float(row["predicted_gb"]) > 0
        assert float(row["predicted_ms"]) > 0
        assert float(row["tokens_per_second"]) == pytest.approx(16e3 / float(row["step_ms"]))
        assert math.isnan(float(row["peak_gb"])), "it is measured on a GPU alone"
    assert [float(row["of_time_without_ttc"]) == 1 for row in rows] == [True, False, False, True, False]
    out.write_text("\n".join(lines[:3]) + "\n")
    again = CliRunner().invoke(app, [*TINY, "--out", str(out), "--resume"])
    assert again.exit_code == 0, again.output
    kept = out.read_text().splitlines()
    assert kept[:3] == lines[:3]
    assert len(kept) == len(lines)
    assert "base with LoRA:" not in again.output


def test_arms_that_do_not_fit_together_come_one_after_the_other(monkeypatch):
    seen = []
    monkeypatch.setattr(full_size, "_groups", lambda arms: [[arm] for arm in arms])
    monkeypatch.setattr(full_size, "_build", lambda arm: seen.append(arm.point.arm))
    monkeypatch.setattr(full_size, "_seconds", lambda arm: 2.0 if "inserted" in arm.point.arm else 1.0)
    chosen = points("tiny", 4, 16, True, "cpu")[3:]
    found = {point.arm: figures for point, figures in measure_full_size(chosen, 3, 60)}
    assert seen == list(found) == ["whole model", "whole model and inserted"]
    assert found["whole model and inserted"]["of_time_without_ttc"] == 2


def test_arms_fit_their_shapes():
    assert set(ARMS) == set(SHAPES)


def test_an_unknown_shape():
    output = CliRunner().invoke(app, ["bench", "full-size", "--device", "cpu", "--shape", "9B"]).output
    assert told(output, "unknown-name", "shape")
