"""ttcnet sft by two processes: a rank that dies in the middle of a save leaves the last checkpoint, and one resumes."""

import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing import get_context

import pytest

from tests.raising import told
from tests.train.conftest import run_settings
from tests.train.test_run import checkpoints
from tests.train.tiny import model, sums, tokenizer
from ttcnet.machine.processes import PATIENCE
from ttcnet.storage import tensor_file
from ttcnet.train import sft
from ttcnet.train.learner import Learner

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of trl, datasets and transformers
OPTIONS = dict(batch=8, device_batch=2, train="inserted")


def half_a_run(folder, rank, port):
    """The second process is killed while the first writes the second checkpoint."""
    join(rank, port)
    real, state = tensor_file.save_file, Learner.state

    def slow(tensors, path, **options):
        if path.name.endswith("checkpoint-4.safetensors"):
            time.sleep(3)
        real(tensors, path, **options)

    def dies(self):
        tensors = state(self)
        if rank == 1 and self.step == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return tensors

    tensor_file.save_file, Learner.state = slow, dies
    sft.fine_tune(run_settings(folder, **OPTIONS), model(), tokenizer())


def test_a_rank_that_dies_in_the_middle_of_a_save(tmp_path):
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    processes = [get_context("spawn").Process(target=half_a_run, args=(tmp_path, rank, port)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert processes[0].exitcode not in (0, None)
    assert processes[1].exitcode == -signal.SIGKILL
    run = tmp_path / "run"
    assert checkpoints(run)[0] == 2
    assert not (run / "adapter").exists()

    again = sft.fine_tune(run_settings(tmp_path, **OPTIONS), model(), tokenizer())
    alone = sft.fine_tune(run_settings(tmp_path, "alone", **OPTIONS), model(), tokenizer())
    for one, two in zip(again.parameters(), alone.parameters(), strict=True):
        assert (one - two).abs().max() < 1e-5
    assert not list(run.glob(".*.tmp.*"))


def meet(target, *args):
    """Two processes of a job, to their ends: their exit codes."""
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    processes = [get_context("spawn").Process(target=target, args=(*args, rank, port)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(200)
    return [process.exitcode for process in processes]


def join(rank, port):
    os.environ |= dict(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=port)


def terminated(folder, rank, port):
    """The second process alone is told to stop, in its fifth step."""
    join(rank, port)
    advance = Learner.advance

    def told(self):
        if rank == 1 and self.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        advance(self)

    Learner.advance = told
    sft.fine_tune(run_settings(folder, **OPTIONS), model(), tokenizer())


def whole(folder, out, rank, port):
    join(rank, port)
    sft.fine_tune(run_settings(folder, out, **OPTIONS), model(), tokenizer())


def test_sigterm_to_one_stops_all_and_the_run_resumes_to_the_bit(tmp_path):
    run_settings(tmp_path)  # which writes the data
    assert meet(terminated, tmp_path) == [143, 143]
    assert checkpoints(tmp_path / "run") == [4, 5]
    assert meet(whole, tmp_path, "run") == [0, 0]
    assert meet(whole, tmp_path, "alone") == [0, 0]
    one, two = ((tmp_path / run / "adapter/ttc_adapter.safetensors").read_bytes() for run in ("run", "alone"))
    assert one == two


def test_machines_that_do_not_share_the_folder_are_an_error(tmp_path):
    """The same command in two folders, as on two machines where its path is one of their own."""
    model().save_pretrained(tmp_path / "base")
    tokenizer().save_pretrained(tmp_path / "base")
    sums(tmp_path / "data.jsonl")
    with socket.create_server(("localhost", 0)) as free:
        job = dict(WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=str(free.getsockname()[1]))
    options = ["--model", "../base", "--data", "../data.jsonl", "--out", "run", "--batch", "2", "--every", "2"]
    processes = []
    for rank in ("0", "1"):
        (tmp_path / rank).mkdir()
        environment = os.environ | job | dict(RANK=rank, LOCAL_RANK=rank)
        call = [sys.executable, "-m", "ttcnet", "sft", *options]
        processes.append(
            subprocess.Popen(call, cwd=tmp_path / rank, env=environment, stderr=subprocess.PIPE, text=True)
        )
    said = [process.communicate(timeout=200)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 1]
    assert told(said[0], "not-found", "out", "run, which is another folder for process 1")
    assert not any("Traceback" in text for text in said)
    assert PATIENCE < 60, "a sentence within a minute"
    assert not list(tmp_path.glob("*/run")), "nothing was written"
