"""Every Python block in the README and in docs/ runs; the blocks of a page share their names."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=lambda page: page.name)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where pages may write
    names: dict[str, object] = {}
    for block in BLOCK.finditer(page.read_text()):
        line = page.read_text()[: block.start()].count("\n") + 1
        exec(compile("\n" * line + block[1], str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_fits_the_page(page):
    """In 120 characters; commands in 100."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        lines = block.splitlines()
        assert [line for line in lines if len(line) > 120] == []
        if language in ("", "bash"):
            commands = [line for line in lines if re.match("(accelerate|make|python|ttcnet) ", line)]
            assert [line for line in commands if len(line) > (102 if page.name == "README.md" else 100)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
