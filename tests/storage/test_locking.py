"""One command at a time in a folder, told by a lock that dies with its process."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.raising import raises, told
from ttcnet.cli import app
from ttcnet.storage import locking
from ttcnet.storage.locking import owned

SOLVED = "".join("123456789"[(3 * row + row // 3 + column) % 9] for row in range(9) for column in range(9))
HOLD = "import sys, time; from pathlib import Path; from ttcnet.storage.locking import owned\n"
HOLD += "with owned(Path(sys.argv[1])): print('mine', flush=True); time.sleep(60)"


@pytest.fixture
def holder(tmp_path):
    """Another process that has the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "mine\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_folder_is_one_commands_alone(holder, tmp_path):
    for _ in range(2):
        with raises("in-use", "out", f"process {holder.pid} on .+"), owned(tmp_path):
            pass


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_is_gone_when_its_process_is(how, holder, tmp_path):
    holder.send_signal(how)
    holder.wait()
    with owned(tmp_path):
        pass


def test_it_leaves_nothing_behind(tmp_path):
    with owned(tmp_path / "a/b"):
        assert [path.name for path in (tmp_path / "a/b").iterdir()] == [".lock"]
    assert list(tmp_path.iterdir()) == [], "folders that it made, and that nothing was put into"
    with owned(tmp_path / "a/b"):
        (tmp_path / "a/b/log").touch()
    assert [path.name for path in (tmp_path / "a/b").iterdir()] == ["log"]


def test_not_even_for_the_same_process(tmp_path):
    with owned(tmp_path), raises("in-use", "out", f"process {os.getpid()} on"), owned(tmp_path):
        pass
    with owned(tmp_path):
        pass


def test_processes_of_one_job_share_a_folder(tmp_path, monkeypatch):
    with owned(tmp_path):
        monkeypatch.setenv("RANK", "1")
        with owned(tmp_path), pytest.raises(BlockingIOError), owned(tmp_path):
            pass


def test_a_forked_child_does_not_hold_it(tmp_path):
    """Workers of a pool are such children, and may outlive the process that started them."""
    with owned(tmp_path):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        with owned(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_lock_that_is_removed_while_another_waits_is_not_taken(tmp_path, monkeypatch):
    """The other has opened the file, which is removed before it can lock it: it has to make a new one."""
    real, calls = locking.fcntl.flock, []

    def flock(file, how):
        if not calls:
            (tmp_path / ".lock").unlink()
        calls.append(file)
        real(file, how)

    monkeypatch.setattr(locking.fcntl, "flock", flock)
    with owned(tmp_path):
        assert len(calls) == 2
        assert (tmp_path / ".lock").exists()


def test_a_filesystem_without_locks_gives_a_message(tmp_path, monkeypatch, caplog):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locking.fcntl, "flock", flock)
    with owned(tmp_path):
        pass
    assert "cannot be locked (No locks available)" in caplog.text


DATA = '{"problem": "What is 1 + 1?", "solution": "2", "answer": "2"}\n'
BOARD = "puzzle,solution\n" + "0" + SOLVED[1:] + f",{SOLVED}\n"
ELSEWHERE = ["--server", "http://localhost:1/v1", "--model", "m"]
COMMANDS = {
    "data": (["data", "run.toml", "--out", "out"], "out"),
    "sudoku train": (["sudoku", "train", "--data", "boards.csv", "--out", "out", "--layers", "1"], "out"),
    "eval math": (["eval", "math", "sums.jsonl", "--out", "out", *ELSEWHERE], "out/sums"),
    "eval scaling": (["eval", "scaling", "sums.jsonl", "--out", "out", *ELSEWHERE], "out"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_has_a_folder(name, tmp_path, monkeypatch):
    """ttcnet sft and eval lm have tests of their own."""
    monkeypatch.chdir(tmp_path)
    Path("sums.jsonl").write_text(DATA)
    Path("boards.csv").write_text(BOARD)
    Path("run.toml").write_text('[[source]]\ndata = "sums.jsonl"\n')
    words, folder = COMMANDS[name]
    with owned(Path(folder)):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 1, done.output
        assert told(done.output, "in-use", "out", f"{folder}, which process")
        assert [path.name for path in Path(folder).iterdir()] == [".lock"]
