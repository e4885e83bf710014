"""Files are written completely or not at all, with the user's permissions; no device or pipe is replaced."""

import csv
import json
import os
import stat
import subprocess
import sys
import threading

import pytest
import torch
from typer.testing import CliRunner

from tests.raising import raises
from ttcnet.cli import app
from ttcnet.storage import tensor_file, writing


@pytest.fixture
def mask():
    """Another umask than that of most machines."""
    before = os.umask(0o026)
    yield
    os.umask(before)


def permissions(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_takes_the_place_of_another_at_the_end(tmp_path):
    file = tmp_path / "figure.png"
    file.write_text("old")
    with writing.replacing(file) as new:
        assert new.suffix == ".png"
        assert new.parent == tmp_path
        new.write_text("new")
        assert file.read_text() == "old"
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


def test_a_block_that_fails_leaves_the_old_file(tmp_path):
    file = tmp_path / "figure.png"
    file.write_text("old")

    def dies():
        with writing.replacing(file) as new:
            new.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        dies()
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_two_at_the_same_time_have_names_of_their_own(tmp_path):
    file = tmp_path / "summary.json"
    with writing.replacing(file) as one, writing.replacing(file) as two:
        assert one != two
        one.write_text("one")
        two.write_text("two")
    assert file.read_text() == "one"
    assert list(tmp_path.iterdir()) == [file]


def test_links_are_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target, link, dangling = tmp_path / "elsewhere/target.json", tmp_path / "link.json", tmp_path / "dangling.json"
    target.write_text("old")
    link.symlink_to("elsewhere/target.json")
    dangling.symlink_to("elsewhere/new.json")
    for path in (link, dangling):
        writing.check_output("out", path)
        writing.write_text(path, "new")
        assert path.is_symlink()
    assert target.read_text() == (tmp_path / "elsewhere/new.json").read_text() == "new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "dangling.json", "elsewhere", "link.json", "new.json", "target.json"
    ]  # fmt: skip


def test_a_device_stays_a_device(tmp_path):
    """One of our own, which is like /dev/null; where that is not allowed, a link to it, which is as good."""
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.write_bytes(b"")  # not on a filesystem without devices
    except OSError:
        device.unlink(missing_ok=True)
        device.symlink_to("/dev/null")
    before = os.stat(device)
    writing.check_output("out", device)
    writing.write_json(device, {"step": 1})
    result = CliRunner().invoke(app, ["countdown", "make", "--out", str(device), "--count", "2", "--numbers", "2"])
    assert result.exit_code == 0, result.output
    after = os.stat(device)
    assert stat.S_ISCHR(after.st_mode)
    assert (after.st_ino, after.st_rdev) == (before.st_ino, before.st_rdev)
    assert list(tmp_path.iterdir()) == [device]


def test_a_pipe_is_written_to(tmp_path):
    pipe, read = tmp_path / "pipe.csv", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    writing.write_csv(pipe, [{"a": "1"}])
    reader.join(10)
    assert read == [b"a\r\n1\r\n"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("into", ["a file", "a pipe"])
def test_stdout_is_appended_to(name, into, tmp_path):
    """Redirected to a file too, which must neither be replaced nor written from its beginning."""
    code = (
        "from pathlib import Path; from ttcnet.storage.writing import check_output, write_text; print('before');"
        f"path = Path({name!r}); check_output('out', path); write_text(path, 'content\\n'); print('after')"
    )
    if into == "a pipe":
        found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    else:
        with (tmp_path / "out.txt").open("w") as file:
            subprocess.run([sys.executable, "-c", code], check=True, stdout=file)
        found = (tmp_path / "out.txt").read_text()
    assert found == "before\ncontent\nafter\n"


def test_results_can_go_to_stdout(tmp_path):
    command = [sys.executable, "-m", "ttcnet", "countdown", "make", "--out", "/dev/stdout", "--count", "2"]
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert all({"numbers", "target", "solution"} <= set(json.loads(line)) for line in made[:2])
    assert made[2:] == ["2 puzzles are in /dev/stdout."]


def test_unwritable_paths_are_errors_beforehand(tmp_path):
    with raises("not-writable", "out", "which is a folder"):
        writing.check_output("out", tmp_path)


def test_files_have_the_permissions_that_the_umask_gives(tmp_path, mask):
    tensor_file.save(tmp_path / "weights.safetensors", {"a": torch.zeros(2)}, {})
    writing.write_text(tmp_path / "text.json", "{}")
    assert permissions(tmp_path / "weights.safetensors") == permissions(tmp_path / "text.json") == 0o640
    (tmp_path / "text.json").chmod(0o604)
    writing.write_text(tmp_path / "text.json", "[]")
    assert permissions(tmp_path / "text.json") == 0o604, "those of the file that was there"


def test_folders_too(tmp_path, mask):
    """Files of transformers and safetensors are closed to other users."""
    from safetensors.torch import save_file

    for text in ("one", "two"):
        new = writing.temporary(tmp_path / "model")
        (new / "inner").mkdir(parents=True)
        save_file({"a": torch.zeros(2)}, new / "model.safetensors")
        (new / "inner/text").write_text(text)
        (new / "inner/text").chmod(0o600)
        writing.put(new, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model/inner/text").read_text() == "two"
    assert permissions(tmp_path / "model") == permissions(tmp_path / "model/inner") == 0o751
    assert permissions(tmp_path / "model/model.safetensors") == permissions(tmp_path / "model/inner/text") == 0o640


def test_leftovers_go_and_nothing_else(tmp_path):
    new = writing.temporary(tmp_path / "log.jsonl")
    new.write_text("half")
    writing.temporary(tmp_path / "model").mkdir()
    kept = [tmp_path / name for name in (".lock", "a.tmp", ".tmp.log", "log.jsonl", ".0123.tmp.log")]
    for path in kept:
        path.touch()
    writing.clear(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_two_processes_that_write_the_same_file_do_not_stumble_over_each_other(tmp_path, monkeypatch):
    """The last two processes of an evaluation may end at the same time, and both write its summary."""
    replace, file = os.replace, tmp_path / "summary.json"

    def meanwhile(source, target):
        monkeypatch.setattr(os, "replace", replace)
        writing.write_text(file, "the other's")
        replace(source, target)

    monkeypatch.setattr(os, "replace", meanwhile)
    writing.write_text(file, "ours")
    assert file.read_text() == "ours"
    assert list(tmp_path.iterdir()) == [file]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "log.jsonl"
    writing.write_lines(file, [{"step": 1}])

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        writing.write_lines(file, [{"step": 2}])
    assert file.read_text() == '{"step": 1}\n'
    assert list(tmp_path.iterdir()) == [file]


def test_tables_come_back_as_they_were(tmp_path):
    rows = [{"name": "a, b", "value": "1\n2"}, {"name": "é", "value": ""}]
    writing.write_csv(tmp_path / "rows.csv", rows)
    with (tmp_path / "rows.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.DictReader(file)) == rows
