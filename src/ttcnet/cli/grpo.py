"""ttcnet grpo: imports happen inside, to keep --help instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ttcnet.command_options import Trust, given
from ttcnet.train.grpo.settings import Reinforcement

KEYS = (
    "In a TOML file every setting has the name of its option, with _ for -. Those without an option are data, "
    "held_out_examples = 200, held_out_every = 20, system, rewards = { right = 1.0 }, updates = 1, scale = true, "
    "clip = 0.2, clip_high (clip if not given), lora_rank = 16, sampling_horizon (horizon if not given), inserted_lr, "
    "warm_up = 0.0, weight_decay = 0.0, tokens_at_once = 131072, bf16 = true, check_pointing = false, save_every = 20, "
    "keep = 2, log_every = 1 and report_to = none. A table \\[variant.NAME] holds settings that --variant NAME puts "
    "before the rest."
)


def grpo(
    context: typer.Context,
    settings: Annotated[
        Path | None, typer.Argument(help="TOML file with the settings of the run; options override them.")
    ] = None,
    variant: Annotated[
        list[str] | None, typer.Option(help="Apply the file's variant of this name; may be given several times.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Folder or name of the Hub of the model to start from.")] = None,
    adapter: Annotated[str | None, typer.Option(help="Folder of an adapter for the model.")] = None,
    task: Annotated[
        str | None, typer.Option(help="JSON Lines file, Python file with a task, or name of a task to learn.")
    ] = None,
    held_out: Annotated[str | None, typer.Option(help="Examples to measure on, not to train on, as --task.")] = None,
    out: Annotated[
        str | None, typer.Option(help="Folder of the run. An existing run is resumed; more --steps extend it.")
    ] = None,
    train: Annotated[str, typer.Option(help="inserted, all or lora.")] = Reinforcement.train,
    batch: Annotated[int, typer.Option(help="Examples per step, over all devices.")] = Reinforcement.batch,
    samples: Annotated[int, typer.Option(help="Answers to each example, a group.")] = Reinforcement.samples,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = Reinforcement.max_tokens,
    temperature: Annotated[float, typer.Option(help="Temperature of sampling.")] = Reinforcement.temperature,
    beta: Annotated[
        float, typer.Option(help="Weight of the divergence from the model at the start.")
    ] = Reinforcement.beta,
    horizon: Annotated[
        str, typer.Option(help="Sampler of the horizon of each step: pln:8,0.1,32, uniform:1,32 or fixed:8.")
    ] = Reinforcement.horizon,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = Reinforcement.lr,
    steps: Annotated[int, typer.Option(help="Updates of the weights.")] = Reinforcement.steps,
    device_batch: Annotated[
        int, typer.Option(help="Samples that a device computes at a time in an update.")
    ] = Reinforcement.device_batch,
    seed: Annotated[int, typer.Option(help="Seed of samples, order and horizons.")] = Reinforcement.seed,
    trust_remote_code: Trust = False,
) -> None:
    """Reinforcement learning by GRPO: a model learns from the grades of its own answers to a task. Killed runs resume
    from their last checkpoint when the command is given again. On several GPUs: accelerate launch
    --multi_gpu -m ttcnet.cli grpo ..."""
    from ttcnet.errors import errors_as_sentences
    from ttcnet.extras import require
    from ttcnet.model_names import check_model
    from ttcnet.settings import from_table, read_with
    from ttcnet.terminal.console import say, tell

    with errors_as_sentences():
        values = read_with(settings, given(context, ("settings", "trust_remote_code")))
        config = from_table(Reinforcement, values, str(settings or "the command line"))
        check_model(config.model, config.adapter)
        tell("Starting transformers ...")
        for package in ("peft", "transformers"):
            require(package, "sft", "ttcnet grpo")
        from ttcnet.machine.processes import is_first_process
        from ttcnet.train.grpo.run import reinforce
        from ttcnet.train.sft import RESULTS

        reinforce(config, trust_remote_code=trust_remote_code)
    if is_first_process():
        kind = RESULTS[config.train]
        say(f"Done. The {kind} is in {Path(config.out) / kind}.")
