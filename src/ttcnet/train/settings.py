"""What a fine-tuning run is made of: a configuration that a TOML file or the command line fills in."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from ttcnet.errors import fail
from ttcnet.nn.horizon import parse
from ttcnet.nn.options import check_insert, parse_interleave

TRAINED = ("inserted", "all", "lora")
WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "a table"}


@dataclass(frozen=True)
class FineTuning:
    """A run. The defaults are the paper's.

    Args:
        model: a folder or a name of the Hub.
        data: JSON Lines file, or a dataset of the Hub; see `ttcnet.train.examples`.
        out: folder of the run.
        split: of a dataset of the Hub.
        system: a system prompt for every row that has none.
        adapter: fields of `ttcnet.adapter.TTCAdapterConfig`; None inserts nothing (plain fine-tuning).
        train: "inserted" trains the inserted layers alone, "all" the base too, "lora" adds PEFT's LoRA to the base.
        lora_rank: of LoRA.
        horizon: a sampler of horizons, one draw a step; see `ttcnet.nn.horizon`. For TTC layers.
        lr: the highest learning rate. It rises over `warm_up` of the steps and falls by a cosine to a tenth.
        inserted_lr: that of the inserted layers, which start from nothing and may have to learn faster; None: `lr`.
        batch: examples (or packs) in a step, over all devices; `device_batch` of them at a time on each.
        epochs: passes over the data; `steps`, where given, counts instead.
        max_length: rows of more tokens are left out; None: a row that the model cannot take is an error. Also the size
            of a pack.
        packing: several rows in a sequence, which do not see each other.
        bf16: compute in bfloat16, weights in float32.
        check_pointing: recompute activations in the backward pass, to save memory.
        compiled: torch.compile.
        save_every: steps between checkpoints, of which the last `keep` are kept.
        report_to: where transformers reports to: none, tensorboard, wandb, ...
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
    check_pointing: bool = True
    compiled: bool = False
    save_every: int = 500
    keep: int = 2
    log_every: int = 10
    report_to: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            kinds = [get_origin(kind) or kind for kind in get_args(hint) if get_origin(hint) is UnionType] or [hint]
            value = getattr(self, name)
            if not any(_is(value, kind) for kind in kinds):
                rule = f"must be {WORDS[kinds[0]]}{' or none' * (NoneType in kinds)}"
                fail(name, rule, repr(value), "Correct it, or leave it out for its default.", "type")
        for name in ("model", "data", "out"):
            if not getattr(self, name):
                remedy = "Name it in the file or on the command line."
                fail(name, "must be given", repr(getattr(self, name)), remedy, "missing")
        for name in ("batch", "device_batch", "save_every", "keep", "log_every", "lora_rank", "steps", "max_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                fail(name, "must be 1 or more", value, "Pass a larger number.", "too-small")
        for name in ("lr", "inserted_lr", "epochs"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                fail(name, "must be above 0 and finite", getattr(self, name), "Pass such a number.", "out-of-range")
        for name in ("weight_decay", "seed"):
            if not 0 <= getattr(self, name) < math.inf:
                fail(name, "must be 0 or more and finite", getattr(self, name), "Pass such a number.", "out-of-range")
        if not 0 <= self.warm_up < 1:
            remedy = "Pass the share of the steps, such as 0.1."
            fail("warm_up", "must lie in [0, 1)", self.warm_up, remedy, "out-of-range")
        if self.train not in TRAINED:
            fail("train", f"must be one of {', '.join(TRAINED)}", repr(self.train), "Use one of those.", "unknown-name")
        given = self.adapter or {}
        if "insert" in given:
            check_insert(given["insert"])
        if "every" in given:
            parse_interleave("every", given["every"])
        parse(self.horizon)
        if self.inserted_lr is not None and self.adapter is None:
            remedy = "Leave it out, or pass an adapter."
            fail("inserted_lr", "must not be given where nothing is inserted", self.inserted_lr, remedy, "conflict")
        if self.train == "inserted" and self.adapter is None:
            remedy = 'Pass train="all", or an adapter.'
            fail("train", "must not be 'inserted' where nothing is inserted", self.train, remedy, "conflict")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _is(value: Any, kind: type) -> bool:
    """Whole numbers are numbers too; true and false are none."""
    return isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))


def values_of(path: Path, variants: Sequence[str] = ()) -> dict[str, Any]:
    """What a TOML file says. Its table `variant` holds settings by name; those of `variants` go before the rest, the
    last one first of all. {variant} in `out` becomes their names."""
    if not path.is_file():
        remedy = "Name a TOML file; the documentation says how to write one."
        fail("settings", "must be a file", f"{str(path)!r}, which is none", remedy, "not-found")
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        fail(str(path), "must be TOML", error, "Correct the file.", "format")
    known = values.pop("variant", {})
    if not isinstance(known, dict) or not all(isinstance(table, dict) for table in known.values()):
        fail(f"{path}: variant", "must be a table of tables", repr(known), "Correct the file.", "format")
    for name in variants:
        if name not in known:
            rule = f"must be one of {', '.join(known)}" if known else "must not be given: the file has no variants"
            fail("variant", rule, repr(name), "Name one of the file's, or leave it out.", "unknown-name")
        chosen = dict(known[name])
        if isinstance(values.get("adapter"), dict) and isinstance(chosen.get("adapter"), dict):
            chosen["adapter"] = values["adapter"] | chosen["adapter"]
        values |= chosen
    if isinstance(values.get("out"), str) and "{variant}" in values["out"]:
        if not variants:
            remedy = "Choose with --variant, once for each that you want."
            fail("variant", f"must be given: one or more of {', '.join(known)}", "none", remedy, "missing")
        values["out"] = values["out"].replace("{variant}", "-".join(variants))
    return values


def settings(values: dict[str, Any], source: str = "settings") -> FineTuning:
    """A run from its fields, which `source` gave. Unknown fields are an error; adapter = "none" inserts nothing."""
    known = [item.name for item in fields(FineTuning)]
    if extra := sorted(set(values) - set(known)):
        remedy = "Correct or remove them."
        fail(source, f"must hold fields among {', '.join(known)}", ", ".join(extra), remedy, "unknown-field")
    if values.get("adapter") == "none":  # TOML has no word for nothing
        values = values | {"adapter": None}
    if missing := [name for name in ("model", "data", "out") if name not in values]:
        remedy = "Name them, here or as options."
        fail(source, "must name model, data and out", f"no {', '.join(missing)}", remedy, "missing")
    return FineTuning(**values)
