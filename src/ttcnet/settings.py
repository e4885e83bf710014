"""Settings of a run: a TOML file is read into tables, and a table becomes a dataclass. Errors name file and key."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from .errors import fail
from .storage.special import check_regular

Made = TypeVar("Made")
WORDS: dict[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list[str]: "a list of texts",
    dict[str, int]: "a table of whole numbers",
    dict[str, float]: "a table of numbers",
    dict[str, Any]: "a table",
    NoneType: "none",
}


def read_toml(path: Path, variants: Sequence[str] | None = None) -> dict[str, Any]:
    """The tables of a TOML file.

    Args:
        variants: names of tables in the file's table `variant`. Their settings replace those of the file; if two set
            the same, the later one counts. {variant} in `out` becomes their names. None: there are no variants, and
            `variant` is a key like others.
    """
    check_regular("settings", path)
    if not path.is_file():
        remedy = "Name a TOML file; the documentation says how to write one."
        fail("settings", "must be a file", f"{str(path)!r}, which is none", remedy, "not-found")
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        fail(str(path), "must be TOML", error, "Correct the file.", "format")
    return values if variants is None else _varied(values, variants, path)


def read_with(path: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    """The settings of a file, if there is one, overridden by those that were given as options. The option `variant`
    names variants of the file."""
    variants = options.pop("variant", [])
    if path is None and variants:
        fail("variant", "must not be given without a file", ", ".join(variants), "Name the file first.", "conflict")
    return ({} if path is None else read_toml(path, variants)) | options


def _varied(values: dict[str, Any], variants: Sequence[str], path: Path) -> dict[str, Any]:
    known = values.pop("variant", {})
    if not isinstance(known, dict) or not all(isinstance(table, dict) for table in known.values()):
        fail(f"{path}: variant", "must be a table of tables", repr(known), "Correct the file.", "format")
    for name in variants:
        if name not in known:
            rule = f"must be one of {', '.join(known)}" if known else "must not be given: the file has no variants"
            fail("variant", rule, repr(name), "Name one of the file's, or leave it out.", "unknown-name")
        for key, value in known[name].items():
            both = isinstance(value, dict) and isinstance(values.get(key), dict)
            values[key] = values[key] | value if both else value
    if isinstance(values.get("out"), str) and "{variant}" in values["out"]:
        if not variants:
            remedy = "Choose with --variant, once for each that you want."
            fail("variant", f"must be given: one or more of {', '.join(known)}", "none", remedy, "missing")
        values["out"] = values["out"].replace("{variant}", "-".join(variants))
    return values


def from_table(kind: type[Made], values: Any, place: str = "settings") -> Made:
    """A dataclass from the table at `place`. Its keys are the names of the fields, or the "key" in a field's metadata.
    A field that is a dataclass has a table of its own. "none" becomes None, for which TOML has no word."""
    if not isinstance(values, dict):
        fail(place, "must be a table", repr(values), "Write it as a table of TOML, [...].", "type")
    known = {each.metadata.get("key", each.name): each for each in fields(kind)}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            near = get_close_matches(key, known, 1)
            remedy = f"Write {near[0]}, or remove it." if near else "Remove it."
            fail(place, f"must have keys among {', '.join(known)}", repr(key), remedy, "unknown-field")
    needed = [key for key, each in known.items() if each.default is MISSING and each.default_factory is MISSING]
    if missing := [key for key in needed if key not in values]:
        remedy = f"Give {' and '.join(missing)} as well."
        fail(place, f"must have {', '.join(needed)}", f"no {', '.join(missing)}", remedy, "missing")
    hints, names = get_type_hints(kind), {key: each.name for key, each in known.items()}
    return kind(**{names[key]: _value(hints[names[key]], value, f"{place}: {key}") for key, value in values.items()})


def _value(hint: Any, value: Any, place: str) -> Any:
    """A value of a table, if it is of that type or can be converted."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if NoneType in kinds and (value is None or (value == "none" and str not in kinds)):
        return None
    for kind in kinds:
        if is_dataclass(kind):
            return from_table(kind, value, place)  # type: ignore[arg-type]
        if get_origin(kind) is list and is_dataclass(item := get_args(kind)[0]):
            if not isinstance(value, list):
                fail(place, "must be tables, each under [[...]]", repr(value), "Use two brackets on each side.", "type")
            return [from_table(item, each, place) for each in value]  # type: ignore[arg-type]
    check_type(hint, value, place)
    return value


def check_type(hint: Any, value: Any, place: str) -> None:
    """Fail if a value is not of the type that a dataclass gives its field; one of WORDS, or several with | between."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if not any(_is(value, kind) for kind in kinds):
        remedy = "Correct it, or leave it out for its default."
        fail(place, f"must be {' or '.join(WORDS[kind] for kind in kinds)}", repr(value), remedy, "type")


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind. Whole numbers are numbers too; true and false are not."""
    if kind is Any:
        return True
    if (outer := get_origin(kind)) is not None:  # a list or a table, of one type
        inside = value.values() if isinstance(value, dict) else value
        return isinstance(value, outer) and all(_is(each, get_args(kind)[-1]) for each in inside)
    return isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))
