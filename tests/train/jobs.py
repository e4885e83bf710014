"""Jobs of several processes, which are forked from one that has imported everything and computed nothing."""

import os
import socket
from multiprocessing import get_context
from pathlib import Path

import ttcnet.models.sharded_loading  # noqa: F401  imported here, for all that are forked
from tests.train.conftest import ADAPTER
from tests.train.tiny import model, sums, tokenizer
from ttcnet.settings import from_table
from ttcnet.train.settings import FineTuning
from ttcnet.train.sft import fine_tune

BASE = dict(batch=8, device_batch=2, lr=1e-3, bf16=False, steps=20, save_every=20, check_pointing=False)


def base(folder, **changes):
    """The files that runs start from."""
    model(**changes).save_pretrained(folder / "base")
    tokenizer().save_pretrained(folder / "base")
    sums(folder / "data.jsonl")
    return folder


def settings(folder, out, **changes):
    values = dict(model=str(folder / "base"), data=str(folder / "data.jsonl"), out=str(folder / out), adapter=ADAPTER)
    return from_table(FineTuning, values | BASE | dict(sharded=True) | changes)


def tune(folder, out, **changes):
    fine_tune(settings(Path(folder), out, **changes))


def _one(target, args, changes, rank, count, port, said):
    if said is not None:
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    os.environ |= dict(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count))
    os.environ |= dict(MASTER_ADDR="localhost", MASTER_PORT=port, CUDA_VISIBLE_DEVICES="")
    target(*args, **changes)


def job(count, target, *args, seconds=240, said=None, **changes):
    """Run `count` processes of a job. Returns their exit codes; their output goes to the file `said`, if given."""
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    server = get_context("forkserver")
    server.set_forkserver_preload(["tests.train.jobs"])
    processes = [
        server.Process(target=_one, args=(target, args, changes, rank, count, port, said)) for rank in range(count)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
    return [process.exitcode for process in processes]
