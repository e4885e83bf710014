"""Language models and tokenizers from folders and from the Hub, of which nothing is trusted: code that comes with them
runs only where the user has said so, and weights that are missing are an error, where transformers would make them up.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ttcnet.errors import fail
from ttcnet.model_names import REMEDY, RULE, loading
from ttcnet.reading import read_json

FILES = ("config.json", "generation_config.json", "tokenizer_config.json")
SHOWN = 3  # weights that a message names


def check_files(name: str) -> None:
    """Check the files of a folder, because transformers ignores some damaged files."""
    folder = Path(name)
    for file in FILES:
        if (folder / file).exists():
            read_json(folder / file, REMEDY)
    template = folder / "chat_template.jinja"
    if template.exists() and not template.is_file():
        fail("model", RULE, f"{name!r}, whose {template.name} is no file", REMEDY, "no-model")


def tokenizer_of(name: str, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer in a folder, or of a name on the Hub."""
    check_files(name)
    with loading(name):
        return AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)


def causal_lm(name: str, dtype: torch.dtype, *, trust_remote_code: bool = False) -> Any:
    """The language model in a folder, or of a name on the Hub, with all of its weights."""
    check_files(name)
    with loading(name):
        return Whole.from_pretrained(name, dtype=dtype, trust_remote_code=trust_remote_code)


class Whole:
    """AutoModelForCausalLM, but a missing weight is an error."""

    @staticmethod
    def from_pretrained(name: str, *, trust_remote_code: bool = False, **options: Any) -> Any:
        load: Any = AutoModelForCausalLM.from_pretrained  # with output_loading_info it returns two things
        model, report = load(name, trust_remote_code=trust_remote_code, output_loading_info=True, **options)
        check_missing(name, report["missing_keys"])
        return model


def check_missing(name: str, missing: Iterable[str]) -> None:
    """Fail if a model's files lack weights."""
    if missing := sorted(missing):
        more = f" and {len(missing) - SHOWN:,} more" if len(missing) > SHOWN else ""
        value = f"{name!r}, which has no {', '.join(missing[:SHOWN])}{more}"
        fail("model", RULE, value, "Its weights are not whole: fetch or save them again.", "no-model")
