"""ttcnet sft: imports happen inside, to keep --help instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ttcnet.options import Trust


def sft(
    settings: Annotated[
        Path | None, typer.Argument(help="TOML file with the settings of the run; options go before what it says.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Folder or name of the Hub.")] = None,
    data: Annotated[str | None, typer.Option(help="JSON Lines file, plain or gzip, or owner/name of the Hub.")] = None,
    out: Annotated[str | None, typer.Option(help="Folder of the run. A run that is there already goes on.")] = None,
    insert: Annotated[
        str | None, typer.Option(help="ttc, a mixer in its place, or none for plain fine-tuning; ttc if not given.")
    ] = None,
    every: Annotated[str | None, typer.Option(help="Insert into the last of every so many layers: 8, or 16:2.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Heads of what is inserted.")] = None,
    train: Annotated[str | None, typer.Option(help="inserted, all or lora.")] = None,
    horizon: Annotated[
        str | None, typer.Option(help="Drawn every step: pln:8,0.1,32, uniform:1,32 or fixed:8.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Highest learning rate.")] = None,
    inserted_lr: Annotated[float | None, typer.Option(help="That of what is inserted, if it is another.")] = None,
    batch: Annotated[int | None, typer.Option(help="Examples in a step, over all devices.")] = None,
    device_batch: Annotated[int | None, typer.Option(help="Examples at a time on a device.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps, instead of epochs.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Leave out rows of more tokens, and count them.")] = None,
    packing: Annotated[bool | None, typer.Option(help="Several rows in a sequence, blind to each other.")] = None,
    bf16: Annotated[bool | None, typer.Option(help="Compute in bfloat16.")] = None,
    check_pointing: Annotated[bool | None, typer.Option(help="Recompute activations, to save memory.")] = None,
    compiled: Annotated[bool | None, typer.Option(help="torch.compile.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    save_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.")] = None,
    report_to: Annotated[str | None, typer.Option(help="none, tensorboard, wandb, ...")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order and horizons.")] = None,
    trust_remote_code: Trust = False,
) -> None:
    """Fine-tune a language model, with TTC layers inserted. Killed runs continue from their last checkpoint when the
    command is given again. On several GPUs: accelerate launch -m ttcnet.cli sft ..."""
    from ttcnet.console import say, tell
    from ttcnet.errors import complaints, fail, whole_number
    from ttcnet.extras import require
    from ttcnet.names import check_model
    from ttcnet.records import is_file, rows

    from .settings import settings as made
    from .settings import values_of

    with complaints():
        values: dict[str, Any] = {} if settings is None else values_of(settings)
        options = dict(
            model=model, data=data, out=out, train=train, horizon=horizon, lr=lr, inserted_lr=inserted_lr,
            batch=batch, device_batch=device_batch, epochs=epochs, steps=steps, max_length=max_length,
            packing=packing, bf16=bf16, check_pointing=check_pointing, compiled=compiled, system=system,
            save_every=save_every, report_to=report_to, seed=seed,
        )  # fmt: skip
        values |= {name: value for name, value in options.items() if value is not None}
        if insert == "none":
            values["adapter"] = "none"
        else:
            number = None if every is None else whole_number(every)  # as a file says it
            changes = dict(insert=insert, every=every if number is None else number, heads=heads)
            given = {name: value for name, value in changes.items() if value is not None}
            before = {} if values.get("adapter", "none") == "none" else values["adapter"]
            if given and isinstance(before, dict):
                values["adapter"] = before | given
        config = made(values, str(settings or "the command line"))
        check_model(config.model)
        if is_file(config.data) and next(rows(config.data), None) is None:
            fail("data", "must have at least one row", f"none in {config.data}", "Check the file.")
        tell("Starting transformers and TRL ...")
        for package in ("trl", "datasets", "transformers"):
            require(package, "sft", "ttcnet sft")
        from ttcnet.files import is_first_process

        from .sft import RESULTS, fine_tune

        fine_tune(config, trust_remote_code=trust_remote_code)
    if is_first_process():
        kind = RESULTS[config.train]
        say(f"Done. The {kind} is in {Path(config.out) / kind}.")
