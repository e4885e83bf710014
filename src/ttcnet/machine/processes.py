"""The processes of one distributed job, which `accelerate launch` or `torchrun` started; one process is a job too."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ttcnet.errors import fail

PATIENCE = 30.0  # seconds for a network filesystem to show a new file
LONGEST = timedelta(days=1)  # seconds that processes wait for one that prepares data or writes


def rank() -> int:
    """The rank of this process, also before it has joined its job."""
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))


def count() -> int:
    """The number of processes, also before this one has joined them."""
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """The rank of this process among those of its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_first_process() -> bool:
    """Whether this process writes the common files and shows progress."""
    return rank() == 0


def join_job(device: str) -> str:
    """Join the other processes, if there are any. Returns the device of this process."""
    if count() == 1:
        return device
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(local_rank())
    if not dist.is_initialized():
        dist.init_process_group("nccl" if on_gpu else "gloo")
    return f"cuda:{torch.cuda.current_device()}" if on_gpu else device


def leave_job() -> None:
    if dist.is_initialized():
        wait_for_all()
        dist.destroy_process_group()
        _messages.cache_clear()


def wait_for_all() -> None:
    """Wait until all processes are here."""
    total(torch.zeros(()))


def any_of_all(*flags: bool) -> list[bool]:
    """Whether each of the flags is set in any process. Every process must call this."""
    return [bool(number) for number in total(torch.tensor(flags, dtype=torch.float32)).tolist()]


def total(numbers: Tensor) -> Tensor:
    """The sum over all processes. Every process must call this."""
    if not dist.is_initialized():
        return numbers
    found = numbers.cpu().clone()
    dist.all_reduce(found, group=_messages())
    return found.to(numbers.device)


@cache
def _messages() -> Any:
    """A group for messages between processes, apart from computing: in main memory, with a longer time limit."""
    return dist.new_group(backend="gloo", timeout=LONGEST)


def of_first(text: str) -> str:
    """The text of the first process, in all processes. All have to call this."""
    if not dist.is_initialized():
        return text
    mine = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    length = int(total(torch.tensor(len(mine) if is_first_process() else 0)))
    found = mine if is_first_process() else torch.zeros(length, dtype=torch.uint8)
    dist.broadcast(found, 0, group=_messages())
    return found.numpy().tobytes().decode()


@contextmanager
def together() -> Iterator[None]:
    """A block that succeeds in all processes or in none; they exchange nothing inside. If it fails in some, the first
    of these raises its error, and the others end without a message."""
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    failed = [rank()] if error is not None else []
    if dist.is_initialized():
        each = torch.zeros(count())
        each[rank()] = len(failed)
        failed = total(each).nonzero().flatten().tolist()
    if failed and failed[0] == rank():
        assert error is not None
        raise error
    if failed:
        raise SystemExit(1)


def whole(tensor: Tensor) -> Tensor:
    """A tensor that FSDP has spread over processes, in one piece. Every process must call this."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def check_shared(out: Path) -> None:
    """Fail, in all processes, if one of them does not see a file that the first one writes to the folder."""
    if count() == 1 or not dist.is_initialized():
        return
    sign = out / f".sign-{int(total(torch.tensor(secrets.randbits(48) if is_first_process() else 0)))}"
    if is_first_process():
        sign.touch()
    wait_for_all()
    seen = torch.zeros(count(), dtype=torch.int64)
    seen[rank()] = _appears(sign)
    blind = [str(number) for number, saw in enumerate(total(seen).tolist()) if not saw]
    if is_first_process():
        sign.unlink(missing_ok=True)
    if blind:
        if not is_first_process():
            raise SystemExit(1)  # the first process raises the error
        value = f"{out}, which is another folder for process{'es' * (len(blind) > 1)} {', '.join(blind)}"
        remedy = "Name a folder on a filesystem that all machines share, by its whole path."
        fail("out", f"must be one folder for all {count()} processes", value, remedy, "not-found")


def _appears(sign: Path) -> bool:
    end = time.monotonic() + PATIENCE
    while not (found := sign.exists()) and time.monotonic() < end:
        time.sleep(0.5)
        os.listdir(sign.parent)  # which makes NFS look again
    return found
