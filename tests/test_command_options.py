"""Options that several commands have."""

import pytest
from typer.testing import CliRunner

from tests.raising import raises
from ttcnet import command_options as options
from ttcnet.cli import app
from ttcnet.command_options import numbers, usable


def test_devices(monkeypatch):
    assert usable("cpu") == "cpu"
    for count, best in ((0, "cpu"), (2, "cuda")):
        monkeypatch.setattr(options, "gpus", lambda count=count: count)
        assert usable("auto") == usable(None) == best
    assert [usable(name) for name in ("cuda", "cuda:1")] == ["cuda", "cuda:1"]
    for name in ("cuda:2", "cuda:x", "cuda:-1", "cpu:1", "abacus", ""):
        with raises("device", "device", f"'{name}'"):
            usable(name)


def test_numbers():
    assert numbers("horizon", None) == numbers("horizon", []) == ()
    assert numbers("horizon", ["4, 0,8", "4"]) == (4, 0, 8)
    for texts in (["-1"], ["1,"], [""], ["4", "x"], ["1.5"]):
        with raises("format", "horizon"):
            numbers("horizon", texts)


PUZZLE = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
TOO_FAR = [  # the model is nowhere: a bound that is checked first is the only error
    "eval math rows.jsonl --model ./nowhere --out new --horizon 1,2,99999999",
    "eval scaling rows.jsonl --model ./nowhere --out new --horizons 1,99999999",
    "eval scaling rows.jsonl --model ./nowhere --out new --horizon 99999999",
    "eval likelihood rows.jsonl --model ./nowhere --horizon 1,99999999",
    "eval lm --model ./nowhere --out new --horizon 99999999",
    "analyse alignment --model ./nowhere --data rows.jsonl --out new --horizon 99999999",
    f"sudoku solve {PUZZLE} --model ./nowhere --horizon 65537",
    f"sudoku solve {PUZZLE} --model ./nowhere --loops 65537",
    "sudoku demo --model ./nowhere --loops 65537",
    "sudoku eval ./nowhere --data rows.csv --horizon 4,65537",
    "sudoku eval ./nowhere --data rows.csv --loops 4,65537",
    "sudoku probe ./nowhere --train rows.csv --test rows.csv --step 4,65537",
    "bench lqr --horizon 65537 --out new",
    "eval math rows.jsonl --model ./nowhere --out new --samples 1000000000 --temperature 1",
    "eval scaling rows.jsonl --model ./nowhere --out new --n 1000000000",
    "countdown make --out new --count 100000000000",
    "sft --model ./nowhere --data rows.jsonl --out new --steps 1000000000000000000000",
    "sft --model ./nowhere --data rows.jsonl --out new --epochs 1e300",
    "grpo --model ./nowhere --task rows.jsonl --out new --samples 1000000000",
    "grpo --model ./nowhere --task rows.jsonl --out new --steps 1000000000000",
    "sudoku train --data rows.csv --out new --steps 1000000000000",
]


@pytest.mark.parametrize("line", TOO_FAR)
def test_bounds_come_before_work(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == 1
    said = result.output.strip().splitlines()
    assert len(said) == 1
    assert said[0].endswith("[too-large]")
    assert len(said[0]) < 250
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["sft", "grpo"])
def test_the_help_prints_brackets(command):
    assert "[variant.NAME]" in " ".join(CliRunner().invoke(app, [command, "--help"]).output.split())
