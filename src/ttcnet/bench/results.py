"""The file of results: one line per measurement, each with machine, versions and commit."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ttcnet.environment import commit, machine, versions
from ttcnet.errors import fail
from ttcnet.run_folder import check_settings
from ttcnet.storage.reading import read_text
from ttcnet.storage.special import check_regular
from ttcnet.storage.writing import write_csv

from .measure import Outcome, Point

PEERS = ("mpc", "pypose", "diffilqrax", "jax")
Row = dict[str, str]
Kind = TypeVar("Kind", Point, Outcome)


def stamp() -> Row:
    """Provenance and date, the same for every line of a run."""
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    numbers = {f"version_{name}": version for name, version in versions(*PEERS).items()}
    return {"date": date, **machine(), **numbers, "commit": commit()}


def line(point: Point, outcome: Outcome, where: Row) -> Row:
    return {name: str(value) for name, value in (asdict(point) | asdict(outcome)).items()} | where


def parse(row: Row) -> tuple[Point, Outcome]:
    """The measurement on a line."""
    return _make(Point, row), _make(Outcome, row)


def read(path: Path) -> list[Row]:
    try:
        return list(csv.DictReader(io.StringIO(read_text(path), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        _damaged(path, error)


def sweep_of(row: Row) -> str:
    """A file from before there were sweeps holds the shapes of "targets"."""
    return row.get("sweep", "targets")


def write(rows: list[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_csv(path, rows)


def measured(path: Path, where: Row, parse: Callable[[Row], object] = parse) -> list[Row]:
    """The lines of an interrupted run. Its provenance must be that of this process; `parse` must take every line."""
    check_regular("out", path)
    if not path.exists():
        return []
    rows, remedy = read(path), "Leave --resume out to measure everything anew."
    compared: dict[str, Any] = dict(only=where.keys() - {"date"}, field="machine, versions and commit", remedy=remedy)
    for row in rows:
        check_settings(path, row, where, "measurements", **compared)
        try:
            parse(row)
        except (KeyError, TypeError, ValueError) as error:
            _damaged(path, error)
    return rows


def _damaged(path: Path, error: Exception) -> NoReturn:
    remedy = "Restore the file, or leave --resume out to measure everything anew."
    fail(str(path), "must be a CSV file that `ttcnet bench` wrote", error, remedy, "damaged")


def _make(kind: type[Kind], row: Row) -> Kind:
    read: dict[str, Any] = {"int": int, "float": float, "str": str}
    return kind(**{field.name: read[str(field.type)](row[field.name]) for field in fields(kind) if field.name in row})
