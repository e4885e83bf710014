"""A run of reinforcement learning: `ttcnet grpo`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ttcnet import adapter
from ttcnet.adapter.base_with_adapter import has_lora, to_train
from ttcnet.command_options import usable
from ttcnet.errors import fail
from ttcnet.machine.processes import join_job
from ttcnet.machine.torch_settings import avoid_cudnn
from ttcnet.models.loading import causal_lm, tokenizer_of
from ttcnet.nn.inserted import inserted_layers
from ttcnet.tasks import Example, Task, find
from ttcnet.tasks.task import digest, graded, read_examples
from ttcnet.terminal.console import tell

from .. import loop
from ..checkpoint import random_states
from ..run import Run
from ..sft import RESULTS, add_lora, save_result
from ..sharding import check_launcher
from ..trackers import check_tracker, tracking
from .policy import Policy, PolicyLearner
from .samples import Actor, GradingError, Questions
from .settings import Reinforcement

GRADED = ("right", "readable", "ended")  # yes or no for every answer


def reinforce(
    config: Reinforcement, model: Any = None, tokenizer: Any = None, *, trust_remote_code: bool = False
) -> Any:
    """Run to the end, or resume from the last checkpoint in `config.out`. The folder gets settings.json, log.jsonl,
    checkpoints, and at the end adapter/ or model/, as with `ttcnet sft`.

    Args:
        config: the run.
        model: instead of the one that `config.model` names.
        tokenizer: likewise.
        trust_remote_code: run code that a model or tokenizer brings.
    """
    check_launcher()
    check_tracker(config.report_to)
    task, examples = read(config.task, config)
    held_out = None if config.held_out is None else read(config.held_out, config, config.held_out_examples)
    check_rewards(task, examples, config.rewards)
    if held_out is not None:
        check_apart(examples, held_out[1])
    settings = _settings(config, examples, [] if held_out is None else held_out[1])
    options: dict[str, Any] = dict(results=[RESULTS[config.train]], may_grow=["steps"], free=["report_to"])
    with loop.on_sigterm(loop.stop_at_once):
        device = join_job(usable("auto"))
        with Run(Path(config.out), settings, keep=config.keep, **options) as run:
            avoid_cudnn()
            if tokenizer is None:
                tokenizer = tokenizer_of(config.model, trust_remote_code=trust_remote_code)
            sets = [
                None if each is None else Questions(*each, tokenizer, config.system, config.rewards)
                for each in ((task, examples), held_out)
            ]
            if model is None:
                tell(f"Loading {config.model} ...")
                model = causal_lm(config.model, torch.float32, trust_remote_code=trust_remote_code)
            for each in filter(None, sets):
                each.check(model, config.max_tokens)
            trained = learner(start(model, config), tokenizer, sets, config, device)
            _train(trained, run, config)
            save_result(trained.model, tokenizer, config, run)
            return trained.model


def learner(
    model: Any, tokenizer: Any, sets: Sequence[Questions | None], config: Reinforcement, device: str
) -> PolicyLearner:
    """A model that learns to answer the first set of questions; the second one is held out, if there is one."""
    questions, held_out = sets
    assert questions is not None
    options: dict[str, Any] = dict(limit=config.max_tokens, tokens=config.tokens_at_once, bf16=config.bf16)
    actor = Actor(model, tokenizer, device, **options)
    reference = None
    if config.beta:
        reference = torch.nn.Module.to(copy.deepcopy(model), device).eval().requires_grad_(False)
    if config.check_pointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = Policy(model.train(), actor, questions, held_out, reference, config)
    may_skip = not config.check_pointing
    return PolicyLearner(policy, model, policy.groups(), device, seed=config.seed, bf16=config.bf16, may_skip=may_skip)


def start(model: Any, config: Reinforcement) -> Any:
    """The model at the start, with its adapter, if it has one. Only weights that are trained require gradients."""
    torch.manual_seed(config.seed)
    lora = config.adapter is not None and has_lora(config.adapter)
    if lora and config.train == "inserted":
        remedy = 'Pass train = "lora", or "all".'
        fail("train", "must not be 'inserted' for an adapter with LoRA", config.adapter, remedy, "conflict")
    if config.adapter is not None:
        model = to_train(model, config.adapter)
    if config.inserted_lr is not None and not inserted_layers(model):
        remedy = "Leave it out, or start from a model with inserted layers."
        fail("inserted_lr", "must not be given without inserted layers", config.inserted_lr, remedy, "conflict")
    if config.train == "all":
        return (model.merge_and_unload() if lora else model).requires_grad_(True)
    if config.train == "lora" and not lora:
        model = add_lora(model, config.lora_rank)
    if config.adapter is not None and inserted_layers(model):
        adapter.freeze_base(model)
    return model


def read(name: str, config: Reinforcement, limit: int | None = None) -> tuple[Task, list[Example]]:
    """A task and its examples."""
    task = find(name, None if config.data is None else Path(config.data))
    return task, read_examples(task, limit)


def check_rewards(task: Task, examples: Sequence[Example], rewards: dict[str, float]) -> None:
    """Fail if the task does not give the scores that rewards name."""
    known = {*GRADED, *graded(task, examples[0], "").scores}
    if unknown := sorted(set(rewards) - known):
        rule = f"must name some of {', '.join(sorted(known))}: properties or scores of answers to {task.name}"
        fail("rewards", rule, ", ".join(unknown), "Correct the name, or return it from grade().", "unknown-name")


def check_apart(examples: Sequence[Example], held_out: Sequence[Example]) -> None:
    """Fail if an example is both trained on and held out."""
    learned = {each.text for each in examples}
    both = [each.number for each in held_out if each.text in learned]
    if both:
        value = f"{len(both):,} of {len(held_out):,}, the first of them number {both[0]}"
        fail("held_out", "must share no example with task", value, "Hold out others.", "conflict")


def _train(trained: PolicyLearner, run: Run, config: Reinforcement) -> None:
    """Take all steps. If grading fails, a checkpoint is saved first."""
    policy = trained.objective
    try:
        if not run.checkpoints():
            run.cut_log(-1)
            if before := policy.accuracy():
                run.log({"step": 0} | before)
                tell(f"Before the first step {100 * before['held_out']:.1f} % of the held-out examples are right.")
        with tracking(config.report_to, run.folder) as report:
            loop.train((run, trained), every=config.log_every, save_every=config.save_every, report=report)
    except GradingError as failed:
        if trained.step:
            run.save(trained.step, trained.state() | random_states())
        failed.report()


def _settings(config: Reinforcement, examples: Sequence[Example], held_out: Sequence[Example]) -> dict[str, Any]:
    """Settings for the folder: all but its name, because it may be moved; and digests of the examples, so that others
    are refused."""
    found = config.to_dict()
    del found["out"]
    return found | {"examples": digest(examples), "held_out_digest": digest(held_out)}
