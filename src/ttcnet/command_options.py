"""Options that several commands have. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from .bounds import check_horizon, check_size
from .errors import fail, whole_number

Trust = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run code that comes with the model or tokenizer, here. Read it first."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, or auto: a GPU if there is one.")]


def given(context: typer.Context, but: Sequence[str] = ()) -> dict[str, Any]:
    """The options of a command that the user gave, without those at their defaults, and without those in `but`."""
    sources = {name: context.get_parameter_source(name) for name in context.params if name not in but}
    return {name: context.params[name] for name, source in sources.items() if source and source.name != "DEFAULT"}


def gpus() -> int:
    """The number of CUDA devices that torch sees."""
    import torch

    return torch.cuda.device_count()


def usable(device: str | None) -> str:
    """The device of that name; for auto or None the best one. It is not made current, because each of several processes
    has its own device."""
    import torch

    if device in (None, "auto"):
        return "cuda" if gpus() else "cpu"
    count = {"cpu": 1, "cuda": gpus(), "mps": int(torch.backends.mps.is_available())}
    kind, _, index = device.partition(":")
    number = whole_number(index or "0")
    if number is None or number >= count.get(kind, 0):
        remedy = "Pass cpu, or run `ttcnet env` for the reason."
        fail("device", "must be one that torch sees", repr(device[:40]), remedy, "device")
    return device


def numbers(name: str, texts: Sequence[str] | None) -> tuple[int, ...]:
    """The numbers of an option that was given as 1,2,4 or several times, without repetitions; empty if it was not
    given."""
    parts = ",".join(texts).split(",") if texts else []
    found = [number for part in parts if (number := whole_number(part.strip())) is not None]
    if len(found) < len(parts):
        value, remedy = repr(",".join(texts or ())[:40]), f"Pass --{name} 1,2,4, say."
        fail(name, "must be a number, or several with commas between", value, remedy, "format")
    return tuple(dict.fromkeys(found))


def horizons(name: str, texts: Sequence[str] | None) -> tuple[int, ...]:
    """Likewise, horizons: each within its bound."""
    found = numbers(name, texts)
    for steps in found:
        check_horizon(name, steps)
    return found


def check_knobs(horizon: int | None, loops: int | None = None) -> None:
    """Fail, before anything is loaded, if a horizon or a number of loops is out of bounds."""
    if horizon is not None:
        check_horizon("horizon", horizon)
    if loops is not None:
        check_size("loops", loops, 1, "Pass 1 to apply the blocks once.")
