"""The pictures of docs/concepts.md can be made again, by one command."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PICTURES = sorted((ROOT / "docs" / "images").glob("concept-*.svg"))


@pytest.mark.slow
def test_they_are_made(tmp_path):
    subprocess.run([sys.executable, "docs/pictures.py", "--out", str(tmp_path)], cwd=ROOT, check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in PICTURES]
    assert all(path.stat().st_size < 100_000 for path in tmp_path.iterdir())


def test_they_are_shown():
    shown = set(re.findall(r"images/(concept-\w+\.svg)", (ROOT / "docs" / "concepts.md").read_text()))
    assert shown == {path.name for path in PICTURES}
