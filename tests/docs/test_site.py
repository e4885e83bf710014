"""The documentation site builds without a warning and needs nothing from elsewhere; the reference is complete."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_site_builds_strictly(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    for name in ("index", "concepts", "notebooks/plan", "api/lqr", "files/experiments/math/settings.toml"):
        assert (tmp_path / f"{name}.html").exists()
    page = (tmp_path / "notebooks" / "plan.html").read_text()
    assert 'src="plan-0.png"' in page
    assert "files/src/ttcnet/lqr/riccati.py.html" in (tmp_path / "paper.html").read_text()
    fetched = [
        address
        for path in tmp_path.rglob("*.html")
        for address in re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)', path.read_text())
    ]
    assert fetched == []
    assert "md-search__input" in (tmp_path / "index.html").read_text()
    found = json.loads((tmp_path / "search" / "search_index.json").read_text())["docs"]
    assert any(entry["location"].startswith("lqr.html") and "riccati" in entry["text"].lower() for entry in found)


def public():
    """The packages with public names, and these."""
    for path in sorted((ROOT / "src" / "ttcnet").rglob("__init__.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                yield ".".join(path.parent.relative_to(ROOT / "src").parts), ast.literal_eval(node.value)


@pytest.mark.parametrize(("package", "names"), [*public()])
def test_the_reference_has_every_public_name(package, names):
    pages = [page.read_text() for page in (ROOT / "docs" / "api").glob("*.md")]
    [page] = [page for page in pages if page.startswith(f"# {package}\n") or f"\n::: {package}\n" in page]
    documented = re.findall(r"^(?:::: \S*\.|## )(\w+)$", page, re.MULTILINE)
    assert set(names) <= {*documented, *re.findall(r"`(\w+)`", page)}
