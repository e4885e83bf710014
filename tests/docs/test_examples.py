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
