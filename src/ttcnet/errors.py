"""The one way in which ttcnet complains. Imports nothing, so that light modules can use it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


def fail(field: str, rule: str, value: object, remedy: str, error: type[Exception] = ValueError) -> NoReturn:
    """Raise `error` with a message that gives field, rule, value and remedy."""
    raise error(f"{field} {rule}; got {value}. {remedy}")


def check_integer(field: str, value: object, least: int, remedy: str) -> int:
    """`value`, if it is an integer of `least` or more; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, int):
        fail(field, "must be an integer", repr(value), remedy, TypeError)
    if value < least:
        fail(field, f"must be {least} or more", value, remedy)
    return value


def whole_number(text: str) -> int | None:
    """What a text writes in 1 to 18 digits; None if it is anything else, or more, which Python may refuse to read."""
    return int(text) if text.isdecimal() and len(text) <= 18 else None


def not_finite(where: str) -> NoReturn:
    """Raise because a model's numbers are none, for the sample that `where` names."""
    remedy = "Its weights are damaged, or overflow in this dtype."
    fail("model", "must give finite scores", f"NaN or infinity for {where}", remedy)


def is_complaint(error: BaseException) -> bool:
    """Whether `fail` raised it: a sentence for the user, who needs no traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code is fail.__code__


def _is_of_memory(error: Exception) -> bool:
    """Whether memory has run out, as Python, or torch on a GPU or a CPU, say it."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    words = ("can't allocate memory", "Storage size calculation overflowed")
    return named or (isinstance(error, RuntimeError) and any(part in str(error) for part in words))


def _sentence(error: Exception) -> str:
    """What the operating system says, without its number."""
    if _is_of_memory(error):
        said = str(error).partition("\n")[0].rstrip(".") or "none is left"
        return f"There is not enough memory: {said}. Ask for less, or take a larger machine."
    if not isinstance(error, OSError) or error.strerror is None or error.filename is None:
        return str(error)
    return f"{error.filename}: {error.strerror}. Pass another path."


@contextmanager
def complaints() -> Iterator[None]:
    """Around a command: a sentence instead of a traceback, where that is all there is to say."""
    import typer

    from .console import DEBUG, say

    try:
        yield
    except KeyboardInterrupt:
        say("Stopped. Give the command again to go on.", err=True)
        raise typer.Exit(130) from None
    except Exception as error:
        told = isinstance(error, ImportError | OSError) or is_complaint(error) or _is_of_memory(error)
        if os.environ.get(DEBUG) or not told:
            raise  # with all that is known about it, where it is a fault of ours or of a library
        say(_sentence(error), err=True)
        raise typer.Exit(1) from None
