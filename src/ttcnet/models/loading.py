"""Language models and tokenizers from folders and from the Hub. Nothing in them is trusted: code that comes with them
runs only where the user has said so, and weights that are missing or left over are an error, where transformers would
make them up or leave them out.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, TemplateSyntaxError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig

from ttcnet.bounds import beyond
from ttcnet.errors import fail
from ttcnet.model_names import REMEDY, RULE, loading
from ttcnet.storage.reading import read_json

FILES = ("config.json", "generation_config.json", "tokenizer_config.json")
SHOWN = 3  # weights that a message names
NUMBERS = 10**8  # the most that those in a block of a chat template may come to, multiplied with each other


def check_files(name: str) -> None:
    """Check the files of a folder, because transformers ignores some damaged files; and a model's sizes, also on the
    Hub, because transformers would spend hours on some."""
    folder = Path(name)
    for file in FILES:
        if (folder / file).exists():
            read_json(folder / file, REMEDY)
    template = folder / "chat_template.jinja"
    if template.exists() and not template.is_file():
        fail("model", RULE, f"{name!r}, whose {template.name} is no file", REMEDY, "no-model")
    if not folder.is_dir() or (folder / "config.json").exists():
        with loading(name):
            content, _ = PreTrainedConfig.get_config_dict(name)
        if large := beyond(content):
            fail("model", RULE, f"{name!r}, whose config.json says {large}", "Fetch it from elsewhere.", "no-model")
        if content.get("return_dict") is False:
            value, remedy = f"{name!r}, whose config.json says return_dict = false", "Take that out of the file."
            fail("model", RULE, value, remedy, "no-model")


def tokenizer_of(name: str, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer in a folder, or of a name on the Hub."""
    check_files(name)
    with loading(name):
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
    check_template(name, tokenizer)
    return tokenizer


def check_template(name: str, tokenizer: Any) -> None:
    """Fail if a chat template computes with large numbers. transformers runs templates in a sandbox, which bounds
    range(), but not 'x' * 10**10."""
    found = getattr(tokenizer, "chat_template", None) or ""
    for template in found.values() if isinstance(found, dict) else [found]:
        if number := _large_number(template):
            value = f"{name!r}, whose chat template computes with {number}"
            fail("model", RULE, value, "Read the template: it may be meant to keep a machine busy.", "chat-template")


def _large_number(template: str) -> str | None:
    """A power, or a product of numbers above NUMBERS, in a block of a template; None if there is none."""
    product = 1
    with suppress(TemplateSyntaxError):  # transformers reports these
        for _, kind, text in Environment().lex(template):
            product = 1 if kind.endswith("_begin") else product
            if kind == "integer":
                product *= max(1, int(text, 0)) if len(text) < 100 else NUMBERS + 1
            if product > NUMBERS or (kind == "operator" and text == "**"):
                return f"numbers such as {text[:20]}" if kind == "integer" else "a power"
    return None


def causal_lm(name: str, dtype: torch.dtype, *, trust_remote_code: bool = False) -> Any:
    """The language model in a folder, or of a name on the Hub, with all of its weights."""
    check_files(name)
    with loading(name):
        return Whole.from_pretrained(name, dtype=dtype, trust_remote_code=trust_remote_code)


class Whole:
    """AutoModelForCausalLM, but a weight that is missing or left over is an error."""

    @staticmethod
    def from_pretrained(name: str, *, trust_remote_code: bool = False, **options: Any) -> Any:
        load: Any = AutoModelForCausalLM.from_pretrained  # with output_loading_info it returns two things
        model, report = load(name, trust_remote_code=trust_remote_code, output_loading_info=True, **options)
        check_weights(name, report["missing_keys"], report["unexpected_keys"])
        return model


def check_weights(name: str, missing: Iterable[str], extra: Iterable[str]) -> None:
    """Fail if a model's files lack weights, or have others than its config.json describes. `extra` is without the
    weights that transformers leaves out on purpose."""
    if missing := sorted(missing):
        value = f"{name!r}, which has no {named(missing)}"
        fail("model", RULE, value, "Its weights are not whole: fetch or save them again.", "no-model")
    if extra := sorted(extra):
        value = f"{name!r}, whose files hold {named(extra)}, for which its config.json has no place"
        fail("model", RULE, value, "Its files do not fit its config.json: fetch them again.", "no-model")


def named(weights: list[str]) -> str:
    """Some of them by name, and how many more there are."""
    more = f" and {len(weights) - SHOWN:,} more" if len(weights) > SHOWN else ""
    return f"{', '.join(weights[:SHOWN])}{more}"
