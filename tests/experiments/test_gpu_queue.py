"""experiments/gpu_queue: jobs in their order, stopped by the clock and taken up again, packed and unpacked."""

import shlex
import sys

import pytest
from typer.testing import CliRunner

from experiments import gpu_queue
from experiments.gpu_queue import JOBS, Job, app, packed, work

WRITES = "python -c open('{out}/one','a').write('x')"
SLEEPS = "python -c __import__('time').sleep(60)"
FAILS = "python -c raise(SystemExit(3))"


@pytest.fixture
def folders(tmp_path):
    (tmp_path / "out").mkdir()
    return {"out": tmp_path / "out", "data": tmp_path, "base": tmp_path / "base"}


def test_jobs_run_once_and_in_their_order(folders, capsys):
    jobs = (Job("one", "", WRITES, 0), Job("bad", "", FAILS, 0), Job("later", "", WRITES, 0, ("{base}/config.json",)))
    work(jobs, folders, 1)
    said = capsys.readouterr().out
    assert "one                    done" in said
    assert "bad                    failed, 3" in said
    assert f"later                  waits: needs {folders['base']}/config.json" in said
    work(jobs, folders, 1)
    assert (folders["out"] / "one").read_text() == "x"  # done: not run again
    folders["base"].mkdir()
    (folders["base"] / "config.json").touch()
    work(jobs, folders, 1, only=["later"])
    assert (folders["out"] / "one").read_text() == "xx"


def test_a_job_is_stopped_by_the_clock_and_waits_if_too_little_is_left(folders, capsys):
    work((Job("long", "", SLEEPS, 0), Job("next", "", WRITES, 1)), folders, 0.02)
    said = capsys.readouterr().out
    assert "long                   stopped" in said
    assert "next                   waits: needs 1 minutes" in said
    assert not (folders["out"] / "one").exists()


def test_what_was_made_comes_back(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_queue, "PART_BYTES", 100)
    (folders["out"] / "deep").mkdir()
    (folders["out"] / "deep" / "file").write_bytes(bytes(range(256)))
    for run, file in (("deep", "checkpoint-1"), ("done", "checkpoint-1"), ("done", "metrics.json")):
        (folders["out"] / run).mkdir(exist_ok=True)
        (folders["out"] / run / file).touch()
    packed(folders["out"], tmp_path / "packed")
    assert len(list((tmp_path / "packed").iterdir())) > 1
    result = CliRunner().invoke(app, ["unpack", str(tmp_path / "packed"), "--out", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "new" / "deep" / "file").read_bytes() == bytes(range(256))
    found = sorted(str(path.relative_to(tmp_path / "new")) for path in (tmp_path / "new").rglob("*"))
    assert found == ["deep", "deep/checkpoint-1", "deep/file", "done", "done/metrics.json"]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_the_commands_of_the_jobs_exist(job, monkeypatch):
    """Every option that a job names is one of its command."""
    words = shlex.split(job.command.format(out="out", data="data", base="base", minutes="1"))
    assert words[0] in ("python", "ttcnet")
    asked = {word for word in words if word.startswith("--")}
    if words[0] == "ttcnet":
        from ttcnet.cli import app as command

        shown = CliRunner().invoke(command, [*words[1:3], "--help"], env={"COLUMNS": "200"}).output
    else:
        import subprocess

        command = [sys.executable, "-m", words[2], *(words[3:4] if words[2] == "benchmarks" else []), "--help"]
        shown = subprocess.run(command, capture_output=True, text=True, env={"COLUMNS": "200"}).stdout
    assert asked <= {word.strip(",") for word in shown.split()}, shown
    assert len({job.name for job in JOBS}) == len(JOBS)


def test_an_unknown_job_is_named(tmp_path):
    result = CliRunner().invoke(app, ["run", "--out", str(tmp_path), "--only", "nothing"])
    assert result.exit_code == 1
    assert "nothing" in result.output
    assert "gpu-tests" in CliRunner().invoke(app, ["list"]).output
