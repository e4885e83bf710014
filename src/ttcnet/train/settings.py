"""Settings of a fine-tuning run, from a TOML file or the command line."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_type_hints

from ttcnet.bounds import check_count, check_rates, check_seed
from ttcnet.errors import fail
from ttcnet.nn.horizon import parse
from ttcnet.nn.options import check_insert, parse_interleave
from ttcnet.settings import check_type

if TYPE_CHECKING:
    from ttcnet.adapter import TTCAdapterConfig

TRAINED = ("inserted", "all", "lora")
WEIGHTS = ("float32", "bfloat16")


@dataclass(frozen=True)
class FineTuning:
    """Settings of a fine-tuning run. The defaults are the paper's.

    Args:
        model: a folder or a name of the Hub.
        data: a JSON Lines file or a dataset of the Hub; see `ttcnet.tasks.chat`.
        out: the folder of the run.
        split: the split of a dataset of the Hub.
        system: the system prompt of rows that have none.
        adapter: fields of `ttcnet.adapter.TTCAdapterConfig`; None inserts nothing (plain fine-tuning).
        train: "inserted" trains the inserted layers alone, "all" the base model too, "lora" adds PEFT's LoRA to the
            base model.
        lora_rank: the rank of LoRA.
        horizon: a sampler of horizons for TTC layers, drawn once per step; see `ttcnet.nn.horizon`.
        lr: the highest learning rate. It rises over the share `warm_up` of the steps and falls by a cosine to a tenth.
        inserted_lr: the highest learning rate of the inserted layers, whose output starts at zero; None is `lr`.
        batch: examples (or packs) per step, over all devices; each device computes `device_batch` of them at a time.
        epochs: passes over the data. `steps` replaces it, if given.
        max_length: rows of more tokens are left out; it is also the size of a pack. None: a row that is too long for
            the model is an error.
        packing: put several rows into one sequence; they do not see each other.
        bf16: compute in bfloat16.
        weights: the dtype of the base model's weights: "float32", or "bfloat16", which takes half of the memory and
            drops updates of less than 1/256 of a weight. Inserted layers and LoRA are in float32.
        sharded: if several processes train, each holds a piece of every weight, gradient and state of the optimizer
            (FSDP2); otherwise each holds all.
        check_pointing: recompute activations in the backward pass, to save memory.
        compiled: use torch.compile.
        save_every: steps between checkpoints. The last `keep` of them are kept.
        report_to: where lines of the log are sent as well: none, tensorboard, wandb, ...; see `ttcnet.train.trackers`.
    """

    model: str
    data: str
    out: str
    split: str = "train"
    system: str | None = None
    adapter: dict[str, Any] | None = field(default_factory=dict)
    train: str = "all"
    lora_rank: int = 16
    horizon: str = "pln:8,0.1,32"
    lr: float = 2e-5
    inserted_lr: float | None = None
    warm_up: float = 0.1
    weight_decay: float = 0.1
    batch: int = 96
    device_batch: int = 1
    epochs: float = 1
    steps: int | None = None
    max_length: int | None = None
    packing: bool = False
    bf16: bool = True
    weights: str = "float32"
    sharded: bool = False
    check_pointing: bool = True
    compiled: bool = False
    save_every: int = 500
    keep: int = 2
    log_every: int = 10
    report_to: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            check_type(hint, getattr(self, name), name)
        for name in ("model", "data", "out"):
            if not getattr(self, name):
                remedy = "Name it in the file or on the command line."
                fail(name, "must be given", repr(getattr(self, name)), remedy, "missing")
        for name in ("batch", "device_batch", "save_every", "keep", "log_every", "lora_rank", "steps", "max_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                fail(name, "must be 1 or more", value, "Pass a larger number.", "too-small")
            check_count(name, value)
        if not 0 < self.epochs < math.inf:
            fail("epochs", "must be above 0 and finite", self.epochs, "Pass such a number.", "out-of-range")
        check_count("epochs", self.epochs)
        check_rates(self, "lr", "inserted_lr")
        check_out(self.out, self.model)
        check_seed(self.seed)
        if not 0 <= self.warm_up < 1:
            remedy = "Pass the share of the steps, such as 0.1."
            fail("warm_up", "must lie in [0, 1)", self.warm_up, remedy, "out-of-range")
        if self.train not in TRAINED:
            fail("train", f"must be one of {', '.join(TRAINED)}", repr(self.train), "Use one of those.", "unknown-name")
        if self.weights not in WEIGHTS:
            fail(
                "weights",
                f"must be one of {', '.join(WEIGHTS)}",
                repr(self.weights),
                "Use one of those.",
                "unknown-name",
            )
        if self.weights == "bfloat16" and not self.bf16:
            remedy = "Pass bf16=True, or weights='float32'."
            fail("weights", "must be float32 without bf16", self.weights, remedy, "conflict")
        given = self.adapter or {}
        if "insert" in given:
            check_insert(given["insert"])
        if "every" in given:
            parse_interleave("every", given["every"])
        parse(self.horizon)
        if self.inserted_lr is not None and self.adapter is None:
            remedy = "Leave it out, or pass an adapter."
            fail("inserted_lr", "must not be given without inserted layers", self.inserted_lr, remedy, "conflict")
        if self.train == "inserted" and self.adapter is None:
            remedy = 'Pass train="all", or an adapter.'
            fail("train", "must not be 'inserted' without inserted layers", self.train, remedy, "conflict")

    @cached_property
    def inserted(self) -> TTCAdapterConfig | None:
        """The layers to insert; None for plain fine-tuning."""
        from ttcnet.adapter.config import TTCAdapterConfig  # late, since it takes seconds

        return None if self.adapter is None else TTCAdapterConfig.from_dict(self.adapter)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_out(out: str, *inputs: str | None) -> None:
    """Fail if a run would write into a folder that it reads."""
    if any(each is not None and os.path.realpath(each) == os.path.realpath(out) for each in inputs):
        fail("out", "must be another folder than the model's", repr(out), "Name a new folder.", "conflict")
