"""The whole pipeline: its files and counts, what happens when it is killed, and what its result is good for."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.data.made import problems, read, rows, write
from tests.fake_server import answer, serving
from tests.raising import raises, told
from tests.train import tiny
from ttcnet.cli import app
from ttcnet.data.run import run
from ttcnet.data.settings import Decontaminate, Near, Sample, Settings, Source, Verify
from ttcnet.data.stages import Stage, StageFolder
from ttcnet.storage import reading
from ttcnet.train.examples import prepare

STAGES = ["fetch-a", "fetch-b", "exact", "near", "decontaminate", "verify", "sample"]


def right(request, _):
    """The model knows all answers but those of every tenth problem: they stand in the names of the rows."""
    number = int(re.search(r"#(\d+)", request["messages"][0]["content"])[1])
    return answer(rf"\boxed{{{number if number % 10 else -1}}}")


def content(count, seed):
    made = [row | {"problem": f"#{n}: {row['problem']}"} for n, row in enumerate(rows(count, seed))]
    for n in (1, 2, 3):  # copies, near copies
        made[-n] = made[n]
        made[-n - 5] = made[n + 5] | {"problem": made[n + 5]["problem"].replace(" and ", " and also ", 1)}
    return made


@pytest.fixture
def server():
    with serving(right) as found:
        yield found


@pytest.fixture
def settings(tmp_path, server):
    sources = [Source(str(write(tmp_path / f"{name}.jsonl", content(40, seed)))) for seed, name in enumerate("ab")]
    tests = [{"problem": text} for text in [*problems(5, seed=9), content(40, 1)[20]["problem"].upper()]]

    def made(out="run", **changes):
        test = Source(str(write(tmp_path / "t.jsonl", tests)))
        options = dict(near=Near(), decontaminate=Decontaminate([test]), sample=Sample(50, quotas={"a": 20}))
        options |= dict(verify=Verify("tiny", server[0], rounds=3, agree=2, concurrent=4))
        return Settings(str(tmp_path / out), sources, **options | changes)

    return made


def counts(made):
    return json.loads((Path(made.out) / "counts.json").read_text())


def numbers(made):
    """The counts, without what differs from run to run."""
    stages = counts(made)["stages"]
    return {name: {key: each for key, each in stage.items() if key != "seconds"} for name, stage in stages.items()}


def test_counts_and_files(settings, capsys):
    result = run(made := settings())
    said = counts(made)
    assert list(said["stages"]) == STAGES
    assert {"settings", "versions", "machine", "commit", "command", "stages"} == set(said)
    assert said["versions"]["rensa"][0].isdigit()
    assert said["settings"]["sample"] == {"rows": 50, "seed": 0, "quotas": {"a": 20}}
    stages = said["stages"]
    assert [stages[name]["read"] - stages[name]["kept"] for name in STAGES[:4]] == [0, 0, 6, 6]
    assert stages["decontaminate"]["dropped"] == {"in t": 1}
    assert stages["verify"]["dropped"] == {"not agreed": 7}
    assert stages["sample"]["sources"]["a"] == 20
    assert len(read(result)) == stages["sample"]["kept"] == 50
    for before, name in pairwise(STAGES[1:]):
        kept = stages[before]["kept"] + (stages["fetch-a"]["kept"] if name == "exact" else 0)
        assert stages[name]["read"] == kept == stages[name]["kept"] + sum(stages[name]["dropped"].values())
    shown = capsys.readouterr().out
    assert all(name in shown for name in STAGES)
    assert not list(result.parent.glob("*.tmp"))


class Killed(BaseException):
    pass


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_run_resumes_and_ends_the_same(stage, settings, server, monkeypatch):
    changes = {} if stage == "verify" else {"verify": None}
    stages = [name for name in STAGES if name == stage or name != "verify"]
    whole = run(settings("whole", **changes)).read_text()
    asked = len(server[1])
    server[1].clear()
    keep, do = Stage.keep, StageFolder.do
    at_work = []

    def fatal(self, row):
        if at_work[-1] == stage and self.kept == 10:
            raise Killed
        keep(self, row)

    monkeypatch.setattr(Stage, "keep", fatal)
    monkeypatch.setattr(StageFolder, "do", lambda *args: at_work.append(args[1].name) or do(*args))
    with pytest.raises(Killed):
        run(made := settings(**changes))
    assert list(numbers(made)) == stages[: stages.index(stage)]
    monkeypatch.setattr(Stage, "keep", keep)
    times = {path: path.stat().st_mtime_ns for path in Path(made.out).glob("*.gz")}
    assert len(times) == stages.index(stage)
    assert run(made).read_text() == whole
    assert {path: path.stat().st_mtime_ns for path in times} == times  # done is done
    assert numbers(made) == numbers(settings("whole", **changes))
    assert len(server[1]) == asked  # no question twice


def test_killed_for_good_in_the_middle_of_verification(settings, server, tmp_path):
    """A process that gets SIGKILL, as of a machine that runs out of memory."""
    whole = run(settings("whole")).read_text()
    asked = len(server[1])
    server[1].clear()
    made = settings()
    code = f"from ttcnet.data.run import run; from ttcnet.data.settings import *; run({made!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    log = tmp_path / "run" / "verify.log.jsonl"
    while time.monotonic() < deadline and not (log.exists() and log.read_bytes().count(b"\n") > 20):
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert "verify" not in counts(made)["stages"]
    known = log.read_bytes().count(b"\n") - 1
    time.sleep(0.3)  # requests of the dead that are still under way
    server[1].clear()
    assert run(made).read_text() == whole
    assert len(server[1]) == asked - known


def test_finished_stages_stay(settings, server, monkeypatch):
    """Settings of stages that are done are not changed; those of later ones may be."""
    with raises("unknown-name", "model"):
        run(settings(verify=Verify("big", server[0], rounds=3, agree=2)))
    with raises("settings-changed", "settings", r"'near': \({.*}, "):
        run(settings(near=Near(0.8)))
    with raises("settings-changed", "settings", r"'near': \({.*}, "):
        run(settings(near=None))
    result = run(settings(sample=Sample(7)))
    assert len(read(result)) == 7
    with raises("settings-changed", "settings", r"'sample': \({.*}, "):
        run(settings(sample=Sample(8)))
    away = Verify("tiny", "http://127.0.0.1:9/v1", rounds=3, agree=2)
    assert run(settings(verify=away, sample=Sample(7))) == result  # nothing is left to ask


def test_data_that_changed_are_refused_and_may_be_gone(settings, tmp_path):
    run(settings())
    before = (tmp_path / "a.jsonl").read_text()
    (tmp_path / "a.jsonl").write_text(before.splitlines(keepends=True)[0])
    with raises("data-changed", "data", r"another .*a\.jsonl"):
        run(settings())
    (tmp_path / "a.jsonl").unlink()
    run(settings())
    path = tmp_path / "run" / "counts.json"  # of a run that kept no digests
    path.write_text(re.sub(r'"files": \{[^}]*\},', "", path.read_text()))
    (tmp_path / "a.jsonl").write_text("")
    run(settings())


def test_a_run_that_came_to_nothing_binds_to_nothing(settings, tmp_path):
    with pytest.raises(FileNotFoundError):
        run(settings(decontaminate=Decontaminate([Source(str(tmp_path / "none.jsonl"))])))
    assert counts(settings())["stages"] == {}
    run(settings(verify=None))


@pytest.mark.filterwarnings("ignore")  # of trl, datasets and transformers, to each other
def test_sft_trains_on_the_result(tmp_path):
    from ttcnet.settings import from_table
    from ttcnet.train import sft
    from ttcnet.train.settings import FineTuning

    source = Source(str(tiny.sums(tmp_path / "sums.jsonl")))
    result = run(Settings(str(tmp_path / "run"), [source]))
    examples = prepare(reading.rows(str(result)), tiny.tokenizer())
    assert len(examples.rows) == 40
    values = dict(model="tiny", data=str(result), out=str(tmp_path / "sft"), adapter="none", steps=1, batch=4)
    sft.fine_tune(from_table(FineTuning, values | dict(bf16=False)), tiny.model(), tiny.tokenizer())
    assert (tmp_path / "sft" / "model" / "model.safetensors").exists()


def test_the_command(tmp_path):
    write(tmp_path / "a.jsonl", rows(5))
    (tmp_path / "run.toml").write_text(f'[[source]]\ndata = "{tmp_path / "a.jsonl"}"\n')
    call = ["data", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")]
    said = CliRunner().invoke(app, call)
    assert said.exit_code == 0
    assert "fetch-a" in said.output
    assert len(read(tmp_path / "run" / "data.jsonl")) == 5
    (tmp_path / "a.jsonl").unlink()
    assert CliRunner().invoke(app, call).exit_code == 0  # all is done


@pytest.mark.parametrize(
    ("text", "code", "field"),
    [("", "missing", "sources"), (None, "not-found", "settings"), ("[", "format", "{file}")],
)
def test_the_command_fails_without_a_traceback(text, code, field, tmp_path):
    if text is not None:
        (tmp_path / "run.toml").write_text(text)
    said = CliRunner().invoke(app, ["data", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")])
    assert said.exit_code == 1
    assert told(said.output, code, field.format(file=tmp_path / "run.toml"))
    assert "Traceback" not in said.output
