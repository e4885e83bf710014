"""The cost of a TTC layer: a training step of a language model with and without one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ttcnet.models import TTCNetConfig, TTCNetForCausalLM


@dataclass(frozen=True)
class LayerPoint:
    """One point of a measurement: a causal model, and its training step on batch x length tokens."""

    blocks: int
    width: int
    heads: int
    interleave: str  # "none" or as in TTCNetConfig
    horizon: int
    batch: int
    length: int
    compiled: bool
    device: str
    vocabulary: int = 32000


def measure_layer(point: LayerPoint, repeats: int = 10) -> dict[str, Any]:
    """Median milliseconds of a training step (forward, backward, AdamW) in bfloat16, and peak memory."""
    torch._dynamo.reset()  # compiled code of the point before
    torch.manual_seed(0)
    config = TTCNetConfig(
        vocab_size=point.vocabulary,
        hidden_size=point.width,
        num_hidden_layers=point.blocks,
        num_attention_heads=point.heads,
        interleave=None if point.interleave == "none" else point.interleave,
        use_cache=False,
    )
    with torch.device(point.device):
        model = TTCNetForCausalLM(config).train()
    step = _step_of(model, point)
    seconds = [_seconds(step, point.device) for _ in range(3 + repeats)][3:]
    peak = torch.cuda.max_memory_allocated() / 2**20 if point.device == "cuda" else float("nan")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"step_ms": 1e3 * statistics.median(seconds), "peak_mb": peak, "parameters": parameters, "repeats": repeats}


def _step_of(model: TTCNetForCausalLM, point: LayerPoint) -> Callable[[], Tensor]:
    fused = point.device == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    tokens = torch.randint(0, point.vocabulary, (point.batch, point.length), device=point.device)
    run = torch.compile(model) if point.compiled else model
    if fused:
        torch.cuda.reset_peak_memory_stats()

    def step() -> Tensor:
        with torch.autocast(point.device, torch.bfloat16):
            loss: Tensor = run(tokens, labels=tokens, horizon=point.horizon).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def _seconds(step: Callable[[], Tensor], device: str) -> float:
    begin = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def points(blocks: int, width: int, heads: int, batch: int, length: int, device: str) -> list[LayerPoint]:
    """The models to measure: one without a TTC layer, and one with a TTC layer in every 8 blocks (in the last block, if
    there are fewer) at several horizons."""
    kinds = [("none", 0), *((f"{min(8, blocks)}:1", horizon) for horizon in (8, 16, 32))]
    return [
        LayerPoint(blocks, width, heads, interleave, horizon, batch, length, compiled, device)
        for compiled in (False, True)
        for interleave, horizon in kinds
    ]
