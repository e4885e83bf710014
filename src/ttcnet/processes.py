"""The processes of one distributed job, which `accelerate launch` or `torchrun` started; one process is a job too."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import fail

PATIENCE = 30.0  # seconds that a network filesystem has to show a new file


def rank() -> int:
    """The number of this process, also before it has joined its job."""
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))


def count() -> int:
    """The number of processes, also before this one has joined them."""
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))


def is_first_process() -> bool:
    """Whether this process writes the common files and shows progress."""
    return rank() == 0


def join_job(device: str) -> str:
    """Join the other processes, if there are any. Returns the device of this process."""
    if count() == 1:
        return device
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not dist.is_initialized():
        dist.init_process_group("nccl" if on_gpu else "gloo")
    return f"cuda:{torch.cuda.current_device()}" if on_gpu else device


def leave_job() -> None:
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def wait_for_all() -> None:
    """Wait until all processes are here."""
    if dist.is_initialized():
        dist.barrier()


def any_of_all(*flags: bool) -> list[bool]:
    """Whether each of the flags is set in any process. Every process must call this."""
    return [bool(number) for number in total(torch.tensor(flags, dtype=torch.float32)).tolist()]


def total(numbers: Tensor) -> Tensor:
    """The sum over all processes. Every process must call this."""
    if not dist.is_initialized():
        return numbers
    found = numbers.to("cuda" if "nccl" in dist.get_backend() else "cpu")
    dist.all_reduce(found)
    return found.to(numbers.device)


def whole(tensor: Tensor) -> Tensor:
    """A tensor that FSDP has spread over processes, in one piece. Every process must call this."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def check_shared(out: Path) -> None:
    """Fail, in all processes, if one of them does not see what the first one writes to the folder."""
    if count() == 1 or not dist.is_initialized():
        return
    sign = out / f".sign-{int(total(torch.tensor(secrets.randbits(48) if is_first_process() else 0)))}"
    if is_first_process():
        sign.touch()
    dist.barrier()
    seen = torch.zeros(count(), dtype=torch.int64)
    seen[rank()] = _appears(sign)
    blind = [str(number) for number, saw in enumerate(total(seen).tolist()) if not saw]
    if is_first_process():
        sign.unlink(missing_ok=True)
    if blind:
        if not is_first_process():
            raise SystemExit(1)  # the first one says it
        value = f"{out}, which is another folder for process{'es' * (len(blind) > 1)} {', '.join(blind)}"
        remedy = "Name a folder on a filesystem that all machines share, by its whole path."
        fail("out", f"must be one folder for all {count()} processes", value, remedy, "not-found")


def _appears(sign: Path) -> bool:
    end = time.monotonic() + PATIENCE
    while not (found := sign.exists()) and time.monotonic() < end:
        time.sleep(0.5)
        os.listdir(sign.parent)  # which has NFS look again
    return found
