"""docs/troubleshooting.md quotes messages that exist, and all rules that the library has."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
QUOTED = re.findall(r"`([^`]+)`", "".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)))


def texts():
    """Every string in the source, with … for what is filled in."""
    found = set()
    for path in (ROOT / "src" / "ttcnet").rglob("*.py"):
        parts = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts.update(map(id, node.values))
                found.add("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                found.add(node.value)
    return found


TEXTS = texts()


def is_said(message):
    """Whether it is in the source whole, or as a field and a rule, which `fail` puts together."""
    words = message.split(" ")
    pairs = [(" ".join(words[:place]), " ".join(words[place:])) for place in range(1, len(words))]
    said = any(rule in TEXTS and (field in TEXTS or "…" in field) for field, rule in pairs)
    return said or any(message in text for text in TEXTS)


def test_every_message_on_the_page_is_in_the_source():
    assert len(QUOTED) > 200
    assert [message for message in QUOTED if not is_said(message)] == []


def test_a_message_that_nothing_says_is_noticed():
    assert is_said("horizon must be 0 or more")
    assert not is_said("horizon must be a Tuesday")
    assert not is_said("weather must be 0 or more")


def test_every_rule_is_on_the_page():
    rules = {text for text in TEXTS if text.startswith("must ")}
    quoted = [message.rstrip(" …") for message in QUOTED]
    missing = [rule for rule in rules if not any(message.endswith(rule.rstrip(" …")) for message in quoted)]
    assert missing == [], "docs/troubleshooting.md says nothing of these"
