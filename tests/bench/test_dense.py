"""The benchmark of dense problems: its providers agree, and its lines hold what was measured and where."""

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.dense import PROVIDERS, both, draw, error
from ttcnet.bench.results import read
from ttcnet.lqr import LQR


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch to mpc.pytorch, about functions that have new names
def test_providers_agree(name):
    pytest.importorskip("mpc", reason="mpc.pytorch is not installed")
    problem = draw(3, n=4, m=2, horizon=6)
    problem = LQR(**{key: x.double() for key, x in problem.given().items()})
    for x, y in zip(both(PROVIDERS[name], problem), both(PROVIDERS["solve"], problem), strict=True):
        assert error(x, y) < 1e-8


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_command_writes_a_line_for_each(tmp_path):
    out = tmp_path / "dense.csv"
    command = ["dense", "--problems", "2", "--n", "3", "--m", "1", "--horizon", "4", "--budget", "0", "--out", str(out)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    rows = read(out)
    assert [row["provider"] for row in rows] == list(PROVIDERS)
    assert all(float(row["forward_ms"]) > 0 and float(row["both_ms"]) > 0 for row in rows)
    assert all(float(row["error_u"]) < 1e-4 and row["commit"] and row["busy"] for row in rows)
