"""Training of Sudoku models, step by step."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from ttcnet.errors import fail
from ttcnet.models import TTCNetForCellClassification
from ttcnet.nn.context import BASES
from ttcnet.reading import check_fields
from ttcnet.tensor_file import digest
from ttcnet.train import checkpoint
from ttcnet.train.schedule import UNDECAYED, warm_up_and_cosine

from .data import Boards
from .feed import Feed, mixed
from .settings import BEFORE, TrainConfig


class Trainer:
    """A run in progress. Its state after a step depends on the configuration and the boards alone.

    On a GPU blocks are compiled, and the whole step, optimizer and all, is one CUDA graph, which is replayed on a
    stream of its own: trainers on one GPU run side by side (and then share the GPU's random numbers, for dropout). In a
    distributed job every process has a share of each batch, and there is no graph.
    """

    def __init__(self, config: TrainConfig, boards: Boards, device: torch.device | str = "cpu") -> None:
        self.config, self.device = config, torch.device(device)
        torch.manual_seed(config.seed)
        self.model = TTCNetForCellClassification(config.model()).train()
        nn.Module.to(self.model, self.device)
        if self.device.type == "cuda":
            for block in self.model.model.layers:  # blocks of one kind share what is compiled
                block.compile(dynamic=False)
        self.average = [p.detach().clone() for p in self.model.parameters()] if config.ema else []
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        if config.batch % self.world:
            remedy = "Pass a multiple, or start fewer processes."
            fail("batch", f"must be a multiple of the {self.world} processes", config.batch, remedy)
        on_gpu = self.device.type == "cuda" and self.world == 1
        groups = _groups(self.model, config)
        for group in groups:  # a captured step reads its rate from memory
            group["lr"] = torch.zeros((), device=self.device) if on_gpu else 0.0
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=on_gpu, capturable=on_gpu)
        self.feed = Feed(boards, config.batch, config.seed, config.augmentation, self.device)
        self.step = 0
        self.puzzles, self.labels = (x.clone() for x in self.feed.at(0))
        self.sums = torch.zeros(3, device=self.device)  # of loss, right cells, masked cells
        self.parallel: nn.Module = DistributedDataParallel(self.model) if self.world > 1 else self.model
        torch.manual_seed(config.seed)  # of dropout
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream() if on_gpu else None

    def advance(self) -> None:
        """One step."""
        config = self.config
        rate = warm_up_and_cosine(self.step, config.steps, config.lr, config.final_lr, config.warm_up)
        puzzles, labels = self.feed.at(self.step)
        if self._stream is None:
            for group in self.optimizer.param_groups:
                group["lr"] = rate * group["share"]
            if self.world > 1:  # dropout of each process' own: the checkpoint has that of the first alone
                torch.manual_seed(mixed(config.seed, self.step * self.world + self.rank, 0))
            share = slice(self.rank, None, self.world)
            self._compute(puzzles[share], labels[share], labels)
        else:
            self._stream.wait_stream(torch.cuda.current_stream())
            for batch in (puzzles, labels):
                batch.record_stream(self._stream)  # their memory stays theirs until this stream has read them
            with torch.cuda.stream(self._stream):
                for group in self.optimizer.param_groups:
                    group["lr"].fill_(rate * group["share"])
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
        facts = {"step": self.step, "config": asdict(self.config), "boards": self._boards()}
        checkpoint.save(path, tensors, facts)

    def load(self, path: Path) -> None:
        tensors, facts = checkpoint.load(path)
        remedy = "It is damaged: restore it, or choose another folder."
        check_fields(str(path), facts, remedy, config=dict, step=int)
        then, now = BEFORE | facts["config"], asdict(self.config)
        if changed := {k: (then.get(k), now.get(k)) for k in then | now if then.get(k) != now.get(k)}:
            remedy = "Resume with the configuration that the run was started with, or choose another folder."
            fail("config", f"must be that of the checkpoint {path}", f"(then, now): {changed}", remedy)
        if facts.get("boards", self._boards()) != self._boards():
            remedy = "Resume with the file that the run was started with, or choose another folder."
            fail("boards", f"must be those of the checkpoint {path}", f"{len(self.feed.puzzles):,} others", remedy)
        names = [name for name, _ in self.model.named_parameters()]
        if self.average and (missing := [name for name in names if f"average/{name}" not in tensors]):
            fail(str(path), "must hold the average of every weight", f"none of {', '.join(missing)[:200]}", remedy)
        checkpoint.restore(tensors, self.model, self.optimizer)
        for name, x in zip(names, self.average, strict=False):
            x.copy_(tensors[f"average/{name}"])
        self.step = facts["step"]

    def _boards(self) -> str:
        """A number for the boards, by which others are noticed."""
        return digest({"puzzles": self.feed.puzzles, "solutions": self.feed.solutions})

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


def _groups(model: nn.Module, config: TrainConfig) -> list[dict[str, Any]]:
    """Weights by what is done to them. Some do not decay: norms, biases, embeddings, rates, whatever has one dimension,
    and bases if they are not to. What is inserted may have a learning rate of its own, a share of that of the rest."""
    spared = ("bias", *UNDECAYED, *(() if config.decay_bases else BASES))
    own = 1.0 if config.inserted_lr is None or not config.lr else config.inserted_lr / config.lr
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        plain = parameter.ndim < 2 or "embed" in name or name.rpartition(".")[2] in spared
        what = 0.0 if plain else config.weight_decay, own if ".inserted." in name else 1.0
        groups.setdefault(what, []).append(parameter)
    return [dict(params=params, weight_decay=decay, share=share) for (decay, share), params in groups.items()]
