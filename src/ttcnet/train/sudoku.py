"""Training of Sudoku models: `ttcnet sudoku train`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ttcnet.errors import fail
from ttcnet.machine.processes import count, is_first_process, rank
from ttcnet.models import TTCNetForCellClassification
from ttcnet.nn.context import BASES
from ttcnet.nn.inserted import inserted_parameters
from ttcnet.storage.tensor_file import digest
from ttcnet.tasks.sudoku.data import Boards
from ttcnet.tasks.sudoku.feed import Feed
from ttcnet.tasks.sudoku.settings import SudokuTraining

from . import loop
from .learner import Learner
from .run import Run
from .schedule import parameter_groups, warm_up_and_cosine
from .trackers import tracking

MODEL = "model"  # the result of a run


class SudokuObjective:
    """Boards, and the loss on their masked cells. In a distributed job every process has a share of each batch."""

    counts = 2  # right cells, masked cells

    def __init__(self, config: SudokuTraining, boards: Boards, device: torch.device | str = "cpu") -> None:
        self.config, self.steps = config, config.steps
        if config.batch % count():
            remedy = "Pass a multiple, or start fewer processes."
            fail("batch", f"must be a multiple of the {count()} processes", config.batch, remedy, "conflict")
        if config.loops_per_step is not None and count() > 1:
            rule = "must be left out if several processes train"
            fail("loops_per_step", rule, config.loops_per_step, "Start one process, or leave it out.", "conflict")
        self.new = config.batch // config.steps_per_board
        self.feed = Feed(boards, self.new, config.seed, config.augmentation, device)
        self.carried: dict[str, Tensor] = {}
        if config.steps_per_board > 1:  # puzzles, labels and states of the last step; those of the newest boards first
            cells = torch.zeros(config.batch, 81, dtype=torch.long, device=device)
            states = torch.zeros(*cells.shape, config.width, device=device)
            self.carried = {"puzzles": cells, "labels": torch.full_like(cells, -100), "states": states}

    def rate(self, step: int) -> float:
        config = self.config
        return warm_up_and_cosine(step, config.steps, config.lr, config.final_lr, config.warm_up)

    def begin(self, step: int) -> list[tuple[Tensor, ...]]:
        puzzles, labels = self.feed.at(step)
        if count() == 1:
            return [(puzzles, labels)]
        own = slice(rank(), None, count())
        share = (labels[own] >= 0).sum() * count() / (labels >= 0).sum().clamp_min(1)
        return [(puzzles[own], labels[own], share)]

    def loss(self, model: nn.Module, puzzles: Tensor, labels: Tensor, share: Tensor | None = None) -> Any:
        """The mean loss of masked cells. `share` scales it, so that the mean over processes is the mean over all their
        masked cells."""
        if self.carried:
            output, labels = self._continue(model, puzzles, labels)
        else:
            output = model(puzzles, labels=labels)
        masked = labels >= 0
        right = ((output.logits.detach().argmax(-1) == labels) & masked).sum()
        counted = torch.stack([right, masked.sum()]).float()
        return output.loss if share is None else output.loss * share, counted

    def _continue(self, model: nn.Module, puzzles: Tensor, labels: Tensor) -> tuple[Any, Tensor]:
        """Replace the oldest boards by new ones. All others continue from the states of the last step."""
        fresh = torch.zeros_like(self.carried["states"][: self.new])
        now = {"puzzles": puzzles, "labels": labels, "states": fresh}
        now = {name: torch.cat([x, self.carried[name][: -self.new]]) for name, x in now.items()}
        options = dict(labels=now["labels"], state=now["states"], loops=self.config.loops_per_step)
        output = model(now["puzzles"], **options)
        with torch.no_grad():
            for name, x in (now | {"states": output.state.detach()}).items():
                self.carried[name].copy_(x)
        return output, now["labels"]

    def news(self, step: int, steps: int, loss: float, counted: list[float]) -> dict[str, float]:
        return {"loss": loss, "cells": counted[0] / max(counted[1], 1)}

    def describe(self, news: dict[str, float]) -> str:
        return f"{self.config.architecture}: loss {news['loss']:.3f}, {100 * news['cells']:.1f} % of cells"


def learner(config: SudokuTraining, boards: Boards, device: torch.device | str = "cpu") -> Learner:
    """A new model that learns. On a GPU its blocks are compiled; with one process its steps are captured as a CUDA
    graph, unless TTC layers have the context "system", whose solver may wait for the GPU."""
    objective, place = SudokuObjective(config, boards, device), torch.device(device)
    torch.manual_seed(config.seed)
    model = TTCNetForCellClassification(config.model()).train()
    on_gpu = place.type == "cuda"
    if on_gpu:
        for block in model.model.layers:  # blocks of one kind share compiled code
            block.compile(dynamic=False)
        if model.model.recall is not None:
            model.model.recall.compile(dynamic=False)
    share = 1.0 if config.inserted_lr is None or not config.lr else config.inserted_lr / config.lr
    bases = () if config.decay_bases else BASES

    def spared(name: str) -> bool:
        return "embed" in name or name.rpartition(".")[2] in bases

    groups = parameter_groups(model, config.weight_decay, spared=spared, apart=inserted_parameters(model), share=share)
    options: dict[str, Any] = dict(seed=config.seed, clip=config.clip, ema=config.ema)
    captured = on_gpu and count() == 1 and config.context != "system"
    return Learner(objective, model, groups, place, bf16=on_gpu, captured=captured, **options)


def run_of(config: SudokuTraining, boards: Boards, out: Path, **options: Any) -> Run:
    """The run of a configuration. Its settings include a digest of the boards, so that other boards are refused."""
    named = digest({"puzzles": torch.from_numpy(boards.puzzles), "solutions": torch.from_numpy(boards.solutions)})
    return Run(out, asdict(config) | {"boards": named}, **({"results": [MODEL]} | options))


def train(
    config: SudokuTraining,
    boards: Boards,
    out: Path,
    device: torch.device | str = "cpu",
    *,
    every: int = 100,
    save_every: int = 1000,
    minutes: float | None = None,
    report_to: str = "none",
    report: loop.Report | None = None,
) -> TTCNetForCellClassification:
    """Train, or resume a killed run: the result is the same. The folder gets settings.json, log.jsonl,
    the last checkpoint, and model/ at the end. After `minutes` it saves and stops, to resume another time. Lines of the
    log go to the tracker `report_to` as well, and to `report`."""
    with run_of(config, boards, out) as run, tracking(report_to, out) as track:

        def reported(*line: Any) -> None:
            track(*line)
            if report is not None:
                report(*line)

        trained = learner(config, boards, device)
        options: dict[str, Any] = dict(every=every, save_every=save_every, listen_every=every)
        finished = loop.train((run, trained), minutes=minutes, report=reported, **options)
        model = trained_model(trained)
        if finished:
            with run.result(MODEL) as folder:
                if is_first_process():
                    model.save_pretrained(folder)
    return model


def trained_model(trained: Learner) -> TTCNetForCellClassification:
    """A copy of the model with the averaged weights, in evaluation mode."""
    trained.finish_step()
    model = TTCNetForCellClassification(trained.objective.config.model())  # type: ignore[attr-defined]
    nn.Module.to(model, trained.device)
    model.load_state_dict(trained.model.state_dict())
    if trained.average:
        with torch.no_grad():
            for parameter, x in zip(model.parameters(), trained.average, strict=True):
                parameter.copy_(x)
    return model.eval()
