"""Training of Sudoku models: the paper's setting, for TTC-Net and for what it is compared with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from ttcnet.errors import fail
from ttcnet.models import TTCNetConfig, TTCNetForCellClassification
from ttcnet.records import cut_log, write_json
from ttcnet.train import checkpoint
from ttcnet.train.schedule import warm_up_and_cosine

from .data import Boards
from .feed import Feed

ATTENTION = {"attention": {"qk_norm": True}}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "ttc": dict(mixer="attention", interleave="8:1", mixer_options=ATTENTION),
    "transformer": dict(mixer="attention", interleave=None, mixer_options=ATTENTION),
    "mamba": dict(mixer="mamba", interleave=None),
    "mamba2": dict(mixer="mamba2", interleave=None),
    "gdn": dict(mixer="gdn", interleave=None),
    "samba": dict(mixer="samba", interleave=None, mixer_options={"samba": {"window": 27, "qk_norm": True}}),
}
UNDECAYED = ("norm", "bias", "A_log", "ridge", "embed", ".D")


@dataclass(frozen=True)
class TrainConfig:
    """A run. Sizes, batch and learning rates are the paper's.

    Args:
        architecture: one of ARCHITECTURES.
        steps: number of batches.
        augmentation: see `Feed`; "none" is the paper's setting.
        ema: the share of the running average of the weights that is kept at each step; 0 for none. The average is what
            is saved as the model.
    """

    architecture: str = "ttc"
    steps: int = 20_000
    batch: int = 16
    lr: float = 5e-3
    final_lr: float = 5e-4
    warm_up: float = 0.1
    weight_decay: float = 0.1
    clip: float = 1.0
    dropout: float = 0.0
    augmentation: str = "none"
    ema: float = 0.999
    horizon: int = 4
    layers: int = 32
    width: int = 128
    heads: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            rule = f"must be one of {', '.join(ARCHITECTURES)}"
            fail("architecture", rule, repr(self.architecture), "Use one of those.")
        for field in ("steps", "batch", "layers", "width", "heads"):
            if getattr(self, field) < 1:
                fail(field, "must be 1 or more", getattr(self, field), "Pass a larger number.")
        if not 0 <= self.ema < 1:
            fail("ema", "must lie in [0, 1)", self.ema, "Pass 0.999, say, or 0 for none.")

    def model(self) -> TTCNetConfig:
        options = dict(ARCHITECTURES[self.architecture])
        if options["interleave"] is not None:
            options["interleave"] = f"{min(8, self.layers)}:1"
        return TTCNetConfig.sudoku(
            num_hidden_layers=self.layers,
            hidden_size=self.width,
            num_attention_heads=self.heads,
            horizon=self.horizon,
            dropout=self.dropout,
            **options,
        )


class Trainer:
    """A run in progress. Its state after a step depends on the configuration and the boards alone.

    On a GPU blocks are compiled, unless `compiled` is False, and the whole step, optimizer and all, is one CUDA graph,
    which is replayed on a stream of its own: trainers on one GPU run side by side (and then share the GPU's random
    numbers, for dropout). In a distributed job every process has a share of each batch, and there is no graph.
    """

    def __init__(
        self, config: TrainConfig, boards: Boards, device: torch.device | str = "cpu", compiled: bool | None = None
    ) -> None:
        self.config, self.device = config, torch.device(device)
        torch.manual_seed(config.seed)
        self.model = TTCNetForCellClassification(config.model()).train()
        nn.Module.to(self.model, self.device)
        if self.device.type == "cuda" if compiled is None else compiled:
            for block in self.model.model.layers:  # blocks of one kind share what is compiled
                block.compile(dynamic=False)
        self.average = [p.detach().clone() for p in self.model.parameters()] if config.ema else []
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        if config.batch % self.world:
            remedy = "Pass a multiple, or start fewer processes."
            fail("batch", f"must be a multiple of the {self.world} processes", config.batch, remedy)
        on_gpu = self.device.type == "cuda" and self.world == 1
        self.lr = torch.zeros((), device=self.device)
        decayed, others = _split(self.model)
        groups = [dict(params=decayed, weight_decay=config.weight_decay), dict(params=others, weight_decay=0.0)]
        rate: Any = self.lr if on_gpu else 0.0
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=on_gpu, capturable=on_gpu)
        self.feed = Feed(boards, config.batch, config.seed, config.augmentation, self.device)
        self.step = 0
        self.puzzles, self.labels = (x.clone() for x in self.feed.at(0))
        self.sums = torch.zeros(3, device=self.device)  # of loss, right cells, masked cells
        self.parallel: nn.Module = DistributedDataParallel(self.model) if self.world > 1 else self.model
        torch.manual_seed(config.seed + 1_000_003 * self.rank)  # of dropout
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream() if on_gpu else None

    def advance(self) -> None:
        """One step."""
        config = self.config
        rate = warm_up_and_cosine(self.step, config.steps, config.lr, config.final_lr, config.warm_up)
        puzzles, labels = self.feed.at(self.step)
        if self._stream is None:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            share = slice(self.rank, None, self.world)
            self._compute(puzzles[share], labels[share], labels)
        else:
            self._stream.wait_stream(torch.cuda.current_stream())
            for batch in (puzzles, labels):
                batch.record_stream(self._stream)  # their memory stays theirs until this stream has read them
            with torch.cuda.stream(self._stream):
                self.lr.fill_(rate)
                self.puzzles.copy_(puzzles)
                self.labels.copy_(labels)
                self._replay()
        self.step += 1

    def _compute(self, puzzles: Tensor, labels: Tensor, of_all: Tensor | None = None) -> None:
        """A step on a batch, or on this process' share of the batch whose labels are `of_all`."""
        with torch.autocast(self.device.type, torch.bfloat16, self.device.type == "cuda", cache_enabled=False):
            output = self.parallel(puzzles, labels=labels)
        loss = output.loss
        if of_all is not None and self.world > 1:  # the mean over processes is then that over all cells
            loss = loss * (labels >= 0).sum() * self.world / (of_all >= 0).sum().clamp_min(1)
        loss.backward()
        clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            if self.average:
                torch._foreach_lerp_(self.average, list(self.model.parameters()), 1 - self.config.ema)
            masked = labels >= 0
            right = ((output.logits.argmax(-1) == labels) & masked).sum()
            self.sums += torch.stack([output.loss.detach().float(), right, masked.sum()])

    def _replay(self) -> None:
        if self._graph is None:
            self._capture()
        assert self._graph is not None
        self._graph.replay()

    def _capture(self) -> None:
        """Record a step. The steps that warm up for it are undone."""
        before = {name: x.detach().clone() for name, x in self._tensors().items()}
        random = checkpoint.random_states()
        for _ in range(3):
            self._compute(self.puzzles, self.labels)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=self._stream):
            self._compute(self.puzzles, self.labels)
        with torch.no_grad():
            for name, x in self._tensors().items():
                x.copy_(before[name]) if name in before else x.zero_()
            self.sums.zero_()
        checkpoint.restore_random(random)

    def _tensors(self) -> dict[str, Tensor]:
        """All that a step changes."""
        tensors = checkpoint.state_of(self.model, self.optimizer)
        tensors = {name: x for name, x in tensors.items() if not name.startswith("random/")}
        names = [name for name, _ in self.model.named_parameters()]
        return tensors | {f"average/{name}": x for name, x in zip(names, self.average, strict=False)}

    def finish_step(self) -> None:
        """Wait for the GPU."""
        if self._stream is not None:
            self._stream.synchronize()

    def news(self, steps: int) -> dict[str, float]:
        """Mean loss and accuracy on masked cells since the last call, over `steps` steps."""
        self.finish_step()
        loss, right, masked = self.sums.tolist()
        self.sums.zero_()
        return {"loss": loss / max(steps, 1), "cells": right / max(masked, 1)}

    def save(self, path: Path) -> None:
        self.finish_step()
        tensors = self._tensors() | checkpoint.random_states()
        checkpoint.save(path, tensors, {"step": self.step, "config": asdict(self.config)})

    def load(self, path: Path) -> None:
        tensors, facts = checkpoint.load(path)
        mine = asdict(self.config)
        if facts["config"] != mine:
            changed = {k: (facts["config"].get(k), v) for k, v in mine.items() if facts["config"].get(k) != v}
            remedy = "Resume with the configuration that the run was started with, or choose another folder."
            fail("config", f"must be that of the checkpoint {path}", f"(then, now): {changed}", remedy)
        checkpoint.restore(tensors, self.model, self.optimizer)
        names = [name for name, _ in self.model.named_parameters()]
        for name, x in zip(names, self.average, strict=False):
            x.copy_(tensors[f"average/{name}"])
        self.step = facts["step"]

    def trained_model(self) -> TTCNetForCellClassification:
        """The model with the averaged weights, in evaluation mode; a copy."""
        self.finish_step()
        model = TTCNetForCellClassification(self.config.model())
        nn.Module.to(model, self.device)
        model.load_state_dict(self.model.state_dict())
        if self.average:
            with torch.no_grad():
                for parameter, x in zip(model.parameters(), self.average, strict=True):
                    parameter.copy_(x)
        return model.eval()


def _split(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Weights that decay, and others: norms, biases, embeddings and whatever is one-dimensional."""
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        plain = parameter.ndim < 2 or any(part in name for part in UNDECAYED)
        (others if plain else decayed).append(parameter)
    return decayed, others


Report = Callable[[Trainer, dict[str, float]], None]


def train(
    config: TrainConfig,
    boards: Boards,
    folder: Path,
    device: torch.device | str = "cpu",
    *,
    every: int = 100,
    save_every: int = 1000,
    report: Report | None = None,
) -> TTCNetForCellClassification:
    """Train, or go on where a killed run stopped: the result is the same. The folder gets config.json, log.jsonl,
    checkpoint.safetensors, and model/ at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(config, boards, device)
    kept = folder / "checkpoint.safetensors"
    if kept.exists():
        trainer.load(kept)
    if trainer.rank:
        return _follow(trainer)
    write_json(folder / "config.json", asdict(config))
    log = folder / "log.jsonl"
    cut_log(log, trainer.step)
    since = trainer.step
    while trainer.step < config.steps:
        trainer.advance()
        last = trainer.step == config.steps
        if trainer.step % every == 0 or last:
            news = trainer.news(trainer.step - since)
            since = trainer.step
            with log.open("a") as file:
                file.write(json.dumps({"step": trainer.step} | news) + "\n")
            if report is not None:
                report(trainer, news)
        if trainer.step % save_every == 0 or last:
            trainer.save(kept)
    model = trainer.trained_model()
    model.save_pretrained(folder / "model")
    return model


def _follow(trainer: Trainer) -> TTCNetForCellClassification:
    """What processes other than the first do: train, and leave files alone."""
    while trainer.step < trainer.config.steps:
        trainer.advance()
    return trainer.trained_model()


def join_job(device: str) -> str:
    """Join the distributed job that `accelerate launch` or `torchrun` started, if any. Returns this process' device."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return device
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    return f"cuda:{torch.cuda.current_device()}" if on_gpu else device


def leave_job() -> None:
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def config_from(values: dict[str, Any]) -> TrainConfig:
    """From a file; unknown fields are an error."""
    known = {field.name for field in fields(TrainConfig)}
    if extra := set(values) - known:
        fail("config", f"must hold fields among {', '.join(sorted(known))}", sorted(extra), "Remove them.")
    return TrainConfig(**values)
