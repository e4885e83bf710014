"""Benchmarks of control problems: providers agree, and lines hold measurement and machine."""

import pytest
from typer.testing import CliRunner

from benchmarks import dense
from benchmarks.__main__ import app
from benchmarks.dense import ONE_BY_ONE, PACKAGES, PROVIDERS, available, both, draw, error
from ttcnet.bench.results import read
from ttcnet.lqr import LQR


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch to mpc.pytorch, about functions that have new names
def test_providers_agree(name):
    pytest.importorskip(PACKAGES.get(name, "ttcnet"), reason=f"{name} is not installed")
    problem = draw(3, n=4, m=2, horizon=6)
    problem = LQR(**{key: x.double() for key, x in problem.given().items()})
    if name in ONE_BY_ONE:
        assert error(PROVIDERS[name](problem), PROVIDERS["solve"](problem)) < 1e-6
        return
    for x, y in zip(both(PROVIDERS[name], problem), both(PROVIDERS["solve"], problem), strict=True):
        assert error(x, y) < 1e-8


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_command_writes_a_line_for_each(tmp_path):
    out = tmp_path / "dense.csv"
    command = ["dense", "--problems", "2", "--n", "3", "--m", "1", "--horizon", "4", "--budget", "0", "--out", str(out)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    rows = read(out)
    assert [row["provider"] for row in rows] == available("cpu")
    assert all(float(row["forward_ms"]) > 0 for row in rows)
    assert all(float(row["both_ms"]) > 0 for row in rows if row["provider"] not in ONE_BY_ONE)
    assert all(float(row["error_u"]) < 1e-4 and row["commit"] and row["busy"] for row in rows)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_bounded_actions(tmp_path):
    out = tmp_path / "limited.csv"
    result = CliRunner().invoke(app, ["limited", "--problems", "2", "--budget", "0", "--out", str(out)])
    assert result.exit_code == 0, result.output
    rows = read(out)
    assert {"solve_constrained", "clarabel", "ilqr"} <= {row["provider"] for row in rows}
    assert all(float(row["both_ms"]) > 0 for row in rows if row["provider"] in ("solve_constrained", "ilqr"))
    assert "case linear  provider solve_constrained" in result.output
    assert "solved 2" in result.output
    assert all(float(row["error_u"]) < 1e-4 and row["solved"] == "2" for row in rows), rows


def test_a_provider_that_fails_is_reported_and_the_others_measured(monkeypatch):
    def fail(problem):
        raise RuntimeError("out of memory\nand more")

    monkeypatch.setitem(dense.PROVIDERS, "autograd-riccati", fail)
    rows = {row["provider"]: row for row in dense.dense_rows([2], 3, 1, 4, budget=0)}
    assert rows["autograd-riccati"]["status"] == "out of memory"
    assert rows["autograd-riccati"]["both_ms"] == ""
    assert rows["solve"]["status"] == "ok"
