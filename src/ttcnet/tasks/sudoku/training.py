"""A whole run: steps, log, checkpoints, the model at the end; alone or as one of several processes."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ttcnet.console import tell
from ttcnet.errors import fail
from ttcnet.locking import owned
from ttcnet.models import TTCNetForCellClassification
from ttcnet.reading import cut_log
from ttcnet.train.stopping import STATUS, on_sigterm
from ttcnet.writing import put, temporary, write_json

from .data import Boards
from .settings import TrainConfig
from .trainer import Trainer

Report = Callable[[Trainer, dict[str, float]], None]


def train(
    config: TrainConfig,
    boards: Boards,
    out: Path,
    device: torch.device | str = "cpu",
    *,
    every: int = 100,
    save_every: int = 1000,
    minutes: float | None = None,
    report: Report | None = None,
) -> TTCNetForCellClassification:
    """Train, or go on where a killed run stopped: the result is the same. The folder gets config.json, log.jsonl,
    checkpoint.safetensors, and model/ at the end. After `minutes` it saves and stops, to resume another time."""
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    if out.exists() and not out.is_dir():
        fail("out", "must be a folder", f"{out}, a file", "Choose another place.", NotADirectoryError)
    with owned(out):
        return _train(config, boards, out, device, every, save_every, deadline, report)


def _train(
    config: TrainConfig,
    boards: Boards,
    out: Path,
    device: torch.device | str,
    every: int,
    save_every: int,
    deadline: float,
    report: Report | None,
) -> TTCNetForCellClassification:
    trainer = Trainer(config, boards, device)
    kept = out / "checkpoint.safetensors"
    if kept.exists():
        trainer.load(kept)
    if trainer.rank:
        return _follow(trainer)
    write_json(out / "config.json", asdict(config))
    log = out / "log.jsonl"
    cut_log(log, trainer.step)
    with ExitStack() as listening:
        asked: list[Any] = []
        if trainer.world == 1:  # other processes would wait for this one
            listening.enter_context(on_sigterm(lambda *_: asked.append(True)))
        stopped = _steps(trainer, log, kept, every, save_every, deadline, asked, report)
    model = trainer.trained_model()
    if stopped:
        return model
    new = temporary(out / "model")
    model.save_pretrained(new)
    put(new, out / "model")
    return model


def _steps(
    trainer: Trainer,
    log: Path,
    kept: Path,
    every: int,
    save_every: int,
    deadline: float,
    asked: list[Any],
    report: Report | None,
) -> bool:
    """All remaining steps. True if the deadline came before the end; SIGTERM, once it was `asked` for, ends the
    process. Both save what was learned."""
    config, since = trainer.config, trainer.step
    while trainer.step < config.steps:
        trainer.advance()
        last = trainer.step == config.steps
        if asked and not last:
            trainer.save(kept)
            where = f"step {trainer.step:,} of {config.steps:,}"
            tell(f"Stopped by SIGTERM after {where}, which is saved. Give the command again to resume.")
            raise SystemExit(STATUS)
        if trainer.step % every == 0 or last:
            news = trainer.news(trainer.step - since)
            since = trainer.step
            if not math.isfinite(news["loss"]):
                remedy = f"Training has diverged: lower lr, in another folder. What was saved before is in {kept}."
                fail("loss", "must be a finite number", f"{news['loss']} near step {since}", remedy)
            with log.open("a") as file:
                file.write(json.dumps({"step": trainer.step} | news) + "\n")
            if report is not None:
                report(trainer, news)
            if time.monotonic() > deadline and not last:
                trainer.save(kept)
                return True
        if trainer.step % save_every == 0 or last:
            trainer.save(kept)
    return False


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
