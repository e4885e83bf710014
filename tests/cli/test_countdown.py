"""ttcnet countdown make writes puzzles, and replaces no file."""

import json

from typer.testing import CliRunner

from tests.raising import told
from ttcnet.cli import app
from ttcnet.storage.reading import rows
from ttcnet.tasks.chat import conversation
from ttcnet.tasks.countdown import grade


def test_the_command(tmp_path):
    out = tmp_path / "deep" / "puzzles.jsonl"
    done = CliRunner().invoke(app, ["countdown", "make", "--out", str(out), "--count", "5", "--numbers", "4"])
    assert done.exit_code == 0, done.output
    assert "5 puzzles are in" in done.output
    made = [each.content for each in rows(str(out))]
    assert [json.loads(line) for line in out.read_text().splitlines()] == made
    assert all(len(each["numbers"]) == 4 and grade(each, each["solution"]).right for each in made)
    assert conversation(made[0])[1]["content"] == made[0]["solution"]
    for wrong, code, field in ((["--numbers", "3-"], "format", "numbers"), (["--split", "x"], "unknown-name", "split")):
        failed = CliRunner().invoke(app, ["countdown", "make", "--out", str(tmp_path / "new.jsonl"), *wrong])
        assert failed.exit_code == 1
        assert told(failed.output, code, field)


def test_a_file_that_is_there_is_not_replaced(tmp_path):
    out = tmp_path / "puzzles.jsonl"
    out.write_text("mine")
    for path in (out, tmp_path):
        done = CliRunner().invoke(app, ["countdown", "make", "--count", "1", "--out", str(path)])
        assert done.exit_code == 1
        assert told(done.output, "exists", "out", str(path))
    assert out.read_text() == "mine"
