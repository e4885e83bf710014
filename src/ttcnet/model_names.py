"""Names of models that a user gives: a file, a folder, or a name of the Hub. Imports nothing heavy, so that a wrong
path is reported at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import TTCNetError, fail
from .storage.reading import is_path
from .storage.special import check_regular_files

ADAPTER, PEFT = "ttc_adapter.safetensors", "adapter_config.json"  # files in the folder of an adapter
WEIGHTS = "adapter_model.safetensors"  # beside the latter
TOKENIZERS = ("token*", "vocab*", "*.model", "tekken.json")  # one of these is in the folder of every tokenizer
RULE = "must be a folder with a model and its tokenizer, or a name of the Hub"
REMEDY = "Check the name and the files."
LONGEST = 1000  # characters of another library's message that are passed on


def check_model(model: str, adapter: str | os.PathLike[str] | None = None) -> None:
    """Fail if a path leads to no model with its tokenizer, or to no adapter. Names of the Hub are looked up when they
    are loaded."""
    _check_folder(model)
    _check_tokenizer(model)
    if adapter is not None:
        check_regular_files("adapter", adapter)
    if adapter is not None and not any((Path(adapter) / file).is_file() for file in (ADAPTER, PEFT)):
        value, remedy = repr(str(adapter)), "Pass the folder that `ttcnet sft` or ttcnet.adapter.save has written."
        if (Path(adapter) / "config.json").is_file():
            value, remedy = f"{value}, a whole model", "Pass it as --model, and no --adapter."
        fail("adapter", f"must be a folder with {ADAPTER} or {PEFT}", value, remedy, "not-found")
    if adapter is not None and (Path(adapter) / PEFT).is_file() and not (Path(adapter) / WEIGHTS).is_file():
        remedy = "Fetch or save them again, as safetensors."  # PEFT would look for them on the Hub
        fail("adapter", f"must have {WEIGHTS} beside {PEFT}", repr(str(adapter)), remedy, "not-found")


def _check_folder(model: str) -> None:
    folder = Path(model)
    if (is_path(model) or folder.exists()) and not folder.is_dir():
        value = f"{model!r}, which {'is no folder' if folder.exists() else 'does not exist'}"
        fail("model", RULE, value, REMEDY, "not-found")
    check_regular_files("model", folder)
    if (folder / ADAPTER).is_file() and not any(folder.glob("model*.safetensors")):
        remedy = "It is an adapter: pass it as --adapter, and its base as --model."
        fail("model", RULE, f"{model!r}, which has no model", remedy, "not-found")
    if folder.is_dir() and not any((folder / file).is_file() for file in ("config.json", PEFT)):
        remedy = f"Pass {folder / 'model'}." if (folder / "model" / "config.json").is_file() else REMEDY
        fail("model", RULE, f"{model!r}, which has no config.json", remedy, "not-found")


def _check_tokenizer(model: str) -> None:
    folder = Path(model)
    if (folder / "config.json").is_file() and not any(any(folder.glob(kind)) for kind in TOKENIZERS):
        remedy = "Save the tokenizer there too: AutoTokenizer.from_pretrained(BASE).save_pretrained(FOLDER)."
        fail("model", RULE, f"{model!r}, which has no tokenizer", remedy, "not-found")


@contextmanager
def loading(model: str) -> Iterator[None]:
    """Turn errors of other libraries that load `model` inside the block into one of ours. They expect files that they
    have written themselves; other files may make them raise anything."""
    _check_folder(model)
    try:
        yield
    except Exception as error:
        if isinstance(error, TTCNetError):
            raise
        if "trust_remote_code" in str(error):
            rule = "must bring no code of its own, unless you allow that code to run"
            fail("model", rule, repr(model), "Read its code; if you trust it, pass --trust-remote-code.", "remote-code")
        place = "" if os.path.isdir(model) else ", which is no folder here; of the Hub"
        fail("model", RULE, f"{model!r}{place}: {reason(error)}", REMEDY, "no-model")


def reason(error: Exception) -> str:
    """The message of another library, in one line."""
    text = " ".join(str(error).split()).rstrip(".")
    plain = isinstance(error, OSError | ValueError) and text
    text = text if plain else f"{type(error).__name__} {text}".strip()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
