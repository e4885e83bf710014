"""`ttcnet bench forms`, with the emulator in a GPU's place: slow, but the same kernels."""

import math

import pytest
from typer.testing import CliRunner

from tests.lqr import emulator
from tests.raising import told
from ttcnet import command_options as options
from ttcnet.bench import forms
from ttcnet.cli.bench import _form_line, app
from ttcnet.lqr.kernels.fused_forms import FORMS


@pytest.mark.skipif(emulator.COMPILER is None, reason="the emulator needs g++")
def test_every_form_is_measured_against_plain():
    found = dict(forms.measure_forms((16, 20, 4, 3), "cpu", "trained", rounds=3, run=emulator.run))
    assert [point.form for point in found] == list(FORMS)
    for point, outcome in found.items():
        assert outcome["error_u"] < 1e-5
        assert outcome["error_worst_gradient"] < 1e-4
        assert outcome["forward_ms"] > 0
        assert outcome["both_ms"] > 0
        assert 0 < outcome["both_of_limit"] < 1
        assert outcome["both_ratio_p20"] <= outcome["both_ratio"] <= outcome["both_ratio_p80"]
        if point.form == "plain":
            assert outcome["both_ratio"] == outcome["forward_ratio"] == 1
        text = _form_line(point.form, (16, 20, 4, 3), outcome)
        assert text.startswith(f"16x20x4x3, {point.form}: forward ")


def test_ratios_are_taken_within_a_round():
    """On a machine that gets slower all the time."""
    plain, half = [1.0, 2.0, 3.0, 4.0], [0.5, 1.0, 1.5, 2.0]
    found = forms._summary({"plain": (plain, plain), "other": (half, half)}, "other", [0.1, 0.2])
    assert found["both_ratio_p20"] == found["both_ratio"] == found["both_ratio_p80"] == 0.5
    assert found["both_ms"] == 1.25
    assert math.isclose(found["forward_of_limit"], 0.1 / 1.25)


def test_measurements_that_are_impossible_are_errors(monkeypatch, tmp_path):
    monkeypatch.setattr(options, "gpus", lambda: 0)
    for arguments, *error in (
        (["--shape", "16x8"], "format", "shape", "16x8"),
        (["--regime", "odd"], "unknown-name", "regime", "odd"),
        ([], "device", "device", "cuda"),
    ):
        result = CliRunner().invoke(app, ["forms", *arguments, "--out", str(tmp_path / "x.csv")])
        assert result.exit_code == 1
        assert told(result.output, *error)


@pytest.mark.gpu
def test_forms_on_a_gpu(tmp_path):
    result = CliRunner().invoke(
        app, ["forms", "--shape", "1024x40x16x16", "--rounds", "2", "--out", str(tmp_path / "x.csv")]
    )
    assert result.exit_code == 0, result.output
    assert result.output.count(" of plain") == 2 * len(FORMS)
