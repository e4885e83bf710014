"""Settings of torch that hold for a whole process. Commands change them only here, with a message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ttcnet import command_options
from ttcnet.terminal.console import tell


def avoid_cudnn() -> None:
    """Let torch choose among all kinds of attention on a GPU but cuDNN's, from now on in this process.

    On recent GPUs torch prefers cuDNN's. Users report that it prepares itself for every new shape, for tenths of a
    second; with batches padded to their longest text nearly every shape is new.
    """
    if command_options.gpus() and torch.backends.cuda.cudnn_sdp_enabled():
        torch.backends.cuda.enable_cudnn_sdp(False)
        tell("Attention by cuDNN is off in this process: it would prepare itself for every new length of a batch.")


@contextmanager
def compiling_up_to(times: int) -> Iterator[None]:
    """Inside the block, torch compiles a function for up to `times` kinds of inputs before it gives up; its default is
    8."""
    limits: Any = torch._dynamo.config
    before = limits.recompile_limit
    if times > before:
        limits.recompile_limit = times
        tell(f"torch.compile may compile a layer {times} times in this run, for different horizons and lengths.")
    try:
        yield
    finally:
        limits.recompile_limit = before
