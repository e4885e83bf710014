"""The one way in which ttcnet complains. Imports nothing, so that light modules can use it."""

from __future__ import annotations

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


def _sentence(error: Exception) -> str:
    """What the operating system says, without its number."""
    if not isinstance(error, OSError) or error.strerror is None or error.filename is None:
        return str(error)
    return f"{error.filename}: {error.strerror}. Pass another path."


@contextmanager
def complaints() -> Iterator[None]:
    """Around a command: a sentence instead of a traceback, where that is all there is to say."""
    import typer

    from .console import say

    try:
        yield
    except KeyboardInterrupt:
        say("Stopped. Give the command again to go on.", err=True)
        raise typer.Exit(130) from None
    except Exception as error:
        if not isinstance(error, ImportError | OSError) and not is_complaint(error):
            raise  # a fault of ours or of a library: with all that is known about it
        say(_sentence(error), err=True)
        raise typer.Exit(1) from None
