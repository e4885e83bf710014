"""The recipes, at a size that a CPU can train."""

import json
from dataclasses import replace

import pytest

from recipes import sudoku
from ttcnet.tasks.sudoku import generate


@pytest.fixture
def small(monkeypatch, tmp_path):
    boards = generate(8, givens=(70, 72), seed=0)
    boards.write(tmp_path / "boards.csv")
    for name, config in sudoku.SETTINGS.items():
        monkeypatch.setitem(sudoku.SETTINGS, name, replace(config, layers=1, width=32, heads=2, batch=4))
    monkeypatch.setattr(sudoku, "EVERY", 4)
    where = dict(train=tmp_path / "boards.csv", test=tmp_path / "boards.csv", device="cpu")

    def start(setting, out, **options):
        sudoku.main(setting, out=tmp_path / out, **{"only": None, "minutes": 0} | where | options)
        return tmp_path / out

    return start


def test_every_run_of_the_table_is_trained_and_judged(small):
    out = small("augmented", "table", steps=2)
    assert sorted(path.name for path in out.iterdir()) == [
        "gdn-0", "mamba-0", "mamba2-0", "samba-0", "transformer-0", "transformer-1", "transformer-2",
        "ttc-0", "ttc-1", "ttc-2",
    ]  # fmt: skip
    for folder in out.iterdir():
        config, metrics = (json.loads((folder / f"{name}.json").read_text()) for name in ("config", "metrics"))
        assert f"{config['architecture']}-{config['seed']}" == folder.name
        assert [result["mode"] for result in metrics["results"]] == ["single", "multi"]
        assert (folder / "model" / "model.safetensors").exists()


def test_a_stopped_recipe_goes_on(small):
    whole = small("best", "whole", steps=8)
    parts = small("best", "parts", steps=8, minutes=1e-9)
    assert not (parts / "ttc-0" / "metrics.json").exists()
    assert len((parts / "ttc-0" / "log.jsonl").read_text().splitlines()) == 1  # stopped after 4 steps
    small("best", "parts", steps=8)
    one, two = ((folder / "ttc-0" / "model" / "model.safetensors").read_bytes() for folder in (whole, parts))
    assert one == two
    assert (whole / "ttc-0" / "log.jsonl").read_text() == (parts / "ttc-0" / "log.jsonl").read_text()
