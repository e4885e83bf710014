"""Whether a text reaches the target, and why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ttcnet.errors import fail

from ..task import Verdict
from .expressions import read

SIGNS = {
    "\\times": "*", "\\cdot": "*", "\\div": "/", "\\left": "", "\\right": "", "\\,": " ",
    "×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "$": "",
}  # fmt: skip
_BOX = "\\boxed{"


def grade(row: Mapping[str, Any], text: str) -> Verdict:
    """Grade a text by the numbers and the target of a row.

    The expression is the content of the last \\boxed{}, or else the last line that is not empty; "= 54" behind it is
    checked too. It must be of whole numbers, + - * / and brackets, with no signs before numbers; each number of the row
    is used at most once; arithmetic is exact, and values on the way may be fractions.

    Examples:
        >>> grade({"numbers": [3, 7, 25], "target": 54}, "25 * 3 - 7 * 3")
        Verdict(right=False, answer='25 * 3 - 7 * 3', note='3 is used 2 times and given once', scores={})
    """
    if not is_puzzle(row):
        rule = "must have numbers, a list of whole numbers, and target, a whole number"
        given = f"{row.get('numbers')!r} and {row.get('target')!r}"
        fail("row", rule, given, "Make rows with `ttcnet countdown make`.", "bad-data")
    target, found = row["target"], stated(text)
    if found is None:
        return Verdict(False, None, "there is no answer")
    claim, *values = found.split("=")
    try:
        value, used = read(claim)
        claims = [read(part).value for part in values]
    except ValueError as error:
        return Verdict(False, found, f"it is no expression: {error}")
    except ZeroDivisionError:
        return Verdict(False, found, "it divides by zero")
    numbers = Counter(row["numbers"])
    for one, times in Counter(used).items():
        if one not in numbers:
            return Verdict(False, found, f"{one} is not given")
        if times > numbers[one]:
            return Verdict(False, found, f"{one} is used {times} times and given {_times(numbers[one])}")
    if value != target:
        return Verdict(False, found, f"it makes {value}, not {target}")
    if any(other != value for other in claims):
        return Verdict(False, found, f"it says that it makes something other than {value}")
    return Verdict(True, found, f"it makes {value}")


def is_puzzle(row: Mapping[str, Any]) -> bool:
    """Whether a row has numbers and a target to grade by."""
    numbers, target = row.get("numbers"), row.get("target")
    whole = isinstance(numbers, list | tuple) and all(type(value) is int for value in numbers)
    return whole and type(target) is int


def stated(text: str) -> str | None:
    """The expression that a text gives as its answer, with signs as they are typed; None if there is none."""
    start = text.rfind(_BOX)
    if start >= 0:
        inside = text[start + len(_BOX) :]
        depth = 1
        for place, character in enumerate(inside):
            depth += (character == "{") - (character == "}")
            if depth == 0:
                found = inside[:place]
                break
        else:
            return None  # cut off
    else:
        lines = [line for line in text.splitlines() if line.strip()]
        if not lines:
            return None
        found = lines[-1]
    for sign, typed in SIGNS.items():
        found = found.replace(sign, typed)
    return found.strip() or None


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
