"""Devices, pipes and sockets: no reader waits for them, or reads without an end."""

import os
import subprocess
import sys
import threading

import pytest
from typer.testing import CliRunner

from tests.raising import raises, told
from ttcnet.cli import app
from ttcnet.model_names import check_model
from ttcnet.storage import reading
from ttcnet.storage.locking import owned
from ttcnet.storage.reading import is_file, read_bytes, read_json, rows
from ttcnet.storage.special import special_kind
from ttcnet.tasks import find
from ttcnet.tasks.sudoku import generate, read

ENDLESS = ["/dev/zero", "/dev/urandom", "pipe"]


@pytest.fixture(autouse=True)
def pipe(tmp_path, monkeypatch):
    """A named pipe that nobody writes to."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize(("path", "kind"), [("/dev/zero", "a device"), ("pipe", "a pipe"), (".", None), ("x", None)])
def test_kinds(path, kind):
    assert special_kind(path) == kind


@pytest.mark.parametrize("path", ENDLESS)
@pytest.mark.parametrize("reader", [read, read_bytes, is_file, lambda path: [*rows(path)], read_json, find])
def test_every_reader_refuses_what_has_no_end(path, reader):
    arguments = ("a remedy",) if reader is read_json else ()
    with raises("not-readable", value="is not a regular file but"):
        reader(reading.Path(path) if reader in (read_bytes, read_json) else path, *arguments)


COMMANDS = {
    "sudoku rate {}": "{}:",
    "sudoku train --data {} --out new": "{}:",
    "sudoku eval --data {}": "{}:",
    "sudoku probe --train {0} --test {0}": "{}:",
    "data {}": "settings",
    "sft {}": "settings",
    "sft --model ./base --data {} --out new": "data",
    "eval likelihood {} --model ./base": "data",
    "eval math {} --model ./base --out new": "benchmark",
    "bench lqr --resume --out {}": "out",
}


@pytest.mark.parametrize("path", ENDLESS)
@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_refuses_what_has_no_end(line, path, tmp_path):
    (tmp_path / "base").mkdir()
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "base" / name).write_text("{}")
    result = CliRunner().invoke(app, line.format(path).split())
    assert result.exit_code == 1
    assert told(result.output, "not-readable", COMMANDS[line].format(path), "is not a regular file but")


def test_a_pipe_that_was_given_is_read(tmp_path):
    boards = generate(2, seed=0)
    boards.write(tmp_path / "boards.csv")
    content = (tmp_path / "boards.csv").read_bytes()
    command = [sys.executable, "-m", "ttcnet", "sudoku", "rate", "/dev/stdin"]
    done = subprocess.run(command, input=content, capture_output=True, check=True)
    assert b"boards" in done.stdout
    ends = os.pipe()
    writer = threading.Thread(target=lambda: (os.write(ends[1], content), os.close(ends[1])))
    writer.start()
    assert len(read(f"/dev/fd/{ends[0]}")) == 2
    writer.join()
    os.close(ends[0])


def test_a_pipe_that_does_not_end_is_refused(monkeypatch):
    monkeypatch.setattr(reading, "MOST", 1000)
    ends = os.pipe()
    os.write(ends[1], b"0" * 1001)
    with raises("too-large", value="more"):
        read(f"/dev/fd/{ends[0]}")
    for end in ends:
        os.close(end)


@pytest.mark.parametrize("name", ["pipe", "link"])
def test_a_folder_for_a_run_is_none_of_these(name, tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    with (
        raises("not-writable", "out", "a pipe" if name == "pipe" else "a link that leads nowhere"),
        owned(tmp_path / name),
    ):
        pass


def test_nothing_in_a_folder_is_one_of_these(tmp_path):
    with raises("not-readable", "out", "a pipe"), owned(tmp_path):
        pass
    (tmp_path / "config.json").write_text("{}")
    with raises("not-readable", "model", "a pipe"):
        check_model(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with raises("not-readable", "model", "a pipe"):
        check_model(f"{tmp_path}/", tmp_path)
