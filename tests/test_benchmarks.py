"""The benchmark command measures what it says and writes down where."""

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.measure import Point, measure_here
from benchmarks.tables import update

RUNNER = CliRunner()


def test_a_run_writes_one_line_a_measurement(tmp_path):
    out = tmp_path / "deep" / "lqr.csv"
    arguments = ["lqr", "--horizon", "3", "--problems", "8", "--seconds", "0.01", "--out", str(out)]
    result = RUNNER.invoke(app, [*arguments, "--provider", "plan", "--provider", "autograd-riccati"])
    assert result.exit_code == 0, result.output
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["provider"] for row in rows] == ["plan", "autograd-riccati"]
    for row in rows:
        assert row["status"] == "ok"
        assert 0 < float(row["p20_ms"]) <= float(row["median_ms"]) <= float(row["p80_ms"])
        assert float(row["error_u"]) < 1e-5
        assert float(row["error_worst_gradient"]) < 1e-4
        assert row["version_torch"]
        assert row["cpu"]
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("provider", ["kkt", "symplectic"])
def test_other_providers_run(provider):
    outcome = measure_here(Point(provider, "fresh", problems=4, horizon=3, heads=2), seconds=0.0)
    assert outcome.status == "ok"
    assert outcome.error_u < 1e-4


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("--provider", "nobody", "provider must be one of"), ("--regime", "odd", "regime must be one of")],
)
def test_unknown_names_are_answered(option, value, message, tmp_path):
    result = RUNNER.invoke(app, ["lqr", option, value, "--out", str(tmp_path / "x.csv")])
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_the_tables_are_those_of_the_results():
    root = Path(__file__).parent.parent
    for page in (root / "README.md", *(root / "docs").glob("*.md")):
        assert update(page, root / "benchmarks" / "results", write=False) == [], page


def test_a_stale_table_is_found_and_mended(tmp_path):
    results = Path(__file__).parent.parent / "benchmarks" / "results"
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- table: lqr-cpu -->\nold\n<!-- end -->\nafter\n")
    assert update(document, results, write=True) == ["lqr-cpu"]
    assert update(document, results, write=False) == []
    assert document.read_text().startswith("before\n<!-- table: lqr-cpu -->\n| problems | T | `plan` |")
    assert document.read_text().endswith("<!-- end -->\nafter\n")
