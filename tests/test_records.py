"""What a run writes down is there whole or not at all."""

import csv
import os

import pytest

from ttcnet import records


def test_two_processes_that_write_the_same_file_do_not_stumble_over_each_other(tmp_path, monkeypatch):
    """As when the last two processes of an evaluation end at the same time, and both write its summary."""
    replace, file = os.replace, tmp_path / "summary.json"

    def meanwhile(source, target):
        monkeypatch.setattr(os, "replace", replace)
        records.write_text(file, "the other's")
        replace(source, target)

    monkeypatch.setattr(os, "replace", meanwhile)
    records.write_text(file, "ours")
    assert file.read_text() == "ours"
    assert list(tmp_path.iterdir()) == [file]


def test_what_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    file = tmp_path / "log.jsonl"
    records.write_lines(file, [{"step": 1}])

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        records.write_lines(file, [{"step": 2}])
    assert file.read_text() == '{"step": 1}\n'
    assert list(tmp_path.iterdir()) == [file]


def test_tables_come_back_as_they_were(tmp_path):
    rows = [{"name": "a, b", "value": "1\n2"}, {"name": "é", "value": ""}]
    records.write_csv(tmp_path / "rows.csv", rows)
    with (tmp_path / "rows.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.DictReader(file)) == rows
