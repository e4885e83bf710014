"""Code and field of an error, for tests that leave its sentence free to improve."""

import re

import pytest

from ttcnet.errors import TTCNetError


def raises(code: str, field: str | None = None, value: str = ""):
    """Like pytest.raises, for the error with this code and field whose value has a part that matches."""

    def fits(error):
        named = field is None or error.field == field
        return error.code == code and named and re.search(value, str(error.value)) is not None

    return pytest.raises(TTCNetError, check=fits)


def told(output: str, code: str, field: str, value: str = "") -> bool:
    """Whether a command printed the error with this code and field, whose value has a part that matches."""
    text = " ".join(output.split())
    return re.search(rf"(?<![\w-]){re.escape(field)} .*; got .*{value}.* \[{code}\]", text) is not None
