"""Every Python block in the README and in docs/ runs; the blocks of a page share their names. Commands exist."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from ttcnet.cli import app
from ttcnet.cli.bench import app as bench

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
    """Lines have at most 100 characters, which the stylesheet makes room for."""
    for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        assert [line for line in block.splitlines() if len(line) > 100] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def commands():
    """(page, words) of every call of `ttcnet` in a block of commands."""
    found = []
    for page in PAGES:
        for language, block in re.findall(r"^ *```(\w*)\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", "").splitlines() if language in ("", "bash") else ():
                call = re.search(r"(?:^ *|-m )ttcnet(?:\.cli)? +([a-z].*)", line)
                if call:
                    found.append((page.name, shlex.split(call[1], comments=True)))
    return found


def test_commands_on_pages_exist():
    """Every command of a page exists, with its sub-commands and options."""
    known, wrong = get_command(app), []
    for page, words in commands():
        command, rest = known, list(words)
        if rest[0] == "bench":  # which the command hands on
            command, rest = get_command(bench), rest[1:]
        while hasattr(command, "commands") and rest[0] in command.commands:
            command = command.commands[rest.pop(0)]
        options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        unknown = [word for word in rest if word.startswith("--") and word not in options]
        if hasattr(command, "commands") or unknown:
            wrong.append((page, words))
    assert len(commands()) > 40
    assert wrong == []
