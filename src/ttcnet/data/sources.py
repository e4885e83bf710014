"""Fetching: rows of a file or of the Hub, brought into one form: problem, solution, answer, source and id.

A missing solution or answer is None. A row without a field for the answer has it from its solution: the last
\\boxed{...}, or the text after GSM8K's ####.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ttcnet.errors import fail, whole_number
from ttcnet.storage.reading import Row, is_unicode, rows
from ttcnet.tasks.chat import ANSWERS as SOLUTIONS
from ttcnet.tasks.chat import PROMPTS as PROBLEMS
from ttcnet.tasks.math.stated import HASHES, stated

from .settings import Parts, Source
from .stages import Content, Stage

USUAL = {"problem": PROBLEMS, "solution": SOLUTIONS, "answer": ("answer", "final_answer")}


def opened(source: Source) -> Iterator[Row]:
    """The unchanged rows, one after the other, without loading all."""
    given = {"name": source.subset, "revision": source.revision}
    options = {name: value for name, value in given.items() if value is not None}
    return rows(source.data, source.split, streaming=True, **options)


def check(source: Source) -> None:
    """Check the first row: it must have the fields that are named, and a problem."""
    row = next(opened(source), None)
    if row is None:
        remedy = "Check the file or the split."
        fail("source", "must have at least one row", f"{source.name} ({source.data})", remedy, "no-data")
    for part, usual in USUAL.items():
        named = _paths(getattr(source, part))
        missing = [path for path in named if not _holds(row.content, path)]
        if missing or (part == "problem" and not named and not any(name in row.content for name in usual)):
            rule = f"must be in the field {missing[0]!r}" if missing else f"must be in a field named {', '.join(usual)}"
            found = f"fields {', '.join(row.content)} in {row.place}"
            remedy = f'Say which it is: {part} = "..."; a.0.b reaches into objects and lists.'
            fail(f"{part} of source {source.name}", rule, found, remedy, "bad-data")


def fetch(stage: Stage, source: Source) -> None:
    """All rows in one form. Those without a problem, with neither solution nor answer, or with half a letter, are
    dropped."""
    for number, (place, content) in enumerate(opened(source), 1):
        stage.count()
        row = parts(content, source) | {"source": source.name, "id": f"{source.name}/{number}"}
        if row["answer"] is None and row["solution"] is not None:
            row["answer"] = answer_in(row["solution"])
            stage.notes["answers read from solutions"] += row["answer"] is not None
        if row["problem"] is None:
            stage.drop(row["id"], "no problem", place=place)
        elif row["answer"] is None and row["solution"] is None:
            stage.drop(row["id"], "neither solution nor answer", place=place)
        elif not all(is_unicode(row[part] or "") for part in USUAL):
            stage.drop(row["id"], "not Unicode", place=place)
        else:
            stage.keep(row)
            for part in ("solution", "answer"):
                stage.notes[f"without {part}"] += row[part] is None
    if stage.kept == 0:
        remedy = "Name the fields with problem, solution and answer."
        fail(f"source {source.name}", "must have at least one usable row", f"none of {stage.read:,}", remedy, "no-data")


def answer_in(solution: str) -> str | None:
    r"""The answer that a solution gives in a box or after hashes.

    Examples:
        >>> answer_in(r"Half of one is $\boxed{\frac{1}{2}}$.")
        '\\frac{1}{2}'
        >>> answer_in("4 + 4 = <<4+4=8>>8 apples\n#### 8")
        '8'
    """
    place = stated(solution)
    if place.startswith("\\boxed{") and place.endswith("}"):
        return place.removeprefix("\\boxed{").removesuffix("}")
    return place if HASHES.search(solution) else None


def parts(content: Content, source: Source) -> Content:
    """Problem, solution and answer of a row, as texts, or None. A field that is named for one is used for no other."""
    found: Content = {}
    taken = {path for part in USUAL for path in _paths(getattr(source, part))}
    for part, usual in USUAL.items():
        named = _paths(getattr(source, part))
        texts = [_text(content, path) for path in named or usual if named or path not in taken]
        present = [text for text in texts if text is not None]
        found[part] = "\n\n".join(present if named else present[:1]) or None
    return found


def _paths(parts: Parts | None) -> list[str]:
    return [] if parts is None else [parts] if isinstance(parts, str) else parts


def _text(content: Content, path: str) -> str | None:
    value = _reach(content, path) if _holds(content, path) else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value.strip() or None if isinstance(value, str) else None


def _holds(content: Content, path: str) -> bool:
    try:
        _reach(content, path)
    except LookupError:
        return False
    return True


def _reach(content: Any, path: str) -> Any:
    """A field of a row; "a.0.b" is b of the first of a. A LookupError if there is none."""
    if isinstance(content, dict) and path in content:
        return content[path]
    first, dot, rest = path.partition(".")
    if isinstance(content, list) and (place := whole_number(first)) is not None:
        inner = content[place]
    elif isinstance(content, dict) and dot:
        inner = content[first]
    else:
        raise LookupError(path)
    return _reach(inner, rest) if dot else inner
