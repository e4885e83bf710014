"""What a run of `ttcnet sft` will need, computed before it: memory of each GPU, tokens a second, hours.

A step of the run is computed by tensors without values, so that a `Ledger` sees what it allocates. Times are arithmetic
over its operations. `Estimate.assumed` says all that is assumed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ttcnet.command_options import gpus as gpus_here
from ttcnet.errors import fail
from ttcnet.models.sharded_loading import skeleton
from ttcnet.nn import ttc_layers
from ttcnet.nn.horizon import parse
from ttcnet.storage.reading import rows

from .answers import Answers
from .checkpoint import trained_parameters
from .examples import Example
from .ledger import MEASURED, Ledger, Speed, emptied, plan_seconds
from .settings import FineTuning

GB = 10**9
GPUS = {  # memory in GB, 10¹² flop a second in bfloat16, 10¹² bytes a second: the makers' figures
    "A100": (80, 312, 2.0),
    "H100": (80, 989, 3.35),
    "H200": (141, 989, 4.8),
    "B200": (180, 2250, 8.0),
}
EFFICIENCY = 0.65  # share of the flop that matrix products reach
COPYING = 0.8  # share of the bytes a second that other operations reach
HOST = 6e-6  # seconds for which the host is busy with an operation
UPDATE = 10  # numbers that an update of the weights reads and writes for each
RESERVE = 10**9  # bytes: CUDA itself, and the work space of its libraries
GAPS = 0.05  # share of the memory that is lost between blocks
ATTENTION = "ttcnet_dry_run"
DRAWS = 1000  # of the horizon, for its mean, and for the longest if the number of steps is not known


@dataclass(frozen=True)
class Estimate:
    """Bytes are those of a GPU that has the most of them.

    Args:
        parameters: numbers of the whole model.
        trained: those of them that are trained.
        exchange: what FSDP2 puts together, or what DistributedDataParallel sends.
        planning: what plans add to the peak.
        saved: bytes that the forward pass leaves for the backward pass.
        flop: of a GPU's tokens in a step.
        tokens: of a step, over all GPUs.
        steps: None if it is not known.
    """

    parameters: int
    trained: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    planning: int
    exchange: int
    saved: int
    flop: float
    seconds: float
    tokens: int
    steps: int | None
    gpus: int
    gpu: str
    gpu_memory: float
    assumed: Sequence[str]

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations + self.planning + self.exchange

    @property
    def fits(self) -> bool:
        return self.total * (1 + GAPS) + RESERVE <= self.gpu_memory * GB

    def lines(self) -> list[str]:
        """The report."""
        places = ("weights", "gradients", "optimizer", "activations", "planning", "exchange", "total")
        table = [f"  {name:<12}{getattr(self, name) / GB:>10.2f}" for name in places]
        whether = "fits" if self.fits else "does not fit"
        speed = f"{self.tokens / self.seconds:,.0f} tokens a second, {self.seconds:.3g} s a step"
        length = "" if self.steps is None else f"; {self.steps:,} steps take {self.steps * self.seconds / 3600:,.2g} h"
        return [
            f"Parameters: {self.parameters:,}, of which {self.trained:,} are trained.",
            f"Memory of each of {self.gpus} GPUs, in GB:" if self.gpus > 1 else "Memory of the GPU, in GB:",
            *table,
            f"It {whether} into {self.gpu_memory:g} GB ({self.gpu}).",
            f"Expect {speed}{length}.",
            "Assumed:",
            *(f"  {line}" for line in self.assumed),
        ]


# transformers makes a mask of tokens without values, where it makes none of others
AttentionInterface.register(ATTENTION, sdpa_attention_forward)
AttentionMaskInterface.register(ATTENTION, lambda *_, **__: None)


def dry_run(
    config: FineTuning,
    *,
    gpus: int = 1,
    gpu: str | None = None,
    gpu_memory: float | None = None,
    efficiency: float = EFFICIENCY,
    trust_remote_code: bool = False,
) -> Estimate:
    """What a run will need. Reads the model's config.json, none of its weights, and of the data only the number of
    rows.

    Args:
        config: the run.
        gpus: processes, one for each GPU.
        gpu: one of `GPUS`; the one that is here if None, and H100 where there is none of them.
        gpu_memory: of each, in GB; that of `gpu` if None.
        efficiency: the share of a GPU's flop that matrix products reach.
        trust_remote_code: run code that a model brings.
    """
    from .sft import check, insert

    name, (memory, flop, copied) = check_gpu(gpus, gpu, gpu_memory, efficiency)
    check(config, gpus)
    model = skeleton(config.model, getattr(torch, config.weights), trust_remote_code=trust_remote_code)
    model = insert(model, replace(config, compiled=False))
    length, steps = config.max_length or int(model.config.max_position_embeddings), steps_of(config)
    horizons, plans = [0], bool(ttc_layers(model))
    if plans:
        sampler = parse(config.horizon, seed=config.seed)
        horizons = [sampler.at(number) for number in range(min(steps or DRAWS, 10 * DRAWS))]
    pieces = config.batch // config.device_batch // gpus
    speed = Speed(efficiency * flop * 1e12, COPYING * copied * 1e12, HOST)
    sizes, trained = _sizes(model, config, gpus), trained_parameters(model).values()
    parameters, exchange = sum(x.numel() for x in model.parameters()), _exchange(model, config, gpus)
    ledger, saved = _step(model, config, length, max(horizons) or None, pieces > 1, gpus, speed)
    apart = pieces > 1 or (config.sharded and gpus > 1)  # gradients are not in the ledger
    planning = [math.fsum(plan_seconds(each, horizon) for each in ledger.plans) for horizon in horizons]
    planning_seconds = math.fsum(planning) / len(planning)
    seconds = pieces * max(ledger.seconds + planning_seconds, ledger.operations * HOST)
    seconds += UPDATE * sizes["gradients"] / speed.bytes
    lines = {
        f"Every row has {length:,} tokens, all of them learned.": True,
        "That is the model's longest row, because max_length is not given.": config.max_length is None,
        "Packs are computed like one row.": config.packing,
        "torch.compile is left out.": config.compiled,
        f"Memory is that of the longest horizon drawn, T = {max(horizons)}; plans then take "
        f"{ledger.most_planned / GB:.2f} GB, though not all of it when the total is highest.": plans,
        f"Plans take {1e3 * planning_seconds:.3g} ms of a piece, from times on an H200, commit {MEASURED}.": plans,
        f"{name}: matrix products reach {100 * efficiency:g} % of {flop:g} x 10^12 flop a second (--efficiency), other "
        f"operations {100 * COPYING:g} % of {copied:g} x 10^12 bytes a second.": True,
        f"The host takes {1e6 * HOST:g} us for an operation. An update moves {UPDATE} numbers for each weight.": True,
        "Messages between GPUs hide behind computing.": gpus > 1,
        f"{RESERVE / GB:g} GB for CUDA and {100 * GAPS:g} % for gaps must be free beside the total.": True,
    }
    return Estimate(
        parameters=parameters,
        trained=sum(x.numel() for x in trained),
        **sizes,
        activations=ledger.without_plans if apart else max(0, ledger.without_plans - sizes["gradients"]),
        planning=ledger.peak - ledger.without_plans,
        exchange=exchange,
        saved=saved,
        flop=pieces * ledger.flop,
        seconds=seconds,
        tokens=config.batch * length,
        steps=steps,
        gpus=gpus,
        gpu=name,
        gpu_memory=memory,
        assumed=[line for line, holds in lines.items() if holds],
    )


def check_gpu(gpus: int, gpu: str | None, memory: float | None, efficiency: float) -> tuple[str, tuple[float, ...]]:
    """Name, memory, flop and bytes a second of a GPU."""
    if gpus < 1:
        fail("gpus", "must be 1 or more", gpus, "Pass the number of GPUs.", "too-small")
    if gpu is not None and gpu not in GPUS:
        remedy = "Pass the one that is most like it, with --gpu-memory."
        fail("gpu", f"must be one of {', '.join(GPUS)}", repr(gpu[:40]), remedy, "unknown-name")
    if not 0 < efficiency <= 1:
        fail("efficiency", "must be above 0 and at most 1", efficiency, "Pass 0.65, say.", "out-of-range")
    if memory is not None and not 0 < memory < math.inf:
        fail("gpu_memory", "must be above 0 and finite", memory, "Pass the GB of a GPU.", "out-of-range")
    here = torch.cuda.get_device_name() if gpus_here() else ""
    name = gpu or next((each for each in GPUS if each in here), "H100")
    of_one, flop, copied = GPUS[name]
    if memory is None and gpu is None and here:
        memory = torch.cuda.get_device_properties(0).total_memory / GB
    return name, (of_one if memory is None else memory, flop, copied)


def steps_of(config: FineTuning) -> int | None:
    """How many steps the run has, None if that needs data that is not here, or the lengths of its rows."""
    if config.steps is not None:
        return config.steps
    if config.packing or not Path(config.data).is_file():
        return None
    count = sum(1 for _ in rows(config.data))
    return math.ceil(config.epochs * math.ceil(count / config.batch))


def _sizes(model: nn.Module, config: FineTuning, gpus: int) -> dict[str, int]:
    """Bytes of weights, gradients and AdamW's states on the GPU that has the most of them."""
    split = gpus if config.sharded else 1

    def held(x: torch.Tensor) -> int:
        first = math.ceil(x.shape[0] / split) if x.ndim else 1  # FSDP2 spreads the first dimension
        return x.element_size() * (x.numel() // max(1, x.shape[0]) * first if x.ndim else 1)

    trained = trained_parameters(model).values()
    gradients = sum(map(held, trained))
    buffers = sum(x.numel() * x.element_size() for x in model.buffers())
    steps = 4 * len(trained)  # AdamW counts them for each
    return dict(
        weights=sum(map(held, model.parameters())) + buffers, gradients=gradients, optimizer=2 * gradients + steps
    )


def _exchange(model: nn.Module, config: FineTuning, gpus: int) -> int:
    """FSDP2 puts two decoder layers together at a time, and all outside of them for as long as a step takes; it sends a
    layer's gradients in float32. DistributedDataParallel has a copy of all gradients."""
    if gpus == 1:
        return 0
    if not config.sharded:
        return sum(x.numel() * x.element_size() for x in trained_parameters(model).values())
    size = 2 if config.bf16 else 4
    of_layers = [sum(x.numel() for x in layer.parameters()) for layer in _layers(model)]
    outside = sum(x.numel() for x in model.parameters()) - sum(of_layers)
    largest = max(of_layers)
    trained = max(sum(x.numel() for x in layer.parameters() if x.requires_grad) for layer in _layers(model))
    return size * (2 * largest + outside) + (size + 4) * trained


def _layers(model: nn.Module) -> Sequence[nn.Module]:
    return next(list(part) for part in model.modules() if isinstance(part, nn.ModuleList))


def _step(
    model: Any, config: FineTuning, length: int, horizon: int | None, begun: bool, gpus: int, speed: Speed
) -> tuple[Ledger, int]:
    """Forward and backward pass of a piece, by tensors without values; and bytes that were saved between the two."""
    spread = config.sharded and gpus > 1
    if config.check_pointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    row = Example([0] * length, [0] * length)
    answers = Answers(model.train(), [row] * config.device_batch, replace(config, packing=False))
    batch = answers.tensors([[row]] * config.device_batch)
    model.config._attn_implementation = ATTENTION
    mode = FakeTensorMode()
    emptied(model, mode)
    ids, at, goals = (mode.from_tensor(x) for x in batch if x is not None)
    with mode:
        trained = list(trained_parameters(model).values())
        for parameter in model.parameters():
            if spread and config.bf16:
                parameter.data = parameter.data.bfloat16()
        for parameter in trained:
            if spread:  # it is sent, and freed
                parameter.register_post_accumulate_grad_hook(_free_gradient)
            elif begun:
                parameter.grad = torch.empty_like(parameter)
        held = [*model.parameters(), *model.buffers(), ids, at, goals]
        held += [parameter.grad for parameter in trained if parameter.grad is not None]
        with warnings.catch_warnings(action="ignore"), Ledger(held, speed) as ledger:
            with torch.autocast("cpu", torch.bfloat16, config.bf16 and not spread):
                loss, _ = answers.loss(model, ids, None, at, goals, 1.0, horizon)
            saved = ledger.live
            loss.backward()
    return ledger, saved


def _free_gradient(parameter: torch.Tensor) -> None:
    parameter.grad = None
