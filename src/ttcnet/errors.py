"""`fail` raises all errors of ttcnet. Imports nothing heavy, so that light modules can use it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, NoReturn


class Code(NamedTuple):
    """The meaning of a code, and the built-in exception that its errors are as well."""

    error: type[Exception]
    meaning: str


LONGEST = 2000  # characters of a value in a message
CODES = {
    # arguments
    "type": Code(TypeError, "a value is of the wrong kind"),
    "unknown-name": Code(ValueError, "a name is none of those that the message lists"),
    "unknown-field": Code(ValueError, "a setting or an option does not exist"),
    "too-small": Code(ValueError, "a number is too small"),
    "too-large": Code(ValueError, "a number is too large"),
    "out-of-range": Code(ValueError, "a number lies outside its range"),
    "format": Code(ValueError, "a text is not written as it must be"),
    "missing": Code(ValueError, "an argument or a setting must be given"),
    "conflict": Code(ValueError, "two arguments or settings do not fit together"),
    # tensors and control problems
    "shape": Code(ValueError, "an array has another shape"),
    "dtype": Code(TypeError, "an array has another dtype"),
    "device": Code(ValueError, "a tensor or a device is not where it must be"),
    "not-finite": Code(ValueError, "an input holds NaN or infinity"),
    "negative": Code(ValueError, "an input holds a negative number"),
    "not-symmetric": Code(ValueError, "a matrix of a cost is not symmetric"),
    "not-positive": Code(ValueError, "a matrix of a cost is not positive (semi-)definite"),
    "overflow": Code(ValueError, "a solution outgrew its dtype"),
    "unstable": Code(ValueError, "no feedback makes a system settle"),
    "inaccurate": Code(ValueError, "a solution lost its digits"),
    "backend": Code(RuntimeError, "the backend cannot run here"),
    "no-derivative": Code(RuntimeError, "this derivative does not exist"),
    "not-traceable": Code(RuntimeError, "torch.jit.trace cannot record this"),
    # models and layers
    "no-layers": Code(ValueError, "the model has no TTC or inserted layers"),
    "has-layers": Code(ValueError, "the model has such layers already"),
    "unsupported-model": Code(TypeError, "the model is of a class that is not supported, wrapped or changed"),
    "offloaded": Code(ValueError, "weights of the model are not in memory"),
    "too-long": Code(ValueError, "a text has more tokens than the model takes"),
    "cache": Code(ValueError, "a cache of another model, or one that cannot be used so"),
    "stateful": Code(ValueError, "a stateful mixer cannot do this"),
    "context": Code(ValueError, "weights were trained with another context"),
    "weights": Code(ValueError, "weights do not fit the model"),
    "base": Code(ValueError, "an adapter was made for another base model"),
    "peft": Code(ValueError, "PEFT cannot do this with inserted layers"),
    "no-model": Code(ValueError, "there is no whole model, tokenizer or adapter there"),
    "chat-template": Code(ValueError, "the model has no chat template, or one that does not take the text"),
    "remote-code": Code(ValueError, "a model brings its own code"),
    "bad-output": Code(ValueError, "a model gives NaN or infinity"),
    "diverged": Code(ValueError, "training gives NaN or infinity"),
    # files and runs
    "not-found": Code(FileNotFoundError, "a file or a folder is not there"),
    "not-a-folder": Code(NotADirectoryError, "a file is where a folder belongs"),
    "exists": Code(FileExistsError, "a file is there already"),
    "not-readable": Code(OSError, "a file cannot be read"),
    "not-writable": Code(OSError, "a file or a folder cannot be written"),
    "in-use": Code(BlockingIOError, "another command is using the folder"),
    "damaged": Code(ValueError, "a file is damaged, or ttcnet did not write it"),
    "bad-data": Code(ValueError, "a row or a file of data cannot be used"),
    "no-data": Code(ValueError, "no data is left"),
    "settings-changed": Code(ValueError, "a run is resumed with other settings"),
    "disagree": Code(ValueError, "processes of one job were started differently"),
    "data-changed": Code(ValueError, "a run is resumed with other data"),
    "bad-task": Code(ValueError, "a task cannot be loaded or asked"),
    # the rest of the machine
    "memory": Code(MemoryError, "there is not enough memory"),
    "package": Code(ImportError, "a package is missing, or has the wrong version"),
    "server": Code(ConnectionError, "a server does not answer"),
    "port": Code(OSError, "a port is in use"),
    "failed": Code(RuntimeError, "a search or a program came to no result"),
    # puzzles
    "bad-board": Code(ValueError, "a board of Sudoku breaks a rule"),
}


class TTCNetError(Exception):
    """An error of ttcnet. It is a built-in exception too: a TTCNetValueError is a ValueError.

    Attributes:
        code: one of `CODES`; the documentation explains them all.
        field: the argument, setting or file that is wrong.
        rule: the condition that it must meet.
        value: its present value.
        remedy: the action that mends it.
    """

    def __init__(
        self,
        message: str = "",
        code: str = "",
        field: str = "",
        rule: str = "",
        value: object = None,
        remedy: str = "",
    ) -> None:
        super().__init__(message)
        self.code, self.field, self.rule, self.value, self.remedy = code, field, rule, value, remedy


def _classes() -> dict[type[Exception], type[TTCNetError]]:
    """A class for each built-in exception, in this module under its name, where pickle finds it."""
    made: dict[type[Exception], type[TTCNetError]] = {}
    for error in {code.error for code in CODES.values()} | {IsADirectoryError, PermissionError, NotImplementedError}:
        name = f"TTCNet{error.__name__}"
        made[error] = globals()[name] = type(name, (TTCNetError, error), {"__module__": __name__, "__doc__": None})
    return made


_CLASSES = _classes()


def fail(
    field: str, rule: str, value: object, remedy: str, code: str, error: type[Exception] | None = None
) -> NoReturn:
    """Raise the TTCNetError of a code, with a message that gives field, rule, value and remedy.

    The code decides which built-in exception the error is as well; `error` names another one.
    """
    kind = next(_CLASSES[base] for base in (error or CODES[code].error).__mro__ if base in _CLASSES)
    raise kind(f"{field} {rule}; got {_shown(value)}. {remedy} [{code}]", code, field, rule, value, remedy)


def _shown(value: object) -> str:
    """A value as a message has it. The error itself has all of it."""
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... ({len(text):,} characters)"


def check_integer(field: str, value: object, least: int, remedy: str) -> int:
    """Return `value` if it is an integer of `least` or more. True and False are not integers here."""
    if isinstance(value, bool) or not isinstance(value, int):
        fail(field, "must be an integer", repr(value), remedy, "type")
    if value < least:
        fail(field, f"must be {least} or more", value, remedy, "too-small")
    return value


def whole_number(text: str) -> int | None:
    """The number that a text of 1 to 18 digits writes; None for any other text."""
    return int(text) if text.isdecimal() and len(text) <= 18 else None


def not_finite(where: str) -> NoReturn:
    """Raise an error because a model gives NaN or infinity for the sample that `where` names."""
    remedy = "Its weights are damaged, or overflow in this dtype."
    fail("model", "must give finite scores", f"NaN or infinity for {where}", remedy, "bad-output")


def _is_of_memory(error: Exception) -> bool:
    """Whether the error says that memory has run out, on the host or on a GPU."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    words = ("can't allocate memory", "Storage size calculation overflowed")
    return named or (isinstance(error, RuntimeError) and any(part in str(error) for part in words))


def _sentence(error: Exception) -> str:
    """The text of an error, without the numbers of the operating system."""
    if isinstance(error, TTCNetError):
        return str(error)
    if _is_of_memory(error):
        said = str(error).partition("\n")[0].rstrip(".") or "none is left"
        return f"There is not enough memory: {said}. Ask for less, or take a larger machine."
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    if error.filename is None:
        return f"A file could not be read or written: {error.strerror}. Make room, or pass another path."
    return f"{error.filename}: {error.strerror}. Pass another path."


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Print an error that a command raises inside the block; leave out its traceback if the text is enough."""
    import typer

    from .terminal.console import DEBUG, say

    try:
        yield
    except KeyboardInterrupt:
        say("Stopped. Give the command again to resume.", err=True)
        raise typer.Exit(130) from None
    except Exception as error:
        told = isinstance(error, ImportError | OSError | TTCNetError) or _is_of_memory(error)
        if os.environ.get(DEBUG) or not told:
            raise  # with its traceback: a fault of ours or of a library
        say(_sentence(error), err=True)
        raise typer.Exit(1) from None
