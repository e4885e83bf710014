"""ttcnet sft by two processes: a rank that dies in the middle of a save leaves the last checkpoint, and one goes on."""

import os
import signal
import socket
from multiprocessing import get_context

import pytest

from tests.train.conftest import run_settings
from tests.train.tiny import model, tokenizer
from ttcnet.train import fine_tuner, sft

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of trl, datasets and transformers
OPTIONS = dict(batch=8, device_batch=2, train="inserted")


def half_a_run(folder, rank, port):
    """Rank 1 is killed while it writes its part of the second checkpoint."""
    os.environ |= dict(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=port)
    real = fine_tuner.save

    def save(path, *rest):
        if rank == 1 and "checkpoint-4" in str(path):
            os.kill(os.getpid(), signal.SIGKILL)
        real(path, *rest)

    fine_tuner.save = save
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
    assert [path.name for path in fine_tuner.checkpoints(run)] == ["checkpoint-2"]
    assert not (run / "adapter").exists()

    again = sft.fine_tune(run_settings(tmp_path, **OPTIONS), model(), tokenizer())
    alone = sft.fine_tune(run_settings(tmp_path, "alone", **OPTIONS), model(), tokenizer())
    for one, two in zip(again.parameters(), alone.parameters(), strict=True):
        assert (one - two).abs().max() < 1e-5
    assert not list(run.glob(".*.tmp.*"))
