"""docs/troubleshooting.md explains every code of an error, and the fields that have it."""

import ast
import re
from pathlib import Path

import pytest

from ttcnet.errors import CODES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
CELLS = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
ENTRIES = [entry for cell in CELLS for entry in cell.split(" <br> ")]


def calls():
    """(place, field, code) of every call of `fail`; None for a field or a code that is not written there."""
    found = []
    for path in sorted((ROOT / "src" / "ttcnet").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("fail", "checks.fail"):
                given = {keyword.arg: keyword.value for keyword in node.keywords}
                field, code = node.args[0], node.args[4] if len(node.args) > 4 else given.get("code")
                parts = [part.value if isinstance(part, ast.Constant) else None for part in (field, code)]
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", *parts))
    return found


CALLS = calls()


def explained(code, field):
    """Whether the page has an entry for the code and the field, or for any field of that code."""
    entries = [entry for entry in ENTRIES if entry.startswith(f"`{code}` ")]
    return any(entry.endswith("…") or (field or "…") in entry for entry in entries)


def test_every_code_of_the_source_is_listed():
    assert len(CALLS) > 300
    assert [call for call in CALLS if call[2] not in CODES] == [], "name a code of ttcnet.errors.CODES"


def test_every_code_is_used():
    assert set(CODES) - {code for _, _, code in CALLS} == set()


def test_every_code_is_in_the_table_of_the_page():
    rows = {code: f"| `{code}` | {known.meaning} | `{known.error.__name__}` |" for code, known in CODES.items()}
    assert [code for code, row in rows.items() if row not in PAGE] == []


def test_the_page_knows_no_other_codes():
    named = {match[1] for entry in ENTRIES if (match := re.match(r"`([a-z]+(?:-[a-z]+)*)` \S", entry))}
    assert len(named) > 40
    assert named <= set(CODES)


def test_every_error_is_on_the_page():
    coded = [(place, code, field) for place, field, code in CALLS if code is not None]
    assert [call for call in coded if not explained(*call[1:])] == []


@pytest.mark.parametrize(("code", "field", "known"), [("too-small", "horizon", True), ("port", "horizon", False)])
def test_an_error_that_is_missing_is_noticed(code, field, known):
    assert explained(code, field) == known


def texts():
    """Every string in the source, with … for inserted values."""
    for path in (ROOT / "src" / "ttcnet").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value.replace("%s", "…")


def test_messages_without_a_code_are_quoted_as_they_are():
    quoted = [match[1] for entry in ENTRIES if (match := re.match(r"`([^`]* [^`]*)`", entry))]
    assert len(quoted) > 10
    known = [text for text in texts() if len(text) > 12]
    assert [message for message in quoted if not any(message in text or text in message for text in known)] == []
