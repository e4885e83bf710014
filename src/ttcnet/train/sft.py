"""Fine-tuning on conversations: `ttcnet sft`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from datasets import Dataset
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import get_last_checkpoint
from trl.trainer.sft_config import SFTConfig

from ttcnet import adapter
from ttcnet.adapter import TTCAdapterConfig
from ttcnet.environment import commit, machine, versions
from ttcnet.errors import fail
from ttcnet.files import is_first_process
from ttcnet.nn.horizon import parse
from ttcnet.records import cut_log, rows, write_json

from .examples import Examples, prepare
from .fine_tuner import FineTuner, Horizons
from .settings import FineTuning

LORA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CONTENTS = "settings.json"


def fine_tune(config: FineTuning, model: Any = None, tokenizer: Any = None) -> Any:
    """Run to the end, or go on from the last checkpoint in `config.out`. The folder gets settings.json, log.jsonl,
    checkpoints, and at the end adapter/ (what was inserted, if the base is as it was) or model/ (all of it).

    Args:
        config: the run.
        model: instead of what `config.model` names.
        tokenizer: likewise.
    """
    out, console = Path(config.out), Console(stderr=True, quiet=not is_first_process())
    out.mkdir(parents=True, exist_ok=True)
    _check_settings(config, out)
    tokenizer = tokenizer or AutoTokenizer.from_pretrained(config.model)
    if model is None:
        with console.status(f"Loading {config.model} ..."):
            model = AutoModelForCausalLM.from_pretrained(config.model, dtype=torch.float32)
    limit = getattr(model.config, "max_position_embeddings", None)
    with console.status(f"Reading {config.data} ..."):
        examples = prepare(
            rows(config.data, config.split), tokenizer, max_length=config.max_length, system=config.system
        )
    console.print(examples.report, highlight=False)
    if limit is not None and config.max_length is None and examples.longest > limit:
        remedy = f"Pass max_length={limit}: longer rows are then left out, and counted."
        fail("max_length", f"must be given: the model takes {limit} tokens", f"a row of {examples.longest}", remedy)
    model = _insert(model, config)
    report = Report(out)
    trainer = _trainer(model, tokenizer, config, examples, report)
    last = get_last_checkpoint(str(out))
    if last is not None:
        console.print(f"Going on from {last}.", highlight=False)
    with report.progress:
        trainer.train(resume_from_checkpoint=last)
    _restore_horizon(trainer.model, config)
    save_result(trainer.model, config, out)
    if is_first_process():
        tokenizer.save_pretrained(out / "model" if config.train == "all" else out / "adapter")
    return trainer.model


def _check_settings(config: FineTuning, out: Path) -> None:
    """A folder holds one run: other settings are refused."""
    kept, now = out / CONTENTS, config.to_dict()
    if kept.exists():
        before = json.loads(kept.read_text())["settings"]
        changed = {name: (before.get(name), now[name]) for name in now if before.get(name) != now[name]}
        if changed:
            remedy = "Give the settings that it was started with, or choose another folder."
            fail("settings", f"must be those of the run in {out}", f"(then, now): {changed}", remedy)
    elif is_first_process():
        facts = {"machine": machine(), "versions": versions(), "commit": commit()}
        write_json(kept, {"settings": now} | facts)


def _insert(model: Any, config: FineTuning) -> Any:
    torch.manual_seed(config.seed)
    if config.adapter is not None:
        adapter.insert(model, TTCAdapterConfig.from_dict(config.adapter))
    if config.train == "lora":
        from peft import LoraConfig, get_peft_model

        lora = LoraConfig(r=config.lora_rank, lora_alpha=2 * config.lora_rank, target_modules=LORA_TARGETS)
        model = get_peft_model(model, lora)
    if config.adapter is not None and config.train != "all":
        adapter.freeze_base(model)
    return model


def _trainer(
    model: Any, tokenizer: Any, config: FineTuning, examples: Examples, *callbacks: TrainerCallback
) -> FineTuner:
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    inserted = TTCAdapterConfig.from_dict(config.adapter) if config.adapter is not None else None
    if config.packing and inserted is not None and inserted.remembers:
        remedy = "Pass packing=false."
        fail("packing", f"must be off with {inserted.insert}, which carries its memory across rows", True, remedy)
    world = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
    if config.batch % (config.device_batch * world):
        rule = f"must be a multiple of device_batch {config.device_batch} times {world} processes"
        fail("batch", rule, config.batch, "Pass a multiple.")
    longest = max(len(example.input_ids) for example in examples.kept)
    options = SFTConfig(
        output_dir=config.out,
        per_device_train_batch_size=config.device_batch,
        gradient_accumulation_steps=config.batch // (config.device_batch * world),
        learning_rate=config.lr,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.1},
        warmup_steps=config.warm_up,
        weight_decay=config.weight_decay,
        adam_beta2=0.95,
        max_grad_norm=1.0,
        num_train_epochs=config.epochs,
        max_steps=config.steps or -1,
        max_length=(config.max_length or longest) if config.packing else None,  # of a pack; nothing is cut
        packing=config.packing,
        bf16=config.bf16,
        gradient_checkpointing=config.check_pointing,
        torch_compile=config.compiled,
        save_strategy="steps",
        save_steps=config.save_every,
        save_total_limit=config.keep,
        logging_steps=config.log_every,
        report_to=config.report_to,
        seed=config.seed,
        data_seed=config.seed,
        disable_tqdm=True,
        remove_unused_columns=True,
        use_cpu=not torch.cuda.is_available(),
    )
    data = Dataset.from_list([example._asdict() for example in examples.kept])
    if inserted is not None and inserted.insert == "ttc":
        callbacks = (*callbacks, Horizons(parse(config.horizon, seed=config.seed)))
    trainer = FineTuner(model, options, train_dataset=data, processing_class=tokenizer, callbacks=[*callbacks])
    trainer.remove_callback(PrinterCallback)
    return trainer


def _restore_horizon(model: Any, config: FineTuning) -> None:
    """The horizon of the configuration again, not of the last step."""
    if config.adapter is not None and TTCAdapterConfig.from_dict(config.adapter).insert == "ttc":
        adapter.set_horizon(model, TTCAdapterConfig.from_dict(config.adapter).horizon)


def save_result(model: Any, config: FineTuning, out: Path) -> None:
    """model/ where the base was trained; adapter/ with what was inserted, and what PEFT added, where it was not."""
    if config.train == "all":
        weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if is_first_process():
            model.save_pretrained(out / "model", state_dict=weights)
        return
    if config.adapter is not None:
        adapter.save(model, out / "adapter")
    if config.train == "lora" and is_first_process():
        model.save_pretrained(out / "adapter")


class Report(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """A progress bar with loss, tokens a second and the time left; log.jsonl in the folder of the run."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log.jsonl"
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=Console(stderr=True), disable=not is_first_process())
        self.task = self.progress.add_task("fine-tuning", total=None)
        self.then, self.tokens = time.monotonic(), 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # type: ignore[override, unused-ignore]
        if is_first_process():
            cut_log(self.log, state.global_step)
        self.progress.update(self.task, total=state.max_steps, completed=state.global_step)
        self.then = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # type: ignore[override, unused-ignore]
        self.progress.update(self.task, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:  # type: ignore[override, unused-ignore]
        if not is_first_process() or not logs or "loss" not in logs:
            return
        seconds, tokens = time.monotonic() - self.then, logs.get("num_tokens", 0.0) - self.tokens
        self.then, self.tokens = time.monotonic(), logs.get("num_tokens", 0.0)
        speed = tokens / max(seconds, 1e-9)
        self.progress.update(self.task, description=f"loss {float(logs['loss']):.3f}, {speed:,.0f} tokens/s")
        kept = {"step": state.global_step, "loss": float(logs["loss"]), "lr": float(logs["learning_rate"])}
        kept |= {"tokens": logs.get("num_tokens"), "tokens_per_second": speed}
        with self.log.open("a") as file:
            file.write(json.dumps(kept) + "\n")
