"""Fine-tuning on conversations: `ttcnet sft`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from transformers import TrainerCallback
from transformers.integrations.integration_utils import get_available_reporting_integrations
from transformers.trainer_callback import PrinterCallback
from trl.trainer.sft_config import SFTConfig

from ttcnet import adapter
from ttcnet.adapter import TTCAdapterConfig
from ttcnet.console import tell
from ttcnet.environment import circumstances
from ttcnet.errors import fail
from ttcnet.insertable import plans
from ttcnet.locking import owned
from ttcnet.models.loading import causal_lm, tokenizer_of
from ttcnet.nn.horizon import parse
from ttcnet.processes import check_shared, is_first_process
from ttcnet.tensor_file import writing
from ttcnet.torch_settings import avoid_cudnn
from ttcnet.writing import put, temporary, write_json

from .examples import Examples, check_examples
from .fine_tuner import FineTuner, Horizons, last_checkpoint
from .kept import examples_of
from .record import CONTENTS, RESULTS, begun, checked
from .report import Report
from .settings import FineTuning
from .stopping import Stopper

LORA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def fine_tune(config: FineTuning, model: Any = None, tokenizer: Any = None, *, trust_remote_code: bool = False) -> Any:
    """Run to the end, or go on from the last checkpoint in `config.out`. The folder gets settings.json, log.jsonl,
    examples, checkpoints, and at the end adapter/ (what was inserted, if the base is as it was) or model/ (all of it).

    Args:
        config: the run.
        model: instead of what `config.model` names.
        tokenizer: likewise.
        trust_remote_code: run code that comes with them.
    """
    _check(config)
    stopper = Stopper()
    with stopper.listening(), owned(Path(config.out)):
        return _fine_tune(config, model, tokenizer, stopper, trust_remote_code)


def _fine_tune(config: FineTuning, model: Any, tokenizer: Any, stopper: Stopper, trust_remote_code: bool) -> Any:
    out = Path(config.out)
    options = _options(config)
    check_shared(out)
    record = checked(config, out, tell)
    avoid_cudnn()
    if tokenizer is None:
        tokenizer = tokenizer_of(config.model, trust_remote_code=trust_remote_code)
    examples = examples_of(config, tokenizer, out / "examples", begun=begun(out))
    tell(examples.report)
    if model is None:
        tell(f"Loading {config.model} ...")
        with _whole():
            model = causal_lm(config.model, torch.float32, trust_remote_code=trust_remote_code)
    check_examples(examples, model, config.max_length)
    model = _insert(model, config)
    report = Report(out)
    trainer = _trainer(model, tokenizer, config, options, examples, stopper, report)
    last = last_checkpoint(out, tell)
    if is_first_process() and record is not None:
        write_json(out / CONTENTS, record | {"examples": examples.counts} | circumstances())
    if last is not None:
        tell(f"Going on from {last}.")
    own = adapter.horizon(model, model.config.horizon) if plans(model) else nullcontext()  # not that of the last step
    with report.progress, own:
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
    stopper.check(trainer.state)
    save_result(trainer.model, tokenizer, config, out)
    if examples.too_long:
        tell(f"Trained on {examples.report}.")
    return trainer.model


def _check(config: FineTuning) -> None:
    """What can be known before anything is loaded."""
    inserted = TTCAdapterConfig.from_dict(config.adapter) if config.adapter is not None else None
    if config.packing and inserted is not None and inserted.remembers:
        remedy = "Pass packing=false."
        fail("packing", f"must be off with {inserted.insert}, which carries its memory across rows", True, remedy)
    if config.batch % (config.device_batch * _processes()):
        rule = f"must be a multiple of device_batch {config.device_batch} times {_processes()} processes"
        fail("batch", rule, config.batch, "Pass a multiple.")
    known = ("none", "all", *get_available_reporting_integrations())
    if config.report_to not in known:
        remedy = "Use one of those, or install the package of another."
        fail("report_to", f"must be one of {', '.join(known)}", repr(config.report_to), remedy)


def _processes() -> int:
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def _whole() -> Iterator[None]:
    """While a model is loaded: by every process in full, whatever accelerate asks for. What is inserted is made from it
    before FSDP hands out the first process's weights."""
    name = "FSDP_CPU_RAM_EFFICIENT_LOADING"
    before = os.environ.pop(name, None)
    try:
        yield
    finally:
        os.environ.update({} if before is None else {name: before})


def _insert(model: Any, config: FineTuning) -> Any:
    torch.manual_seed(config.seed)
    if config.adapter is not None:
        if (there := getattr(model.config, "inserted", None)) is not None:
            remedy = 'Pass --insert none, or adapter = "none".'
            fail("insert", "must be none for a model that has its layers already", there, remedy)
        adapter.insert(model, TTCAdapterConfig.from_dict(config.adapter))
    if config.compiled:
        _compile(model, parse(config.horizon).max)
    if config.train == "lora":
        from peft import LoraConfig, get_peft_model

        lora = LoraConfig(r=config.lora_rank, lora_alpha=2 * config.lora_rank, target_modules=LORA_TARGETS)
        model = get_peft_model(model, lora)
    if config.adapter is not None and config.train != "all":
        adapter.freeze_base(model)
    return model


def _compile(model: Any, horizons: int) -> None:
    """Layer by layer: those of one kind share what is compiled. Those that plan are compiled anew for every horizon,
    which torch would give up after 8 of them."""
    limits: Any = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, horizons + 16)
    for part in getattr(model.base_model, "layers", [model]):
        part.compile()


def _options(config: FineTuning) -> SFTConfig:
    """Those of TRL. With them the process joins its job."""
    return SFTConfig(
        output_dir=config.out,
        per_device_train_batch_size=config.device_batch,
        gradient_accumulation_steps=config.batch // (config.device_batch * _processes()),
        learning_rate=config.lr,
        lr_scheduler_type="cosine_with_min_lr",  # for reports: FineTuner has its own
        warmup_steps=config.warm_up,
        weight_decay=config.weight_decay,
        adam_beta2=0.95,
        max_grad_norm=1.0,
        num_train_epochs=config.epochs,
        max_steps=config.steps or -1,
        max_length=None,  # nothing is cut
        packing=config.packing,
        bf16=config.bf16,
        gradient_checkpointing=config.check_pointing,
        save_strategy="steps",
        save_steps=config.save_every,
        save_total_limit=config.keep,
        logging_steps=config.log_every,
        logging_nan_inf_filter=False,
        include_num_input_tokens_seen="non_padding",
        report_to=config.report_to,
        seed=config.seed,
        data_seed=config.seed,
        disable_tqdm=True,
        remove_unused_columns=True,
        use_cpu=not torch.cuda.is_available(),
    )


def _trainer(
    model: Any, tokenizer: Any, config: FineTuning, options: SFTConfig, examples: Examples, *callbacks: TrainerCallback
) -> FineTuner:
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if config.packing:
        options.max_length = config.max_length or examples.longest  # of a pack
    if plans(model):
        callbacks = (*callbacks, Horizons(parse(config.horizon, seed=config.seed)))
    trainer = FineTuner(
        model, options, train_dataset=examples.kept, processing_class=tokenizer, callbacks=[*callbacks],
        inserted_lr=config.inserted_lr,
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    return trainer


def save_result(model: Any, tokenizer: Any, config: FineTuning, out: Path) -> None:
    """model/ where the base was trained; adapter/ with what was inserted, and what PEFT added, where it was not. It is
    there whole or not at all. All processes have to call this, and the first one writes."""
    folder = out / RESULTS[config.train]
    new, first = temporary(folder), is_first_process()
    try:
        with writing(folder):
            if config.train != "all" and config.adapter is not None:
                adapter.save(model, new)
            if config.train != "inserted":
                alone = config.train == "lora"  # and the embeddings, of which PEFT would ask, are as they were
                options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=alone)
                weights = get_model_state_dict(model, options=options)
                if first:
                    model.save_pretrained(new, state_dict=weights, **{"save_embedding_layers": False} if alone else {})
        if first:
            tokenizer.save_pretrained(new)
            put(new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
