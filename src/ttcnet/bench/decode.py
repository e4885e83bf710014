"""The cost of planning while text is generated: tokens per second of a Llama, with and without TTC layers."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from transformers import LlamaConfig, LlamaForCausalLM, StoppingCriteria, StoppingCriteriaList

import ttcnet.adapter as adapter
from ttcnet.machine.torch_settings import a_program_each, made_in

from .measure import percentiles

HORIZONS = (8, 16, 64, 128)
WARM_ROUNDS = 2  # everything is compiled in these, and graphs are recorded
SETTLING = 8  # tokens at the beginning of a compiled text that do not count
SHAPES: dict[str, dict[str, Any]] = {
    "8B": dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32)
    | dict(num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192, rope_theta=500000.0),
    "tiny": dict(vocab_size=100, hidden_size=64, intermediate_size=128, num_hidden_layers=8)
    | dict(num_attention_heads=4, num_key_value_heads=2),
}


@dataclass(frozen=True)
class DecodePoint:
    """One point of a measurement. `horizon` 0 is the model without TTC layers. `compiled` is a static cache, with which
    `generate` compiles the model; otherwise everything is eager with a dynamic cache."""

    shape: str
    horizon: int
    compiled: bool
    prompt: int
    new: int
    device: str


def measure_decoding(
    shape: str, device: str, prompt: int, new: int, repeats: int, horizons: tuple[int, ...] = HORIZONS
) -> Iterator[tuple[DecodePoint, dict[str, Any]]]:
    """Measure batch 1 in bfloat16 with random weights: without TTC layers (inserted but disabled), and with one in
    every eighth block, at each horizon."""
    model = _model(shape, device)
    adapter.insert(model, adapter.TTCAdapterConfig(every=8, heads=16, zero_init=False))

    def points(compiled: bool) -> list[DecodePoint]:
        return [DecodePoint(shape, horizon, compiled, prompt, new, device) for horizon in (0, *horizons)]

    yield from zip(points(False), _by_token(model, points(False), repeats), strict=True)
    yield from zip(points(True), _by_text(model, points(True), repeats), strict=True)


def _by_token(model: Any, points: list[DecodePoint], repeats: int) -> list[dict[str, Any]]:
    """Measure eager decoding. The host's speed decides, and it drifts by more than the difference to measure: so each
    token has another horizon than the one before, and is compared with the nearest token without TTC layers."""
    rounds: list[dict[DecodePoint, float]] = []
    for text in range(1 + repeats * len(points)):
        clock = _Clock(model, points, seed=text)
        _generate(model, points[0], [clock])
        rounds += clock.rounds if text else []  # the first text warms up
    return [_summary(rounds, point, points[0]) | {"compiled_anew": 0} for point in points]


def _by_text(model: Any, points: list[DecodePoint], repeats: int) -> list[dict[str, Any]]:
    """Measure compiled decoding. Each horizon has its own program and CUDA graphs: so every text of a round has another
    horizon, in random order, and is compared with the text without TTC layers of its round. The time of a text is the
    median over its tokens without the first ones, because each text has a new cache, for which graphs are recorded
    anew. `compiled_anew` counts the programs that were compiled after the rounds that warm up: if there are any, the
    times include compiling."""
    rounds: list[dict[DecodePoint, float]] = []
    torch._dynamo.reset()
    # a program for each horizon, as for a user with one horizon
    with a_program_each(64):
        for turn in range(WARM_ROUNDS + repeats):
            order = random.Random(turn).sample(points, len(points))
            seconds = {point: _seconds_of_tokens(model, point) for point in order}
            if turn >= WARM_ROUNDS:
                rounds.append(seconds)
            else:
                warm = counters["stats"]["unique_graphs"]
    anew = {"compiled_anew": counters["stats"]["unique_graphs"] - warm}
    return [_summary(rounds, point, points[0]) | anew for point in points]


def _seconds_of_tokens(model: Any, point: DecodePoint) -> float:
    ticks = _Ticks(point.device)
    _generate(model, point, [ticks])
    each = [after - before for before, after in pairwise(ticks.times)]
    return statistics.median(each[min(SETTLING, len(each) // 2) :])


class _Ticks(StoppingCriteria):
    """Takes the time after each token, and never stops the text."""

    def __init__(self, device: str) -> None:
        self.device, self.times = device, list[float]()

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Any:
        _wait(self.device)
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=self.device)


class _Clock(StoppingCriteria):
    """Never stops the text: `generate` calls it after each token, and it takes the time and sets the next horizon."""

    def __init__(self, model: Any, points: list[DecodePoint], seed: int) -> None:
        self.model, self.points = model, points
        self.random = random.Random(seed)
        self.rounds: list[dict[DecodePoint, float]] = []  # seconds of a token of each point
        self.round: dict[DecodePoint, float] = {}
        self.ahead: list[DecodePoint] = []  # the remaining points of the round; the last one is being measured
        self.begin = 0.0

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Any:
        device = self.points[0].device
        _wait(device)
        if self.ahead:  # not the first token, whose time is that of the prompt
            self.round[self.ahead.pop()] = time.perf_counter() - self.begin
        if not self.ahead:
            if self.round:
                self.rounds.append(self.round)
            self.round, self.ahead = {}, self.random.sample(self.points, len(self.points))
        _set(self.model, self.ahead[-1])
        self.begin = time.perf_counter()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=device)


def _model(shape: str, device: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    with made_in(torch.bfloat16), torch.device(device):
        return LlamaForCausalLM(LlamaConfig(**SHAPES[shape])).eval()


@torch.inference_mode()
def _generate(model: Any, point: DecodePoint, listeners: list[Any]) -> None:
    """Generate one text; `watch` is called after each token."""
    tokens = torch.randint(0, model.config.vocab_size, (1, point.prompt), device=point.device)
    options: dict[str, Any] = dict(max_new_tokens=point.new, min_new_tokens=point.new, do_sample=False, pad_token_id=0)
    if point.compiled:
        options["cache_implementation"] = "static"
    _set(model, point)
    _wait(point.device)
    out = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        stopping_criteria=StoppingCriteriaList(listeners),
        **options,
    )
    _wait(point.device)
    assert out.shape[1] == point.prompt + point.new


def _set(model: Any, point: DecodePoint) -> None:
    adapter.set_horizon(model, point.horizon or HORIZONS[0])
    (adapter.enable if point.horizon else adapter.disable)(model)


def _summary(rounds: list[dict[DecodePoint, float]], point: DecodePoint, base: DecodePoint) -> dict[str, Any]:
    """Figures from the seconds of a token in each round; `slower` is the factor to `base` in the same round, its median
    and its 20th and 80th percentile."""
    seconds = [each[point] for each in rounds]
    middle = statistics.median(seconds)
    each = {"ms_per_token": middle, "ms_fastest": min(seconds), "ms_slowest": max(seconds)}
    low, slower, high = percentiles([each[point] / each[base] for each in rounds])
    factors = {"slower": slower, "slower_p20": low, "slower_p80": high}
    milliseconds = {name: 1e3 * value for name, value in each.items()}
    return milliseconds | {"tokens_per_second": 1 / middle} | factors | {"measured": len(seconds)}


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
