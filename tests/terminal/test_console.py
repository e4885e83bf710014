"""What commands say: progress without a terminal, and what went wrong."""

import ast
import io
import json
import logging
import re
from collections import Counter
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

import ttcnet
from ttcnet.cli import app
from ttcnet.errors import errors_as_sentences
from ttcnet.terminal import progress_bars
from ttcnet.terminal.console import foreign, plain


@pytest.mark.parametrize("terminal", [False, True])
def test_a_line_now_and_then_where_there_is_no_terminal(monkeypatch, terminal):
    now = [0.0]
    monkeypatch.setattr(progress_bars.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80)
    with progress_bars.Bar(console=console, auto_refresh=False) as bar:
        task = bar.add_task("training", total=100)
        for step in range(70):
            now[0] += 1
            bar.advance(task)
            bar.update(task, description=f"step {step}")
        spoken = out.getvalue()
    said = {int(step) for step in re.findall(r"(\d+)/100", spoken)} - {0}
    assert said == (set() if terminal else {21, 42, 63})
    assert "step 69" in out.getvalue()  # at the end, as ever


def test_nothing_where_it_is_switched_off(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(progress_bars, "PAUSE", -1.0)
    with progress_bars.Bar(console=Console(file=out), disable=True) as bar:
        bar.advance(bar.add_task("x", total=2))
    assert "x" not in out.getvalue()


def test_errors_of_the_operating_system_become_a_sentence(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(typer.Exit), errors_as_sentences():
        (tmp_path / "file" / "inside").mkdir()
    assert capsys.readouterr().err == f"{tmp_path / 'file' / 'inside'}: Not a directory. Pass another path.\n"


EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m[red]\x08\r\u202e[/nothing]\udcff"


def clean(output):
    """No control character that is not ours: rich's colours are off."""
    return not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", output)


def test_texts_of_others_are_shown_in_plain():
    assert plain(EVIL) == r"\x1b]0;owned\x07\x1b[2J\x9b31m[red]\x08\r\u202e[/nothing]\udcff"
    assert plain("two\r\nlines\twith tabs, Ünïcödé 漢字 \\boxed{1}") == "two\nlines\twith tabs, Ünïcödé 漢字 \\boxed{1}"
    assert foreign(EVIL, "bold").plain == plain(EVIL)


def test_bars_take_no_markup():
    out = io.StringIO()
    with progress_bars.Bar(console=Console(file=out, width=200)) as bar:
        task = bar.add_task(EVIL, total=2)
        bar.update(task, description=EVIL + "now", completed=2)
    assert plain(EVIL) + "now" in out.getvalue()
    assert clean(out.getvalue())


def run(*words):
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "300"})
    assert "Traceback" not in done.output
    assert not isinstance(done.exception, Exception) or isinstance(done.exception, SystemExit)
    assert clean(done.output), repr(done.output)
    return done


@pytest.mark.parametrize(
    "words",
    [
        [EVIL],
        ["sudoku", EVIL],
        ["sudoku", "solve", EVIL],
        ["sudoku", "solve", "1", EVIL],
        ["sudoku", "eval", "--data", f"/nowhere/{EVIL}.csv"],
        ["sudoku", "train", "--data", EVIL, "--out", EVIL],
        ["sudoku", "demo", "--picture", EVIL],
        ["sft", EVIL],
        ["sft", "--model", f"./{EVIL}", "--data", EVIL, "--out", EVIL],
        ["data", EVIL],
        ["eval", "show", EVIL],
        ["eval", "math", EVIL, "--model", EVIL, "--out", "x"],
        ["eval", "math", EVIL, "--server", f"http://{EVIL}/", "--out", "x"],
        ["eval", "likelihood", EVIL, "--model", f"./{EVIL}"],
        ["eval", "lm", "--model", f"./{EVIL}", "--out", EVIL],
        ["analyse", "alignment", "--model", f"./{EVIL}", "--data", EVIL, "--out", "x"],
        ["countdown", "make", "--out", "x", "--numbers", EVIL],
        ["bench", "lqr", "--regime", EVIL],
    ],
)
def test_names_reach_the_terminal_in_plain(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*words).exit_code != 0


def test_answers_and_problems_reach_the_terminal_in_plain(tmp_path):
    evil = EVIL[:-1]
    (tmp_path / "settings.json").write_text("{}")
    (tmp_path / "problems.jsonl").write_text(json.dumps({"number": 1, "text": evil, "answer": evil}))
    line = {"problem": 1, "sample": 0, "horizon": None, "new_tokens": 1, "finish": "stop", "verdict": "wrong"}
    line |= {"answer": evil, "note": evil, "text": evil, "prompt_tokens": 1, "seconds": 1.0, "mean_logprob": -1.0}
    (tmp_path / "generations.0.jsonl").write_text(json.dumps(line) + "\n")
    done = run("eval", "show", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert done.output.count(plain(evil)) == 4


def test_log_messages_of_libraries_are_plain():
    CliRunner().invoke(app, ["countdown", "make"])
    before = logging.getLogRecordFactory()
    try:
        record = before("transformers", logging.WARNING, "file", 1, "weights %s", (EVIL,), None)
        assert record.getMessage() == f"weights {plain(EVIL)}"
    finally:
        logging.setLogRecordFactory(logging.LogRecord)


def test_one_module_prints_everything():
    """And by rich, where a table, a picture of a board or pages of `foreign` texts are shown."""
    allowed = {
        "terminal/console.py": 3,  # say, show, tell
        "terminal/progress_bars.py": 1,
        "tasks/math/compare.py": 1,  # JSON, for the process that started it
        "cli/sudoku_watch.py": 4,  # boards and a table of numbers
        "evaluate/runs/show.py": 3,
        "data/run.py": 1,
        "cli/__init__.py": 1,  # the names of sections
        "cli/bench.py": 1,  # a table of numbers
    }
    found = Counter()
    for path in (Path(ttcnet.__file__).parent).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func).rpartition(".")[2]
                found[str(path.relative_to(Path(ttcnet.__file__).parent))] += name in ("echo", "secho", "print")
    assert dict(+found) == allowed
