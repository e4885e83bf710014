"""Settings of torch that hold for a whole process. ttcnet changes them only here: with a message where users see the
change, in silence where the old value is back at the end of a block; and for solvers in `ttcnet.lqr.arithmetic`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
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
def one_thread() -> Iterator[None]:
    """Inside, torch computes in one thread on a CPU: for work that is too little to share, where threads would only
    wait for each other, for long where cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def made_in(dtype: torch.dtype) -> Iterator[None]:
    """Inside, new tensors have this dtype where none is named."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def float32_products() -> Iterator[None]:
    """Inside, products of float32 are in float32, and not in TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def a_program_each(most: int) -> AbstractContextManager[None]:
    """Inside, torch.compile makes a program for every shape and number, up to so many."""
    changed: AbstractContextManager[None] = torch._dynamo.config.patch(
        automatic_dynamic_shapes=False, recompile_limit=most
    )
    return changed


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
