"""The one way in which ttcnet complains. Imports nothing, so that light modules can use it."""

from __future__ import annotations

from typing import NoReturn


def fail(field: str, rule: str, value: object, remedy: str, error: type[Exception] = ValueError) -> NoReturn:
    """Raise `error` with a message that gives field, rule, value and remedy."""
    raise error(f"{field} {rule}; got {value}. {remedy}")
