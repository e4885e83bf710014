"""ttcnet sft: imports happen inside, to keep --help instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ttcnet.command_options import Trust, given
from ttcnet.train.settings import FineTuning

EVERY, HEADS, INSERT = "8", 16, "ttc"  # defaults of TTCAdapterConfig, which takes seconds to import
OF_DRY_RUN = ("gpus", "gpu", "gpu_memory", "efficiency")
KEYS = (
    "In a TOML file every setting has the name of its option, with _ for -; but insert, every and heads stand in a "
    "table named adapter, beside state_size = 16, action_size (state_size if not given), rank = 16, horizon = 8, "
    "time_homogeneous = false, dropout = 0.0, zero_init = true, action_gain = 1.0 and context = token. "
    "adapter = 'none' is --insert none. A table \\[variant.NAME] holds settings that --variant NAME puts before the "
    "rest."
)


def sft(
    context: typer.Context,
    settings: Annotated[
        Path | None, typer.Argument(help="TOML file with the settings of the run; options override them.")
    ] = None,
    variant: Annotated[
        list[str] | None, typer.Option(help="Apply the file's variant of this name; may be given several times.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Folder or name of the Hub.")] = None,
    data: Annotated[str | None, typer.Option(help="JSON Lines file, plain or gzip, or owner/name of the Hub.")] = None,
    out: Annotated[
        str | None,
        typer.Option(help="Folder of the run. An existing run is resumed; more --steps or --epochs extend it."),
    ] = None,
    split: Annotated[str, typer.Option(help="Split of a dataset of the Hub.")] = FineTuning.split,
    system: Annotated[str | None, typer.Option(help="System prompt of rows that have none; no prompt if none.")] = None,
    insert: Annotated[str, typer.Option(help="ttc, a mixer in its place, or none for plain fine-tuning.")] = INSERT,
    every: Annotated[str, typer.Option(help="Insert into the last of every so many layers: 8, or 16:2.")] = EVERY,
    heads: Annotated[int, typer.Option(min=1, help="Heads of the inserted layers.")] = HEADS,
    train: Annotated[str, typer.Option(help="inserted, all or lora.")] = FineTuning.train,
    lora_rank: Annotated[int, typer.Option(help="Rank of LoRA.")] = FineTuning.lora_rank,
    horizon: Annotated[
        str, typer.Option(help="Sampler of the horizon of each step: pln:8,0.1,32, uniform:1,32 or fixed:8.")
    ] = FineTuning.horizon,
    lr: Annotated[float, typer.Option(help="Highest learning rate; it ends at a tenth.")] = FineTuning.lr,
    inserted_lr: Annotated[
        float | None, typer.Option(help="Highest learning rate of inserted layers; --lr if none.")
    ] = None,
    warm_up: Annotated[
        float, typer.Option(help="Share of the steps in which the learning rate rises.")
    ] = FineTuning.warm_up,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of AdamW.")] = FineTuning.weight_decay,
    batch: Annotated[int, typer.Option(help="Examples per step, over all devices.")] = FineTuning.batch,
    device_batch: Annotated[
        int, typer.Option(help="Examples that a device computes at a time.")
    ] = FineTuning.device_batch,
    epochs: Annotated[float, typer.Option(help="Passes over the data.")] = FineTuning.epochs,
    steps: Annotated[int | None, typer.Option(help="Steps, instead of epochs; those of the epochs if none.")] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Leave out rows of more tokens, and count them; if none, a long row is an error.")
    ] = None,
    packing: Annotated[
        bool, typer.Option(help="Put several rows into a sequence; they do not see each other.")
    ] = FineTuning.packing,
    bf16: Annotated[bool, typer.Option(help="Compute in bfloat16.")] = FineTuning.bf16,
    weights: Annotated[str, typer.Option(help="Weights of the base: float32 or bfloat16.")] = FineTuning.weights,
    sharded: Annotated[
        bool, typer.Option(help="Spread weights, gradients and the optimizer over the processes, by FSDP2.")
    ] = FineTuning.sharded,
    check_pointing: Annotated[
        bool, typer.Option(help="Recompute activations, to save memory.")
    ] = FineTuning.check_pointing,
    compiled: Annotated[bool, typer.Option(help="Use torch.compile.")] = FineTuning.compiled,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = FineTuning.save_every,
    keep: Annotated[int, typer.Option(help="Checkpoints to keep, the last ones.")] = FineTuning.keep,
    log_every: Annotated[int, typer.Option(help="Steps between lines of the log.")] = FineTuning.log_every,
    report_to: Annotated[str, typer.Option(help="none, tensorboard, wandb, ...")] = FineTuning.report_to,
    seed: Annotated[int, typer.Option(help="Seed of weights, order and horizons.")] = FineTuning.seed,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Train nothing: print the memory of a GPU and the time that a run needs.")
    ] = False,
    gpus: Annotated[int, typer.Option(help="Of a dry run: how many GPUs.")] = 1,
    gpu: Annotated[
        str | None, typer.Option(help="Of a dry run: A100, H100, H200 or B200; the one that is here, else H100.")
    ] = None,
    gpu_memory: Annotated[float | None, typer.Option(help="Of a dry run: GB of each GPU.")] = None,
    efficiency: Annotated[
        float, typer.Option(help="Of a dry run: the share of the GPU's flop that matrix products reach.")
    ] = 0.65,
    trust_remote_code: Trust = False,
) -> None:
    """Fine-tune a language model, with TTC layers inserted. Killed runs resume from their last checkpoint when
    the command is given again; SIGTERM makes one first. On several GPUs: torchrun --nproc-per-node 8 -m
    ttcnet.cli sft ..."""
    from ttcnet.errors import errors_as_sentences, fail
    from ttcnet.extras import require
    from ttcnet.model_names import check_model
    from ttcnet.settings import from_table
    from ttcnet.storage.reading import is_file, rows
    from ttcnet.terminal.console import say, tell

    with errors_as_sentences():
        values = _values(settings, given(context, ("settings", "trust_remote_code", "dry_run", *OF_DRY_RUN)))
        config = from_table(FineTuning, values, str(settings or "the command line"))
        check_model(config.model)
        imagined = given(context, [name for name in context.params if name not in OF_DRY_RUN])
        if imagined and not dry_run:
            fail(next(iter(imagined)), "is an option of a dry run", "a run", "Pass --dry-run.", "conflict")
        if dry_run:
            tell("Starting transformers ...")
            for package in ("peft", "transformers"):
                require(package, "sft", "ttcnet sft --dry-run")
            from ttcnet.train.dry_run import dry_run as estimate

            for line in estimate(config, **imagined, trust_remote_code=trust_remote_code).lines():
                say(line)
            return
        if is_file(config.data) and next(rows(config.data), None) is None:
            fail("data", "must have at least one row", f"none in {config.data}", "Check the file.", "no-data")
        tell("Starting transformers ...")
        for package in ("datasets", "peft", "transformers"):
            require(package, "sft", "ttcnet sft")
        from ttcnet.machine.processes import is_first_process, leave_job
        from ttcnet.train.sft import RESULTS, fine_tune

        fine_tune(config, trust_remote_code=trust_remote_code)
        leave_job()
    if is_first_process():
        kind = RESULTS[config.train]
        say(f"Done. The {kind} is in {Path(config.out) / kind}.")


def _values(file: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    """The settings of the file, overridden by the options."""
    from ttcnet.nn.options import parse_interleave
    from ttcnet.settings import read_with

    inserted = {name: options.pop(name) for name in ("insert", "every", "heads") if name in options}
    values = read_with(file, options)
    if inserted.get("insert") == "none":
        return values | {"adapter": "none"}
    if "every" in inserted and ":" not in inserted["every"]:  # the form that a file has
        inserted["every"], _ = parse_interleave("every", inserted["every"])
    before = {} if values.get("adapter", "none") == "none" else values["adapter"]
    if inserted and isinstance(before, dict):
        values["adapter"] = before | inserted
    return values
