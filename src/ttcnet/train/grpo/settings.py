"""Settings of a run of reinforcement learning, from a TOML file or the command line."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, get_type_hints

from ttcnet.bounds import check_count, check_rates, check_seed
from ttcnet.errors import fail
from ttcnet.nn.horizon import parse
from ttcnet.settings import check_type

from ..settings import TRAINED, check_out

COUNTS = (
    "batch", "device_batch", "updates", "max_tokens", "tokens_at_once", "lora_rank", "steps", "save_every", "keep",
    "log_every", "held_out_every", "held_out_examples",
)  # fmt: skip


@dataclass(frozen=True)
class Reinforcement:
    """Settings of a run of reinforcement learning. A step draws `samples` answers to each of `batch` examples, grades
    them, and updates the weights.

    Args:
        model: a folder or a name of the Hub: the model at the start, such as that of `ttcnet sft`.
        task: the task whose examples are answered and graded: a JSON Lines file, a Python file with a task, or a name.
        out: the folder of the run.
        adapter: the folder of an adapter of `model`, as `ttcnet sft` writes it.
        data: a folder with the files of tasks that are known by name. Without it they come from the Hub.
        held_out: a task likewise. Its first `held_out_examples` examples are answered greedily before the first step,
            every `held_out_every` steps and after the last one. They are not trained on.
        system: the system prompt; none if not given, as in `ttcnet sft`.
        rewards: weights by name. The reward of a sample is the sum of its properties and scores times these weights:
            `right`; `readable` if an answer could be read from it; `ended` if the model ended it before `max_tokens`;
            and any name among the `scores` of the task's verdicts.
        batch: examples per step, over all devices.
        samples: answers drawn for each of them, which are compared with each other.
        updates: how often a step updates the weights, each time by an equal share of the examples. With one, no ratio
            is ever clipped.
        max_tokens: of an answer. Longer ones are cut, and graded in that form.
        temperature: of sampling, and of the policy that is learned.
        scale: divide a sample's reward above the mean of its group by the standard deviation of the group.
        clip: how far below 1 the ratio of new to old probability counts, and how far above it if there is no
            `clip_high`.
        clip_high: how far above 1 it counts.
        beta: weight of the divergence from the model at the start; 0 needs no copy of it.
        train: "all" trains everything, "inserted" the inserted layers of the adapter alone, "lora" adds LoRA to the
            base model, or continues with that of the adapter.
        lora_rank: the rank of new LoRA.
        horizon: a sampler of horizons for TTC layers, drawn once per step; see `ttcnet.nn.horizon`.
        sampling_horizon: another sampler for the time when answers are drawn; None takes the horizon of the update.
        lr: the learning rate, which rises over the share `warm_up` of the steps and stays.
        inserted_lr: that of the inserted layers; None is `lr`.
        steps: their number.
        device_batch: samples that a device computes at a time in an update.
        tokens_at_once: tokens of prompts and answers that a device generates side by side.
        bf16: compute in bfloat16, with weights in float32, and generate from a copy in bfloat16.
        check_pointing: recompute activations in the backward pass, to save memory.
        save_every: steps between checkpoints. The last `keep` of them are kept.
        log_every: steps between lines of the log.
        report_to: where lines of the log are sent as well: none, tensorboard, wandb, ...; see `ttcnet.train.trackers`.
        seed: of samples, the order of examples and horizons.
    """

    model: str
    task: str
    out: str
    adapter: str | None = None
    data: str | None = None
    held_out: str | None = None
    held_out_examples: int = 200
    held_out_every: int = 20
    system: str | None = None
    rewards: dict[str, float] = field(default_factory=lambda: {"right": 1.0})
    batch: int = 32
    samples: int = 8
    updates: int = 1
    max_tokens: int = 512
    temperature: float = 1.0
    scale: bool = True
    clip: float = 0.2
    clip_high: float | None = None
    beta: float = 0.0
    train: str = "all"
    lora_rank: int = 16
    horizon: str = "pln:8,0.1,32"
    sampling_horizon: str | None = None
    lr: float = 1e-6
    inserted_lr: float | None = None
    warm_up: float = 0.0
    weight_decay: float = 0.0
    steps: int = 200
    device_batch: int = 8
    tokens_at_once: int = 2**17
    bf16: bool = True
    check_pointing: bool = False
    save_every: int = 20
    keep: int = 2
    log_every: int = 1
    report_to: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            check_type(hint, getattr(self, name), name)
        for name in ("model", "task", "out"):
            if not getattr(self, name):
                remedy = "Name it in the file or on the command line."
                fail(name, "must be given", repr(getattr(self, name)), remedy, "missing")
        for name in COUNTS:
            if getattr(self, name) < 1:
                fail(name, "must be 1 or more", getattr(self, name), "Pass a larger number.", "too-small")
            check_count(name, getattr(self, name))
        check_count("samples", self.samples)
        if self.samples < 2:
            remedy = "Pass 8, say: samples of an example are compared with each other."
            fail("samples", "must be 2 or more", self.samples, remedy, "too-small")
        for name in ("temperature", "clip", "clip_high"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                fail(name, "must be above 0 and finite", value, "Pass such a number.", "out-of-range")
        check_seed(self.seed)
        check_rates(self, "lr", "inserted_lr")
        check_out(self.out, self.model, self.adapter)
        if not 0 <= self.beta < math.inf:
            fail("beta", "must be 0 or more and finite", self.beta, "Pass such a number.", "out-of-range")
        if not 0 <= self.warm_up < 1:
            remedy = "Pass the share of the steps, such as 0.1."
            fail("warm_up", "must lie in [0, 1)", self.warm_up, remedy, "out-of-range")
        if self.train not in TRAINED:
            fail("train", f"must be one of {', '.join(TRAINED)}", repr(self.train), "Use one of those.", "unknown-name")
        if self.train == "inserted" and self.adapter is None:
            remedy = 'Pass the adapter\'s folder, or train = "all", which takes whole models.'
            fail("train", "must not be 'inserted' without an adapter", repr(self.train), remedy, "conflict")
        if self.batch % self.updates:
            fail("batch", f"must be a multiple of updates {self.updates}", self.batch, "Pass a multiple.", "conflict")
        if self.held_out is not None and self.held_out_every % self.log_every:
            rule = f"must be a multiple of log_every {self.log_every}"
            fail("held_out_every", rule, self.held_out_every, "Pass a multiple.", "conflict")
        if not self.rewards or not all(math.isfinite(weight) for weight in self.rewards.values()):
            remedy = "Pass { right = 1.0 }, say."
            fail("rewards", "must name at least one, with finite weights", self.rewards, remedy, "out-of-range")
        parse(self.horizon)
        if self.sampling_horizon is not None:
            parse(self.sampling_horizon)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
