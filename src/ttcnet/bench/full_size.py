"""Fine-tuning at full size on one GPU: time and memory of a step of `ttcnet sft`, with and without TTC layers, beside
what a dry run predicts. Weights and tokens are random."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ttcnet.settings import from_table
from ttcnet.train import sft
from ttcnet.train.dry_run import GB, Estimate, dry_run
from ttcnet.train.examples import Example
from ttcnet.train.learner import Learner
from ttcnet.train.settings import FineTuning

from .decode import SHAPES as DECODED
from .measure import percentiles

SHAPES: dict[str, dict[str, Any]] = DECODED | {
    "1B": dict(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16)
    | dict(num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192, tie_word_embeddings=True)
}
FROZEN = {"base with LoRA": ("lora", False), "inserted": ("inserted", True), "inserted and LoRA": ("lora", True)}
WHOLE = {"whole model": ("all", False), "whole model and inserted": ("all", True)}
ARMS = {"8B": FROZEN, "1B": WHOLE, "tiny": FROZEN | WHOLE}
WARM = 2  # steps
SHARE = 0.85  # of the GPU's memory that arms may take together


@dataclass(frozen=True)
class FullSizePoint:
    """An arm of a measurement."""

    shape: str
    arm: str
    horizon: int
    length: int
    check_pointing: bool
    device: str


@dataclass
class _Arm:
    point: FullSizePoint
    config: FineTuning
    predicted: Estimate
    learner: Learner | None = None
    peak: float = math.nan


def points(shape: str, horizon: int, length: int, check_pointing: bool, device: str) -> list[FullSizePoint]:
    return [FullSizePoint(shape, arm, horizon, length, check_pointing, device) for arm in ARMS[shape]]


def without_ttc(point: FullSizePoint) -> str:
    """The arm that a point's time is compared with."""
    return next(iter(FROZEN if point.arm in FROZEN else WHOLE))


def measure_full_size(
    chosen: Sequence[FullSizePoint], steps: int, seconds: float, known: dict[str, float] | None = None
) -> Iterator[tuple[FullSizePoint, dict[str, Any]]]:
    """Arms take turns, step by step, if all fit into the GPU together; otherwise one comes after the other.

    Args:
        chosen: the arms.
        steps: of each.
        seconds: for the steps of an arm; fewer steps are taken where they would take longer.
        known: milliseconds of a step of arms that were measured before.
    """
    known = dict(known or {})
    with TemporaryDirectory() as folder:
        arms = [_planned(point, Path(folder)) for point in chosen]
        for group in _groups(arms):
            for arm, times in _measured(group, steps, seconds):
                found = _figures(arm, times)
                known[arm.point.arm] = found["step_ms"]
                base = known.get(without_ttc(arm.point), math.nan)
                yield arm.point, found | {"of_time_without_ttc": found["step_ms"] / base}


def _planned(point: FullSizePoint, folder: Path) -> _Arm:
    train, inserted = ARMS[point.shape][point.arm]
    LlamaConfig(**SHAPES[point.shape], architectures=["LlamaForCausalLM"]).save_pretrained(folder / point.shape)
    values = dict(model=str(folder / point.shape), data="random", out="none", train=train, batch=1, steps=10**6)
    values |= dict(adapter={"every": 8} if inserted else "none", horizon=f"fixed:{point.horizon}")
    values |= dict(weights="float32" if train == "all" else "bfloat16", check_pointing=point.check_pointing)
    config = from_table(FineTuning, values | dict(max_length=point.length, warm_up=0.0))
    return _Arm(point, config, dry_run(config))


def _groups(arms: list[_Arm]) -> list[list[_Arm]]:
    """Arms that are in memory at the same time."""
    if arms and arms[0].point.device == "cuda":
        memory = torch.cuda.get_device_properties(0).total_memory
        if sum(arm.predicted.total for arm in arms) > SHARE * memory:
            return [[arm] for arm in arms]
    return [arms] if arms else []


def _measured(group: list[_Arm], steps: int, seconds: float) -> Iterator[tuple[_Arm, list[float]]]:
    for arm in group:
        _build(arm)
    times: list[list[float]] = [[] for _ in group]
    end = time.monotonic() + seconds * len(group)
    for _ in range(steps):
        for arm, found in zip(group, times, strict=True):
            found.append(_seconds(arm))
        if time.monotonic() > end:
            break
    for arm in group:
        arm.learner = None
    gc.collect()
    yield from zip(group, times, strict=True)


def _build(arm: _Arm) -> None:
    """The model and its optimizer, after steps that warm up, and their peak memory."""
    point, on_gpu = arm.point, arm.point.device == "cuda"
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if on_gpu else 0
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, arm.config.weights))
    try:
        with torch.device(point.device):
            model = LlamaForCausalLM(LlamaConfig(**SHAPES[point.shape]))
    finally:
        torch.set_default_dtype(default)
    tokens = torch.randint(0, SHAPES[point.shape]["vocab_size"], (point.length,)).tolist()
    arm.learner = sft.learner(sft.insert(model, arm.config), [Example(tokens, tokens)], arm.config, point.device)
    for _ in range(WARM):
        _seconds(arm)
    if on_gpu:
        arm.peak = (torch.cuda.max_memory_allocated() - before) / GB


def _seconds(arm: _Arm) -> float:
    _wait(arm)
    begin = time.perf_counter()
    assert arm.learner is not None
    arm.learner.advance()
    _wait(arm)
    return time.perf_counter() - begin


def _wait(arm: _Arm) -> None:
    if arm.point.device == "cuda":
        torch.cuda.synchronize()


def _figures(arm: _Arm, times: list[float]) -> dict[str, Any]:
    low, _, high = percentiles(times)
    middle, predicted = statistics.median(times), arm.predicted
    return {
        "parameters": predicted.parameters,
        "trained": predicted.trained,
        "steps": len(times),
        "step_ms": 1e3 * middle,
        "step_p20_ms": 1e3 * low,
        "step_p80_ms": 1e3 * high,
        "tokens_per_second": arm.point.length / middle,
        "peak_gb": arm.peak,
        "predicted_gb": predicted.total / GB,
        "predicted_ms": 1e3 * predicted.seconds,
        "predicted_of_peak": predicted.total / GB / arm.peak,
        "predicted_of_time": predicted.seconds / middle,
    }
