"""Settings in a TOML file, and errors in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.raising import raises
from ttcnet.settings import from_table, read_toml


@dataclass(frozen=True)
class Engine:
    power: float
    fuel: str | list[str] = "diesel"


@dataclass(frozen=True)
class Ship:
    name: str
    engine: Engine | None = None
    boats: list[Engine] = field(default_factory=list, metadata={"key": "boat"})
    crew: int | None = 3
    cargo: dict[str, int] = field(default_factory=dict)
    notes: dict[str, Any] | None = field(default_factory=dict)
    afloat: bool = True


def test_tables_become_dataclasses(tmp_path):
    path = tmp_path / "ship.toml"
    path.write_text(
        'name = "Ada"\ncrew = "none"\nnotes = "none"\ncargo = { tea = 2 }\n'
        '[engine]\npower = 3\nfuel = ["gas", "oil"]\n[[boat]]\npower = 0.5\n[[boat]]\npower = 1\n'
    )
    ada = Ship("Ada", Engine(3, ["gas", "oil"]), [Engine(0.5), Engine(1)], None, {"tea": 2}, None)
    assert from_table(Ship, read_toml(path)) == ada
    assert from_table(Ship, {"name": "none", "engine": None}) == Ship("none"), "of a text, none is a text"


@pytest.mark.parametrize(
    ("values", "code", "place", "value"),
    [
        ({"name": 5}, "type", "s.toml: name", "5"),
        ({"name": "a", "crew": True}, "type", "s.toml: crew", "True"),
        ({"name": "a", "crew": 1.5}, "type", "s.toml: crew", "1.5"),
        ({"name": "a", "afloat": 1}, "type", "s.toml: afloat", "1"),
        ({"name": "a", "afloat": None}, "type", "s.toml: afloat", "None"),
        ({"name": "a", "cargo": {"tea": "much"}}, "type", "s.toml: cargo", "much"),
        ({"name": "a", "engine": 5}, "type", "s.toml: engine", "5"),
        ({"name": "a", "engine": {"power": "3"}}, "type", "s.toml: engine: power", "'3'"),
        ({"name": "a", "engine": {"power": 3, "fuel": [1]}}, "type", "s.toml: engine: fuel", "1"),
        ({"name": "a", "engine": {}}, "missing", "s.toml: engine", "no power"),
        ({"name": "a", "boat": {"power": 3}}, "type", "s.toml: boat", "power"),
        ({"name": "a", "boat": [{"power": 3}, 4]}, "type", "s.toml: boat", "4"),
        ({"name": "a", "boats": []}, "unknown-field", "s.toml", "boats"),
        ({"crew": 3}, "missing", "s.toml", "no name"),
        ([], "type", "s.toml", r"\[\]"),
    ],
)
def test_settings_that_do_not_fit(values, code, place, value):
    with raises(code, place, value):
        from_table(Ship, values, "s.toml")


def test_the_nearest_key_is_named():
    with raises("unknown-field", "settings", "engin") as found:
        from_table(Ship, {"name": "a", "engin": {}})
    assert found.value.remedy == "Write engine, or remove it."
    with raises("unknown-field", "settings", "zzz") as found:
        from_table(Ship, {"zzz": 1})
    assert found.value.remedy == "Remove it."


def test_files_that_cannot_be_read(tmp_path):
    with raises("not-found", "settings", "nope.toml"):
        read_toml(tmp_path / "nope.toml")
    path = tmp_path / "run.toml"
    for content in (b"model = \n", b"\xff", b"a = " + b"[" * 100_000):
        path.write_bytes(content)
        with raises("format", str(path)):
            read_toml(path)


def test_variants(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        'data = "d"\nout = "runs/{variant}"\nlr = 1e-4\n[adapter]\nevery = 4\n[variant.small]\nmodel = "s"\nlr = 2e-4\n'
        '[variant.mlp]\nlr = 3e-4\nadapter.insert = "mlp"\n[variant.full]\nadapter = "none"\n'
    )
    both = read_toml(path, ["small", "mlp"])
    assert both == dict(data="d", out="runs/small-mlp", lr=3e-4, adapter={"every": 4, "insert": "mlp"}, model="s")
    assert read_toml(path, ["small", "full"])["adapter"] == "none"
    assert set(read_toml(path)["variant"]) == {"small", "mlp", "full"}, "a key, where there are no variants"
    with raises("unknown-name", "variant"):
        read_toml(path, ["large"])
    with raises("missing", "variant"):
        read_toml(path, [])
    for wrong in ("variant = 3\n", "[variant]\nsmall = 3\n"):
        path.write_text(wrong)
        with raises("format", f"{path}: variant"):
            read_toml(path, [])
    path.write_text("lr = 1e-4\n")
    with raises("unknown-name", "variant"):
        read_toml(path, ["small"])
