"""The examples run as their users would run them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_plan_a_course(tmp_path):
    picture = tmp_path / "pictures" / "plan.png"
    command = [sys.executable, "examples/plan_a_course.py", "--steps", "12", "--out", str(picture)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "cost to go" in result.stdout
    assert "Optimality conditions met" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
