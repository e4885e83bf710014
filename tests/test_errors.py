"""Errors have a stable code, and are the built-in exception that they always were."""

import pickle
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ttcnet.cli import app
from ttcnet.errors import CODES, TTCNetError, check_integer, fail


@pytest.mark.parametrize("code", CODES)
def test_an_error_is_a_ttcnet_error_and_a_built_in_one(code):
    with pytest.raises(TTCNetError) as found:
        fail("horizon", "must be 0 or more", -1, "Pass 8, say.", code)
    error = found.value
    assert isinstance(error, CODES[code].error)
    parts = (error.code, error.field, error.rule, error.value, error.remedy)
    assert parts == (code, "horizon", "must be 0 or more", -1, "Pass 8, say.")
    assert str(error) == f"horizon must be 0 or more; got -1. Pass 8, say. [{code}]"


@pytest.mark.parametrize("code", CODES)
def test_an_error_crosses_processes(code):
    with pytest.raises(TTCNetError) as found:
        fail("horizon", "must be 0 or more", -1, "Pass 8, say.", code)
    there = pickle.loads(pickle.dumps(found.value))
    assert type(there) is type(found.value)
    assert (str(there), vars(there)) == (str(found.value), vars(found.value))


def test_a_more_special_exception_can_be_named():
    with pytest.raises(IsADirectoryError, match=r"\[not-readable\]"):
        fail(
            "boards.csv:",
            "must be a file that can be read",
            "a folder",
            "Name a file.",
            "not-readable",
            IsADirectoryError,
        )
    with pytest.raises(NotADirectoryError):
        fail("out", "must be a folder", "a file", "Name a folder.", "not-a-folder")
    with pytest.raises(TTCNetError) as found:
        fail("a", "must be b", "c", "Do d.", "not-readable", InterruptedError)
    assert isinstance(found.value, OSError)


@pytest.mark.parametrize(("value", "code"), [(True, "type"), ("3", "type"), (0, "too-small")])
def test_check_integer(value, code):
    with pytest.raises(TTCNetError) as found:
        check_integer("heads", value, 1, "Pass a whole number.")
    assert (found.value.code, found.value.field) == (code, "heads")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_disk_is_told_with_a_remedy():
    result = CliRunner().invoke(app, ["countdown", "make", "--out", "/dev/full", "--count", "3"])
    assert result.exit_code == 1
    assert "No space left on device. Make room" in " ".join(result.output.split())
    assert "Errno" not in result.output


def test_a_value_of_many_characters_is_shortened_in_the_message():
    with pytest.raises(TTCNetError) as caught:
        fail("device", "must be cpu", "a" * 5000, "Pass cpu.", "unknown-name")
    assert str(caught.value).endswith("aaa ... (5,000 characters). Pass cpu. [unknown-name]")
    assert len(str(caught.value)) < 1200
    assert caught.value.value == "a" * 5000
