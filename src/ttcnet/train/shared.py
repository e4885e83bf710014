"""The folder of a run is one that all its machines see."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

import torch
import torch.distributed as dist

from ttcnet.errors import fail
from ttcnet.files import is_first_process

PATIENCE = 30.0  # seconds that a network filesystem has to show a new file


def check_shared(out: Path, device: torch.device) -> None:
    """Fail, in all processes of a job, if one of them does not see what the first writes to the folder."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    number = torch.tensor(secrets.randbits(48), device=device)
    dist.broadcast(number, 0)
    sign = out / f".sign-{int(number)}"
    if is_first_process():
        sign.touch()
    dist.barrier()
    own = torch.tensor(int(_appears(sign)), device=device)
    seen = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(seen, own)
    if is_first_process():
        sign.unlink(missing_ok=True)
    if blind := [str(rank) for rank, saw in enumerate(seen) if not saw]:
        if not is_first_process():
            raise SystemExit(1)  # the first one says it
        value = f"{out}, which is another folder for process{'es' * (len(blind) > 1)} {', '.join(blind)}"
        remedy = "Name a folder on a filesystem that all machines share, by its whole path."
        fail("out", f"must be one folder for all {len(seen)} processes", value, remedy, FileNotFoundError)


def _appears(sign: Path) -> bool:
    end = time.monotonic() + PATIENCE
    while not (found := sign.exists()) and time.monotonic() < end:
        time.sleep(0.5)
        os.listdir(sign.parent)  # which has NFS look again
    return found
