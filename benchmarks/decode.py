"""What planning costs when text is generated: tokens a second of a Llama, without TTC layers and with them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import ttcnet.adapter as adapter

HORIZONS = (8, 16, 64, 128)
PAPER = {0: 47.16, 8: 45.77, 16: 44.61, 64: 41.43, 128: 36.18}  # tokens a second, 8B, by horizon; 0 is without TTC
SHAPES: dict[str, dict[str, Any]] = {
    "8B": dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32)
    | dict(num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192, rope_theta=500000.0),
    "tiny": dict(vocab_size=100, hidden_size=64, intermediate_size=128, num_hidden_layers=8)
    | dict(num_attention_heads=4, num_key_value_heads=2),
}


@dataclass(frozen=True)
class DecodePoint:
    """What is measured. `horizon` 0 is the model without TTC layers; `compiled` the static cache with what `generate`
    compiles by itself, otherwise everything is eager with a dynamic cache."""

    shape: str
    horizon: int
    compiled: bool
    prompt: int
    new: int
    device: str


def measure_decoding(
    shape: str, device: str, prompt: int, new: int, repeats: int, horizons: tuple[int, ...] = HORIZONS
) -> Iterator[tuple[DecodePoint, dict[str, Any]]]:
    """Batch 1, bfloat16, random weights: without TTC layers (inserted but disabled), and with one in every eighth
    block, at each horizon."""
    model = _model(shape, device)
    adapter.insert(model, adapter.TTCAdapterConfig(every=8, heads=16, zero_init=False))

    def points(compiled: bool) -> list[DecodePoint]:
        return [DecodePoint(shape, horizon, compiled, prompt, new, device) for horizon in (0, *horizons)]

    # eager in turns, since the host's speed, which is what counts there, drifts; compiled one by one
    turns = [[_generate(model, point) for point in points(False)] for _ in range(2 + repeats)]
    for point, *seconds in zip(points(False), *turns, strict=True):
        yield point, _summary(seconds[2:], new)
    for point in points(True):
        torch._dynamo.reset()
        yield point, _summary([_generate(model, point) for _ in range(2 + repeats)][2:], new)


def _model(shape: str, device: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return LlamaForCausalLM(LlamaConfig(**SHAPES[shape])).eval()
    finally:
        torch.set_default_dtype(before)


@torch.inference_mode()
def _generate(model: Any, point: DecodePoint) -> float:
    """Seconds to generate once."""
    tokens = torch.randint(0, model.config.vocab_size, (1, point.prompt), device=point.device)
    options: dict[str, Any] = dict(max_new_tokens=point.new, min_new_tokens=point.new, do_sample=False, pad_token_id=0)
    if point.compiled:
        options["cache_implementation"] = "static"
    adapter.set_horizon(model, point.horizon or HORIZONS[0])
    with adapter.disabled(model) if point.horizon == 0 else nullcontext():
        _wait(point.device)
        begin = time.perf_counter()
        out = model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
        _wait(point.device)
    assert out.shape[1] == point.prompt + point.new
    return time.perf_counter() - begin


def _summary(seconds: list[float], new: int) -> dict[str, Any]:
    middle = statistics.median(seconds)
    each = {"ms_per_token": middle, "ms_fastest": min(seconds), "ms_slowest": max(seconds)}
    milliseconds = {name: 1e3 * value / new for name, value in each.items()}
    return milliseconds | {"tokens_per_second": new / middle, "repeats": len(seconds)}


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def decode_rows(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Rows of the table: how much slower than without TTC layers, here and in the paper."""
    speed = {(int(row["horizon"]), row["compiled"] == "True"): float(row["tokens_per_second"]) for row in rows}
    table = []
    for horizon in dict.fromkeys(horizon for horizon, _ in speed):
        line = {"T": str(horizon) if horizon else "no TTC"}
        for name, compiled in (("eager", False), ("compiled", True)):
            line[f"{name}, tokens/s"] = _slower(speed.get((horizon, compiled)), speed.get((0, compiled)))
        line["paper, tokens/s"] = _slower(PAPER.get(horizon), PAPER[0])
        table.append(line)
    return table


def _slower(speed: float | None, base: float | None) -> str:
    if speed is None or base is None:
        return ""
    return f"{speed:.1f}" if speed == base else f"{speed:.1f} ({100 * (base / speed - 1):+.1f} % time)"
