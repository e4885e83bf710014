"""Fine-tuning on conversations: `ttcnet sft`."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ttcnet import adapter
from ttcnet.command_options import usable
from ttcnet.errors import fail
from ttcnet.machine.processes import count, is_first_process, join_job, of_first, rank, together
from ttcnet.machine.torch_settings import avoid_cudnn, compiling_up_to
from ttcnet.models.loading import causal_lm, tokenizer_of
from ttcnet.models.sharded_loading import without_weights
from ttcnet.nn.horizon import parse
from ttcnet.nn.inserted import inserted_kinds
from ttcnet.nn.options import CONTEXTS
from ttcnet.terminal.console import tell

from . import loop
from .answers import Answers
from .examples import check_examples
from .learner import Learner
from .run import Run
from .settings import FineTuning
from .sharding import check_launcher, gathered, shard
from .trackers import check_tracker, tracking

if TYPE_CHECKING:
    from .grpo.settings import Reinforcement

LORA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RESULTS = {"all": "model", "inserted": "adapter", "lora": "adapter"}
COMPILER = "inductor"  # of torch.compile


def fine_tune(config: FineTuning, model: Any = None, tokenizer: Any = None, *, trust_remote_code: bool = False) -> Any:
    """Run to the end, or resume from the last checkpoint in `config.out`. The folder gets settings.json, log.jsonl,
    examples, checkpoints, and at the end adapter/ (the inserted layers, if the base did not change) or model/ (all).

    Args:
        config: the run.
        model: instead of the one that `config.model` names.
        tokenizer: likewise.
        trust_remote_code: run code that a model or tokenizer brings.
    """
    check(config, count())
    length = "epochs" if config.steps is None else "steps"
    options: dict[str, Any] = dict(results=[RESULTS[config.train]], may_grow=[length], keep=config.keep)
    with loop.on_sigterm(loop.stop_at_once):
        device = join_job("cpu" if os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true" else usable("auto"))
        options |= dict(free=["sharded", "report_to"], defaults={"weights": "float32"})
        with Run(Path(config.out), _settings(config), **options) as run:
            return _fine_tune(config, run, device, model, tokenizer, trust_remote_code)


def _fine_tune(config: FineTuning, run: Run, device: str, model: Any, tokenizer: Any, trust_remote_code: bool) -> Any:
    avoid_cudnn()
    if tokenizer is None:
        tokenizer = tokenizer_of(config.model, trust_remote_code=trust_remote_code)
    from .example_store import examples_of  # late: only training needs the package datasets

    examples = examples_of(config, tokenizer, run.folder / "examples", begun=run.begun)
    tell(examples.report)
    run.note(examples=examples.counts)
    fill = None
    if model is None:
        tell(f"Loading {config.model} ...")
        model, fill = _load(config, trust_remote_code)
    check_examples(examples, model, config.max_length)
    model = insert(model, config)
    if config.sharded and count() > 1:
        shard(model, device, config.bf16)
    if fill is not None:
        fill(model)
    trained = learner(model, examples.rows, config, device)
    with _compiling(config), tracking(config.report_to, run.folder) as report:
        loop.train((run, trained), every=config.log_every, save_every=config.save_every, report=report)
    save_result(trained.model, tokenizer, config, run)
    if examples.too_long:
        tell(f"Trained on {examples.report}.")
    return trained.model


def learner(model: Any, examples: Any, config: FineTuning, device: str) -> Learner:
    """A learner for a model with its inserted layers."""
    if config.check_pointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    objective = Answers(model.train(), examples, config)
    may_skip = not config.check_pointing
    return Learner(objective, model, objective.groups(), device, seed=config.seed, bf16=config.bf16, may_skip=may_skip)


def _settings(config: FineTuning) -> dict[str, Any]:
    """Settings for the folder of the run, without its name, because it may be moved; and with steps or epochs,
    whichever counts."""
    found = config.to_dict()
    del found["out"]
    if config.steps is not None:
        found["epochs"] = None
    if config.adapter is not None:
        found["adapter"] = {"context": CONTEXTS[0]} | config.adapter
    return found


def check(config: FineTuning, processes: int) -> None:
    """Check all that can be checked before anything is loaded."""
    check_launcher()
    if config.inserted is not None and config.inserted.remembers and config.packing:
        remedy = "Pass packing=false."
        rule = f"must be off with {config.inserted.insert}, which carries its memory across rows"
        fail("packing", rule, True, remedy, "stateful")
    if config.batch % (config.device_batch * processes):
        rule = f"must be a multiple of device_batch {config.device_batch} times {processes} processes"
        fail("batch", rule, config.batch, "Pass a multiple.", "conflict")
    check_tracker(config.report_to)


def _load(config: FineTuning, trust_remote_code: bool) -> tuple[Any, Callable[[nn.Module], None] | None]:
    """The base model, and a function to call after layers are inserted and the model is spread: with it each process
    reads its pieces of the weights."""
    dtype = getattr(torch, config.weights)
    if not (config.sharded and count() > 1):
        return causal_lm(config.model, dtype, trust_remote_code=trust_remote_code), None
    with together():
        model, weights, names = without_weights(config.model, dtype, trust_remote_code=trust_remote_code)
    first, own = of_first(weights.describe()), weights.describe()
    with together():
        if own != first:
            remedy = "Give all the same files."
            fail("model", "must be that of process 0", f"other weights in process {rank()}", remedy, "disagree")
    return model, lambda spread: weights.fill(spread, names)


def insert(model: Any, config: FineTuning) -> Any:
    """The model with its inserted layers and LoRA, and only what is trained requiring gradients."""
    torch.manual_seed(config.seed)
    if config.inserted is not None:
        if there := inserted_kinds(model):
            rule = "must be none for a model that has its layers already"
            remedy = 'Pass --insert none, or adapter = "none".'
            fail("insert", rule, ", ".join(sorted(there)), remedy, "has-layers")
        adapter.insert(model, config.inserted)
        for parameter in adapter.parameters(model).values():
            wide = torch.promote_types(parameter.dtype, torch.float32)  # though the base may be in bfloat16
            parameter.data = parameter.data.to(wide)
    if config.compiled:
        for part in getattr(model.base_model, "layers", [model]):  # layers of one kind share compiled code
            part.compile(backend=COMPILER)
    if config.train == "lora":
        model = add_lora(model, config.lora_rank)
    if config.inserted is not None and config.train != "all":
        adapter.freeze_base(model)
    return model


def add_lora(model: Any, rank: int) -> Any:
    """A model in PEFT's wrapper, with LoRA on the projections of its base."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=LORA_TARGETS))


def _compiling(config: FineTuning) -> AbstractContextManager[None]:
    """Raise a limit: torch.compile gives up a layer after 8 compilations, and horizons and lengths can need more."""
    return compiling_up_to(parse(config.horizon).max + 16) if config.compiled else nullcontext()


def save_result(model: Any, tokenizer: Any, config: FineTuning | Reinforcement, run: Run) -> None:
    """Write model/ if the base was trained, and otherwise adapter/ with the inserted layers and PEFT's LoRA. Every
    process must call this; the first one writes."""
    first = is_first_process()
    with run.result(RESULTS[config.train]) as new:
        if config.train != "all" and config.adapter is not None:
            adapter.save(model, new)
        if config.train != "inserted":
            alone = config.train == "lora"  # and the embeddings, which PEFT would check, did not change
            weights = gathered(model, trained=alone)
            if first:
                model.save_pretrained(new, state_dict=weights, **{"save_embedding_layers": False} if alone else {})
        if first:
            tokenizer.save_pretrained(new)
