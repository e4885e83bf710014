"""Tensors and facts in one safetensors file, which is written whole or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ttcnet.errors import fail
from ttcnet.storage.special import check_regular
from ttcnet.storage.writing import replacing


def save(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Save tensors by name, with facts that are fit for JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new:
        write(new, tensors, facts)


def write(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write to a file that no other process uses yet."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with writing(path):
        save_file(on_cpu, path, metadata={"facts": json.dumps(facts)})


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of safetensors, such as a full disk, into an OSError."""
    try:
        yield
    except SafetensorError as error:
        fail(str(path), "must be writable", error, "Make room for it, or choose another folder.", "not-writable")


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and facts that `save` wrote. A damaged file, or a file of something else, is an error."""
    with _reading(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, _facts(file)  # noqa: SIM118


def opened(path: Path) -> Any:
    """The open file; only names and shapes are read so far."""
    with _reading(path) as file:
        return file


def facts_of(path: Path, file: Any) -> dict[str, Any]:
    """The facts in a file that was `opened`."""
    with told(path):
        return _facts(file)


def _facts(file: Any) -> dict[str, Any]:
    found = json.loads(file.metadata()["facts"])
    if not isinstance(found, dict):
        raise TypeError("its facts are no object")
    return found


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    check_regular(str(path), path)
    with told(path):
        yield safe_open(path, "pt")


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn faults of a file that is read inside the block into an error of ours."""
    try:
        yield
    except (SafetensorError, ValueError, RecursionError, KeyError, TypeError) as error:
        rule = "must be a complete safetensors file that ttcnet wrote"
        fail(str(path), rule, f"{type(error).__name__}: {error}", "Fetch or save it again.", "damaged")


def digest(tensors: dict[str, Tensor]) -> str:
    """A checksum of the names and contents of tensors. It reveals damage."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(tensors[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
