"""Countdown by reward: SmolLM2-135M-Instruct, fine-tuned with TTC layers or without, then reinforced. README.md has the
questions.

    python -m experiments.countdown_grpo runs --base SmolLM2-135M-Instruct --work runs/countdown-grpo --lr 1e-5 \
        --out experiments/countdown_grpo/results
"""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from torch import nn

from experiments.math_small.__main__ import ADAPTER
from experiments.math_small.__main__ import LR as START_LR
from experiments.math_small.run import HORIZONS, OF_THE_TABLES, RunMaker
from experiments.math_small.tasks import DIFFICULTY, LIMITS, MAX_LENGTH, grade
from ttcnet import adapter
from ttcnet.command_options import usable
from ttcnet.environment import provenance
from ttcnet.errors import errors_as_sentences, fail
from ttcnet.evaluate import wilson
from ttcnet.models.loading import causal_lm
from ttcnet.nn import ttc_layers
from ttcnet.run_folder import SETTINGS
from ttcnet.storage.writing import write_json, write_lines
from ttcnet.tasks import countdown
from ttcnet.train.grpo.run import reinforce
from ttcnet.train.grpo.settings import Reinforcement
from ttcnet.train.run import LOG
from ttcnet.train.run import Run as TrainingRun
from ttcnet.train.settings import FineTuning

PROGRAM = "python -m experiments.countdown_grpo"
ARMS: dict[str, dict[str, Any] | None] = {"full": None, "ttc": ADAPTER}
START_INSERTED_LR = 3e-3
SEEDS, PILOT = (0, 1, 2), 10
RATES = (3e-6, 1e-5, 3e-5)
STEPS, PILOT_STEPS = 100, 40
EXAMPLES = 6400
POLICY: dict[str, Any] = dict(batch=64, samples=8, max_tokens=LIMITS["countdown"], held_out_every=20, device_batch=64)


class Made(NamedTuple):
    """A run: an arm, a seed, a rate, and how many steps."""

    arm: str
    seed: int
    lr: float
    steps: int


def runs(what: str, lr: float | None) -> dict[str, Made]:
    """Runs by their names. Runs of one seed follow each other, so that a session that ends early has complete pairs."""
    if what == "pilots":
        return {f"{arm}-{rate:g}": Made(arm, PILOT, rate, PILOT_STEPS) for rate in RATES for arm in ARMS}
    if lr is None:
        fail("lr", "must be given", "none", "Pass the rate that the pilots chose.", "missing")
    return {f"{arm}-{seed}": Made(arm, seed, lr, STEPS) for seed in SEEDS for arm in ARMS}


def main(
    what: Annotated[str, typer.Argument(help="pilots or runs.")],
    base: Annotated[Path, typer.Option(help="Folder of the base model.")],
    work: Annotated[Path, typer.Option(help="Folder for models and checkpoints.")],
    out: Annotated[Path, typer.Option(help="Folder for results.")],
    lr: Annotated[float | None, typer.Option(help="Learning rate of the reinforcement.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Runs; all if not given.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
) -> None:
    with errors_as_sentences():
        if what not in ("pilots", "runs"):
            fail("what", "must be pilots or runs", repr(what), "Name one of them.", "unknown-name")
        known = runs(what, lr)
        if unknown := sorted(set(only or ()) - set(known)):
            fail("only", f"must name runs among {', '.join(known)}", ", ".join(unknown), "Correct it.", "unknown-name")
        for name, made in known.items():
            if (not only or name in only) and not (out / what / name / "metrics.json").exists():
                make(made, base, work, out / what / name, usable(device))


def make(made: Made, base: Path, work: Path, out: Path, device: str) -> None:
    """Fine-tune, reinforce, evaluate. Existing results are not made again."""
    maker = RunMaker(
        "countdown", base, None, device, START_LR, None if ARMS[made.arm] is None else START_INSERTED_LR, 1.0
    )
    start = started(maker, made, work / f"start-{made.arm}-{made.seed}")
    files = {split: work / f"{split}.jsonl" for split in ("train", "test")}
    write_lines(files["train"], map(countdown.row, countdown.make(EXAMPLES, DIFFICULTY, seed=1, split="train")))
    write_lines(files["test"], maker.task.benchmarks[0].problems)
    config = Reinforcement(
        model=str(start), task=str(files["train"]), held_out=str(files["test"]),
        out=str(work / out.parent.name / out.name), held_out_examples=len(maker.task.benchmarks[0].problems),
        lr=made.lr, steps=made.steps, seed=made.seed, bf16=device != "cpu", **POLICY,
    )  # fmt: skip
    reinforce(config)
    run = Path(config.out)
    answers = {"start": asked(maker, start), "end": asked(maker, run / "model")}
    out.mkdir(parents=True, exist_ok=True)
    for name in (SETTINGS, LOG):
        shutil.copy(run / name, out / name)
    facts = {"run": out.name, "arm": made.arm, "seed": made.seed, "lr": made.lr, "steps": made.steps}
    write_json(out / "metrics.json", facts | {"accuracy": answers} | provenance(program=PROGRAM))


def started(maker: RunMaker, made: Made, folder: Path) -> Path:
    """The fine-tuned model, as experiments/math_small trains it."""
    inserted = ARMS[made.arm]
    config = FineTuning(
        model=maker.name, data=maker.task.data, out=folder.name, adapter=inserted, lr=maker.lr,
        inserted_lr=maker.inserted_lr, epochs=maker.epochs, max_length=MAX_LENGTH, seed=made.seed,
        bf16=maker.device.type == "cuda", check_pointing=False, compiled=maker.device.type == "cuda",
    )  # fmt: skip
    with TrainingRun(folder, config.to_dict(), results=["model"], program=PROGRAM) as opened:
        if opened.is_done:
            return folder / "model"
        torch.manual_seed(config.seed)
        model = copy.deepcopy(maker.base)
        if inserted is not None:
            adapter.insert(model, adapter.TTCAdapterConfig.from_dict(OF_THE_TABLES | inserted))
        maker.train_model(model, config, opened)
        with opened.result("model") as new:
            model.save_pretrained(new)
            maker.tokenizer.save_pretrained(new)
        opened.forget()
    return folder / "model"


def asked(maker: RunMaker, folder: Path) -> list[dict[str, Any]]:
    """Greedy accuracy of the model in a folder, at every horizon if it plans."""
    model = causal_lm(str(folder), torch.bfloat16 if maker.device.type == "cuda" else torch.float32).eval()
    nn.Module.to(model, maker.device)
    found = []
    for steps in HORIZONS if ttc_layers(model) else (None,):
        verdicts = grade("countdown", list(maker.answers(model, maker.task.benchmarks[0], steps)))
        low, high = wilson(sum(verdicts), len(verdicts))
        figures = {"right": sum(verdicts), "total": len(verdicts), "rate": sum(verdicts) / len(verdicts)}
        found.append({"horizon": steps} | figures | {"low": low, "high": high})
    return json.loads(json.dumps(found))


if __name__ == "__main__":
    typer.run(main)
