"""Examples from rows: a JSON Lines file or a dataset of the Hub, with a problem and an answer in every row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ttcnet.errors import fail
from ttcnet.storage.reading import Row

from .task import Example

SHOWN = 5  # faults that a message names


def examples_of(
    found: Iterable[Row], source: str, data: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] = lambda _: None
) -> list[Example]:
    """An example for every row. Rows without a problem (or question) or an answer are an error with file and line.

    Args:
        source: for messages.
        data: picks the values that grading needs besides the answer; raises ValueError for a row that cannot be graded.
    """
    examples, faults = list[Example](), list[str]()
    for row in found:
        text = next((row.content[key] for key in ("problem", "question") if row.content.get(key)), None)
        answer = _answer(row.content.get("answer"))
        try:
            if not isinstance(text, str) or not text.strip():
                raise ValueError("no problem")
            if answer is None:
                raise ValueError("no answer")
            examples.append(Example(len(examples) + 1, text, answer, data(row.content)))
        except ValueError as error:
            faults.append(f"{row.place}: {error}")
    if faults:
        more = f"; and {len(faults) - SHOWN:,} more" if len(faults) > SHOWN else ""
        remedy = "Correct these rows or take them out of the data."
        rule = "must have a problem and an answer in every row"
        fail("data", rule, "; ".join(faults[:SHOWN]) + more, remedy, "bad-data")
    if not examples:
        fail("data", "must have at least one row", source, "Check the file.", "no-data")
    return examples


def _answer(value: Any) -> str | None:
    """The answer as text. From a whole solution, as in GSM8K, it is the part after ####."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value).rpartition("####")[2].strip() or None
