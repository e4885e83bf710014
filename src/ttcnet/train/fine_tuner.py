"""TRL's trainer, with horizons drawn step by step and checkpoints in safetensors that are written whole or not at all.

A checkpoint holds what is trained, what the optimizer remembers, the schedule and the random numbers of every process:
a run that goes on from it ends at the same weights as one that was never stopped. It does not depend on how many
processes the weights were spread over.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from transformers import TrainerCallback
from trl.trainer.sft_trainer import SFTTrainer

from ttcnet import adapter
from ttcnet.errors import fail
from ttcnet.files import load, save
from ttcnet.nn.horizon import Sampler

STATE, RANDOM, PROGRESS = "state.safetensors", "random-{}.safetensors", "trainer_state.json"
TRAINED = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)


class Horizons(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Before every step, the horizon that a sampler has for it: the same on every process, and after a resumption."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def on_step_begin(self, args: Any, state: Any, control: Any, model: nn.Module, **_: Any) -> None:  # type: ignore[override, unused-ignore]
        adapter.set_horizon(model, self.sampler.at(state.global_step))


class FineTuner(SFTTrainer):  # type: ignore[misc, unused-ignore]
    """SFTTrainer with checkpoints of our own. Nothing in them is pickled."""

    args: Any
    lr_scheduler: Any
    model_wrapped: Any

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        unfinished = folder.with_name(f"{folder.name}.tmp")
        weights, memory = self._trained()
        if self.args.should_save:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            tensors = {f"model/{name}": value for name, value in weights.items()}
            numbers: dict[str, dict[str, Any]] = {}
            for name, kept in memory["state"].items():
                for kind, value in kept.items():
                    tensors[f"optimizer/{kind}/{name}"] = torch.as_tensor(value)
            for group in memory["param_groups"]:
                numbers[group["params"][0]] = {k: v for k, v in group.items() if k != "params" and _plain(v)}
            facts = {"groups": numbers, "schedule": _plain_items(self.lr_scheduler.state_dict())}
            save(unfinished / STATE, tensors, facts)
            self.state.save_to_json(str(unfinished / PROGRESS))
        self._wait()  # the folder is there
        save(unfinished / RANDOM.format(self.args.process_index), *_random_state())
        self._wait()  # all have written
        if self.args.should_save:
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(unfinished, folder)
            self._forget_old()
        self._wait()

    def _forget_old(self) -> None:
        """Keep the last checkpoints alone."""
        found = sorted(
            (path for path in Path(self.args.output_dir).glob("checkpoint-*") if path.name.split("-")[1].isdecimal()),
            key=lambda path: int(path.name.split("-")[1]),
        )
        for path in found[: -(self.args.save_total_limit or len(found))]:
            shutil.rmtree(path)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Weights are loaded together with what the optimizer remembers of them."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        tensors, facts = load(Path(checkpoint) / STATE)
        options = StateDictOptions(full_state_dict=True, ignore_frozen_params=True, strict=False)
        expected, memory = self._trained()
        weights: Any = {name.removeprefix("model/"): x for name, x in tensors.items() if name.startswith("model/")}
        if set(weights) != set(expected):
            missing, extra = sorted(set(expected) - set(weights)), sorted(set(weights) - set(expected))
            remedy = "Resume with the settings that the run was started with, or choose another folder."
            fail(f"{checkpoint}", "must hold the weights that are trained", f"missing {missing}, extra {extra}", remedy)
        state: dict[str, dict[str, Tensor]] = {name: {} for name in weights}
        for key, value in tensors.items():
            if key.startswith("optimizer/"):
                _, kind, name = key.split("/", 2)
                state[name][kind] = value
        for group in memory["param_groups"]:
            group.update(facts["groups"][group["params"][0]])
        whole: Any = {"state": state, "param_groups": memory["param_groups"]}
        set_state_dict(
            self.model_wrapped,
            self._plain_optimizer(),
            model_state_dict=weights,
            optim_state_dict=whole,
            options=options,
        )
        self.lr_scheduler.load_state_dict(facts["schedule"])

    def _load_rng_state(self, checkpoint: str | None) -> None:
        path = Path(checkpoint or "") / RANDOM.format(self.args.process_index)
        if checkpoint is not None and path.exists():  # not if there were fewer processes
            _restore_random(*load(path))

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        raise NotImplementedError("ttcnet.train.sft saves the result of a run")

    def _trained(self) -> tuple[Any, Any]:
        """Weights that are trained, and what the optimizer remembers, by name, whole on the CPU."""
        return get_state_dict(self.model_wrapped, self._plain_optimizer(), options=TRAINED)

    def _plain_optimizer(self) -> Any:
        return getattr(self.optimizer, "optimizer", self.optimizer)  # accelerate wraps it

    def _wait(self) -> None:
        if dist.is_initialized():
            dist.barrier()


def _plain(value: Any) -> bool:
    """Whether JSON can hold it."""
    return isinstance(value, bool | int | float | str | list | tuple | None)


def _plain_items(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if _plain(value) and json.dumps(value)}


def _random_state() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Of Python, numpy and torch: tensors, and what is fit for JSON."""
    kind, keys, *rest = np.random.get_state()
    tensors = {"torch": torch.get_rng_state(), "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64))}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    return tensors, {"python": random.getstate(), "numpy": [kind, *rest]}


def _restore_random(tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    version, words, gauss = facts["python"]
    random.setstate((version, tuple(words), gauss))
    kind, *rest = facts["numpy"]
    np.random.set_state((kind, tensors["numpy"].numpy().astype(np.uint32), *rest))
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])
