"""TRL's trainer, with horizons drawn step by step and checkpoints in safetensors that are written whole or not at all.

A checkpoint holds what is trained, what the optimizer remembers, the schedule and the random numbers of every process:
a run that goes on from it ends at the same weights as one that was never stopped. It does not depend on how many
processes the weights were spread over.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerState
from trl.trainer.sft_trainer import SFTTrainer

from ttcnet import adapter
from ttcnet.errors import check_integer, fail
from ttcnet.nn.horizon import Sampler
from ttcnet.reading import check_fields
from ttcnet.tensor_file import facts, load, save
from ttcnet.writing import put

from .schedule import UNDECAYED, set_apart, warm_up_and_cosine
from .state import gather, plain_items, scatter

STATE, RANDOM, PROGRESS = "state.safetensors", "random-{}.safetensors", "trainer_state.json"


class Horizons(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Before every step, the horizon that a sampler has for it: the same on every process, and after a resumption."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def on_step_begin(self, args: Any, state: Any, control: Any, model: nn.Module, **_: Any) -> None:  # type: ignore[override, unused-ignore]
        adapter.set_horizon(model, self.sampler.at(state.global_step))


class FineTuner(SFTTrainer):  # type: ignore[misc, unused-ignore]
    """SFTTrainer with a schedule and checkpoints of our own. Nothing in them is pickled."""

    args: Any
    control: Any
    lr_scheduler: Any
    model_wrapped: Any
    optimizer: Any

    def __init__(self, *args: Any, inserted_lr: float | None = None, **options: Any) -> None:
        self.inserted_lr = inserted_lr
        super().__init__(*args, **options)

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """What is inserted may have a learning rate of its own."""
        new = self.optimizer is None
        made = super().create_optimizer(model)
        if new and self.inserted_lr is not None:
            of: Any = self.model if model is None else model
            set_apart(made, adapter.parameters(of).values(), self.inserted_lr)
        return made

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Up over the share `warmup_steps` of the steps, then by a cosine down to a tenth."""
        warm_up = self.args.warmup_steps

        def share(step: int) -> float:
            return warm_up_and_cosine(step, num_training_steps, 1.0, 0.1, warm_up)

        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, share)
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """All but norms, biases and rates."""
        names: list[str] = super().get_decay_parameter_names(model)
        return [name for name in names if name.rpartition(".")[2] not in UNDECAYED]

    def _run_epoch(self, **options: Any) -> None:  # type: ignore[override, unused-ignore]
        """Nothing, if the checkpoint that the run goes on from is its last: Trainer would take one step too many."""
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(**options)
        else:
            self.control.should_training_stop = True

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        step = self.state.global_step  # a name that all processes know, and that ttcnet.writing.clear knows too
        unfinished = folder.with_name(f".{step:08x}.tmp.{folder.name}")
        tensors, facts = gather(self.model_wrapped, self._plain_optimizer())
        if self.args.should_save:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            facts["schedule"] = plain_items(self.lr_scheduler.state_dict())
            save(unfinished / STATE, tensors, facts)
            self.state.save_to_json(str(unfinished / PROGRESS))
        self._wait()  # the folder is there
        save(unfinished / RANDOM.format(self.args.process_index), *_random_state())
        self._wait()  # all have written
        if self.args.should_save:
            put(unfinished, folder)
            self._forget_old()
        self._wait()

    def _forget_old(self) -> None:
        """Keep the last checkpoints alone."""
        for path in checkpoints(Path(self.args.output_dir))[: -self.args.save_total_limit]:
            shutil.rmtree(path)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Weights are loaded together with what the optimizer remembers of them."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        tensors, facts = load(Path(checkpoint) / STATE)
        scatter(self.model_wrapped, self._plain_optimizer(), tensors, facts, checkpoint)
        schedule, step = self.lr_scheduler, facts["schedule"]["last_epoch"]
        rates = [base * share(step) for base, share in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)]
        schedule.load_state_dict(facts["schedule"] | {"_last_lr": rates})
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate  # another than in the checkpoint, if the run was extended

    def _load_rng_state(self, checkpoint: str | None) -> None:
        path = Path(checkpoint or "") / RANDOM.format(self.args.process_index)
        if checkpoint is not None and path.exists():  # not if there were fewer processes
            _restore_random(*load(path))

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        raise NotImplementedError("ttcnet.train.sft saves the result of a run")

    def _plain_optimizer(self) -> Any:
        return getattr(self.optimizer, "optimizer", self.optimizer)  # accelerate wraps it

    def _wait(self) -> None:
        if dist.is_initialized():
            dist.barrier()


def checkpoints(out: Path) -> list[Path]:
    """Those in the folder of a run, the last one last; not what was left half-written."""
    found = {path: path.name.removeprefix("checkpoint-") for path in out.glob("checkpoint-*") if path.is_dir()}
    return sorted((path for path, step in found.items() if step.isdecimal()), key=lambda path: int(found[path]))


def _check_progress(path: Path) -> None:
    """That Trainer can read it."""
    try:
        state = TrainerState.load_from_json(str(path))
    except Exception as error:  # it takes what is there for what it has written, and raises anything
        value = f"{type(error).__name__}: {error}"[:200]
        fail(str(path), "must be what Trainer wrote", value, "Delete the checkpoint.")
    for name in ("global_step", "max_steps"):
        check_integer(f"{path}: {name}", getattr(state, name), 1, "Delete the checkpoint.")


def last_checkpoint(out: Path, tell: Callable[[str], None]) -> Path | None:
    """The last one that is whole, and None if there are none at all. `tell` is told of those that are damaged."""
    damage: Exception | None = None
    for path in reversed(checkpoints(out)):
        try:
            _check_progress(path / PROGRESS)
            check_fields(str(path / STATE), facts(path / STATE), "Delete it.", groups=list, schedule=dict)
            check_fields(str(path / RANDOM), facts(path / RANDOM.format(0)), "Delete it.", python=list, numpy=list)
            return path
        except (OSError, ValueError) as error:
            damage = error
            tell(f"{path} is damaged, and passed over. {error}")
    if damage is not None:
        remedy = "Put a whole one there, or delete all to start again from the beginning."
        fail(str(out), "must have a checkpoint that is whole", damage, remedy)
    return None


def _random_state() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Of Python, numpy and torch: tensors, and what is fit for JSON."""
    kind, keys, *rest = np.random.get_state()
    tensors = {"torch": torch.get_rng_state(), "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64))}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    return tensors, {"python": random.getstate(), "numpy": [kind, *rest]}


def _restore_random(tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    try:
        version, words, gauss = facts["python"]
        random.setstate((version, tuple(words), gauss))
        kind, *rest = facts["numpy"]
        np.random.set_state((kind, tensors["numpy"].numpy().astype(np.uint32), *rest))
        torch.set_rng_state(tensors["torch"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        remedy = "It is damaged: delete the checkpoint."
        fail("checkpoint", "must hold the state of random numbers", repr(error)[:200], remedy)
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])
