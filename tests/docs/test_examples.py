"""The examples run as their users would run them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_plan_a_course(tmp_path):
    picture = tmp_path / "pictures" / "plan.png"
    command = [sys.executable, "examples/plan_a_course.py", "--steps", "12", "--out", str(picture)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "cost to go" in result.stdout
    assert "Optimality conditions met" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_cart_pole_policy():
    pytest.importorskip("gymnasium", reason="the extra gym is not installed")
    command = [sys.executable, "examples/cart_pole_policy.py", "--steps", "2"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "step 0: squared error" in result.stdout
    assert "looks 64 steps ahead: balances for" in result.stdout


def test_control_gallery(tmp_path):
    picture = tmp_path / "control.png"
    command = [sys.executable, "examples/control_gallery.py", "--count", "2", "--out", str(picture)]
    for name in ("pendulum", "quadrotor", "bicycle"):
        command += ["--only", name]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.count("2 of 2 converged") == 3, result.stdout
    assert float(result.stdout.split("never closer than ")[1].split()[0]) > 0, "an obstacle was touched"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_imitate_pendulum(tmp_path):
    pytest.importorskip("gymnasium", reason="the extra gym is not installed")
    command = [sys.executable, "examples/imitate_pendulum.py", "--steps", "21", "--moves", "2"]
    command += ["--out", str(tmp_path / "pendulum.png")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    errors = [float(line.split("squared error ")[1].split(",")[0]) for line in _lines(result.stdout, "step ")]
    assert errors[-1] < 0.6 * errors[0], "nothing was learned"
    assert len(_lines(result.stdout, "  after 2 moves")) == 2
    assert (tmp_path / "pendulum.png").read_bytes().startswith(b"\x89PNG")


def _lines(text, start):
    return [line for line in text.splitlines() if line.startswith(start)]
