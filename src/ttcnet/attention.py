"""Attention over texts, which come in many lengths."""

from __future__ import annotations

import torch


def avoid_cudnn() -> None:
    """Let torch choose among all kinds of attention on a GPU but cuDNN's, from now on in this process.

    On recent GPUs cuDNN's comes first. It is reported to prepare itself for every new shape, for tenths of a second,
    and with batches padded to their longest text nearly every shape is new.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
