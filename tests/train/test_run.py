"""What holds for every run, whatever it trains: killed, stopped, damaged, resumed. One battery over all of it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from multiprocessing import get_context

import pytest
import torch

from tests.raising import raises
from tests.train.engines import ENGINES, Diagnostic, log_of
from ttcnet.errors import TTCNetError
from ttcnet.storage import tensor_file
from ttcnet.storage.locking import owned

pytestmark = pytest.mark.filterwarnings("ignore")  # of datasets, peft and transformers, to each other


class KilledError(Exception):
    """Ends a run from within, as a signal would."""


@pytest.fixture(params=ENGINES, scope="module")
def engine(request):
    return ENGINES[request.param]


@pytest.fixture(scope="module")
def whole(engine, tmp_path_factory):
    """A finished run: its folder, and its weights. Read or copy it; do not change it."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, engine.go(folder)


def before_step(engine, monkeypatch, step, act):
    advance = engine.trained.advance

    def watched(self):
        if self.step == step:
            act()
        advance(self)

    monkeypatch.setattr(engine.trained, "advance", watched)


def kill():
    raise KilledError


def checkpoints(out):
    return sorted(int(path.stem.removeprefix("checkpoint-")) for path in out.glob("checkpoint-*.safetensors"))


def killed(engine, monkeypatch, out, step):
    with monkeypatch.context() as patched:
        before_step(engine, patched, step, kill)
        with pytest.raises(KilledError):
            engine.go(out)
    torch.manual_seed(99)  # whatever happens in between


def assert_equal(one, two):
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(two[name])), name


def assert_same_run(engine, whole, out, learned):
    assert_equal(whole[1], learned)
    assert log_of(out) == log_of(whole[0])
    assert all((out / result).exists() for result in engine.results if result != "done")


@pytest.mark.parametrize("step", [2, 5])
def test_a_killed_run_ends_at_the_same_weights(step, engine, whole, monkeypatch, tmp_path):
    """It is killed before its first checkpoint, or after it, with half a line in its log."""
    out = tmp_path / "run"
    killed(engine, monkeypatch, out, step)
    assert checkpoints(out) == [3][: step // 3]
    with (out / "log.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    assert_same_run(engine, whole, out, engine.go(out))


def test_a_stopped_run_saves_and_ends_at_the_same_weights(engine, whole, monkeypatch, tmp_path, capsys):
    out, before = tmp_path / "run", signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patched:
        before_step(engine, patched, 4, lambda: [os.kill(os.getpid(), signal.SIGTERM) for _ in range(2)])
        with pytest.raises(SystemExit) as stopped:
            engine.go(out)
    assert stopped.value.code == 143
    told = capsys.readouterr().err
    assert told.count("SIGTERM: stopping after this step ...") == 1, "though a launcher passes it on"
    assert "Stopped by SIGTERM after step 5 of 7, which is saved. Give the command again to resume." in told
    assert checkpoints(out)[-1] == 5
    assert signal.getsignal(signal.SIGTERM) == before
    assert_equal(whole[1], engine.go(out))
    assert [line["step"] for line in log_of(out)] == [2, 3, 4, 5, 6, 7], "with a line for where it stopped"


def test_a_save_that_dies_leaves_the_last_checkpoint(engine, whole, monkeypatch, tmp_path):
    out, real = tmp_path / "run", tensor_file.save_file

    def dies(tensors, path, **options):
        real(tensors, path, **options)
        if path.name.endswith("checkpoint-6.safetensors"):
            path.write_bytes(path.read_bytes()[:1000])
            raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(tensor_file, "save_file", dies)
        with pytest.raises(KilledError):
            engine.go(out)
    assert checkpoints(out) == [3]
    assert_same_run(engine, whole, out, engine.go(out))
    assert not list(out.glob(".*.tmp.*"))


def test_other_settings_are_refused(engine, monkeypatch, tmp_path):
    """They are refused after a kill, and when only the checkpoint still knows the run's own."""
    out = tmp_path / "run"
    killed(engine, monkeypatch, out, 5)
    for _ in range(2):
        with raises("settings-changed", "settings", r"{'\w+': \(\d+, \d+\)}"):
            engine.go(out, **engine.changed)
        (out / "settings.json").unlink(missing_ok=True)


def test_other_settings_are_refused_at_the_end(engine, whole):
    if whole[0].joinpath(engine.results[0]).exists():
        with raises("settings-changed", "settings", r"'\w+': \(\d+, \d+\)"):
            engine.go(whole[0], **engine.changed)


def test_a_run_that_is_done_is_not_trained_again(engine, monkeypatch, tmp_path):
    out = tmp_path / "run"
    learned, lines = engine.go(out), log_of(out)
    monkeypatch.setattr(engine.trained, "advance", None)
    again = engine.go(out)
    if not isinstance(engine, Diagnostic):  # which keeps no weights
        assert_equal(learned, again)
    assert log_of(out) == lines


def test_damaged_checkpoints(engine, whole, monkeypatch, tmp_path, capsys):
    """The one before is taken where there is one; a run with none that is whole does not start again in silence."""
    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        before_step(engine, patched, 6, kill)
        with pytest.raises(KilledError):
            engine.go(out)
    assert checkpoints(out) == [3, 6][-engine.keep :]
    last = out / "checkpoint-6.safetensors"
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    if engine.keep > 1:
        assert_same_run(engine, whole, out, engine.go(out))
        assert "checkpoint-6.safetensors is damaged, and skipped." in capsys.readouterr().err
        return
    with raises("damaged", str(out), "checkpoint-6.safetensors"):
        engine.go(out)


def test_a_checkpoint_with_other_contents_is_refused(engine, monkeypatch, tmp_path):
    """Weights that are missing, have another shape or are no numbers: never taken for those of the run."""
    out = tmp_path / "run"
    killed(engine, monkeypatch, out, 5)
    path = out / "checkpoint-3.safetensors"
    tensors, facts = tensor_file.load(path)
    name = next(name for name in tensors if not name.startswith("random/"))
    tensor_file.save(path, {each: x for each, x in tensors.items() if each != name}, facts)
    with pytest.raises(TTCNetError) as error:
        engine.go(out)
    assert error.value.code in ("damaged", "weights")
    assert error.value.field == str(path)
    changed = [tensors[name].flatten()[:1]]
    if not isinstance(engine, Diagnostic):  # where a model with too high a learning rate may end so
        changed.append(torch.full_like(tensors[name], torch.nan))
    for other in changed:
        tensor_file.save(path, tensors | {name: other}, facts)
        with raises("damaged", str(path)):
            engine.go(out)


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "checkpoint-3/state.safetensors"])
def test_checkpoints_of_older_versions_are_refused(name, engine, tmp_path):
    out = tmp_path / "run"
    tensor_file.save(out / name, {"weights": torch.zeros(3)}, {"step": 3})
    with raises("damaged", "out", "checkpoint"):
        engine.go(out)
    tensor_file.save(out / "checkpoint-3.safetensors", {"weights": torch.zeros(3)}, {"step": 3})
    shutil.rmtree(out / "checkpoint-3", ignore_errors=True)
    (out / "checkpoint.safetensors").unlink(missing_ok=True)
    with raises("damaged", str(out), "checkpoint-3.safetensors"):
        engine.go(out)


def test_the_folder_has_settings_and_provenance(engine, whole):
    found = json.loads((whole[0] / "settings.json").read_text())
    assert found["steps"] == 7
    assert {"command", "commit", "versions", "machine"} <= found["provenance"].keys()
    assert checkpoints(whole[0]) == ([6, 7][-engine.keep :] if "metrics.json" not in engine.results else [])
    suffixes = {path.suffix for path in whole[0].rglob("*") if path.is_file()}
    assert suffixes <= {".safetensors", ".json", ".jsonl", ".md", ".jinja", ".arrow"}, "nothing is pickled"


def test_one_command_at_a_time(engine, tmp_path):
    hold = "import sys, time; from pathlib import Path; from ttcnet.storage.locking import owned\n"
    hold += "with owned(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(60)\n"
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path / "run")], stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with raises("in-use", "out"):
            engine.go(tmp_path / "run")
        holder.kill()
    with owned(tmp_path / "run"):
        pass


def one_of_two(name, out, dies, rank, port):
    """A process of a job, which writes its weights beside the folder; or is killed in its sixth step."""
    os.environ |= dict(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=port)
    engine = ENGINES[name]
    if dies:
        before_step(engine, pytest.MonkeyPatch(), 5, lambda: os._exit(9))
    learned = engine.go(out, **engine.without_dropout)
    tensor_file.save(out.parent / f"learned-{rank}.safetensors", learned, {})


def two_processes(name, out, dies=False):
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    spawn = get_context("spawn")
    both = [spawn.Process(target=one_of_two, args=(name, out, dies, rank, port)) for rank in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(200)
        assert process.exitcode == (9 if dies else 0)
    return None if dies else tensor_file.load(out.parent / "learned-1.safetensors")[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, engine in ENGINES.items() if engine.joins])
def test_another_number_of_processes(name, tmp_path):
    """What two processes began, two resume to the bit, and one resumes too; and two end where one does."""
    engine, first = ENGINES[name], tmp_path / "killed"
    engine.go(tmp_path / "one", **engine.without_dropout | {"steps": 1})  # which writes the data for all
    one = engine.go(tmp_path / "alone", **engine.without_dropout)
    whole = two_processes(name, tmp_path / "whole")
    two_processes(name, first, dies=True)
    assert checkpoints(first) == [3]
    shutil.copytree(first, tmp_path / "again")
    assert_equal(whole, two_processes(name, tmp_path / "again"))
    resumed = engine.go(first, **engine.without_dropout)
    for found in (whole, resumed):
        assert max((found[key] - value).abs().max().item() for key, value in one.items()) < 1e-5
