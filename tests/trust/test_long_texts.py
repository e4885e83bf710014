"""Reading texts takes time in proportion to their length, also where they were made to take long."""

import re
import signal
import time
from contextlib import contextmanager

import pytest

from ttcnet.data.sources import answer_in
from ttcnet.data.text import tokens
from ttcnet.evaluate.engines.tree import _number
from ttcnet.tasks import countdown
from ttcnet.tasks.math.compare import INTEGER, PERCENT
from ttcnet.tasks.math.stated import stated

PUZZLE = {"numbers": [1, 2], "target": 3}
READERS = {
    "stated": stated,
    "answer_in": answer_in,
    "tokens": tokens,
    "countdown": lambda text: countdown.grade(PUZZLE, text),
    "rating": _number,
    "compare": lambda text: (PERCENT.sub(r"\1", text), INTEGER.fullmatch(text)),
}
UNITS = [  # repeated, these took the square of the length, or might
    "\n", " ", "1", "####", "####\n", "#### a\n", "\n ####", "\\boxed{", "\\boxed{1}", "\\boxed ", "\\boxed{1} and ",
    "\\boxed -", "{", "\\", "\\boxed{}", "\\boxed{{1}", "}", "1 2/3 ", "1,000", "1\\,", " - ", "a=", "1=", "(1+",
    "\\left", "\u0316\u0301", "\u0345", "f'", "\ufdfa",
]  # fmt: skip
FRAMES = [("", ""), ("#### a", "b"), ("\\boxed{1", "2}"), ("\\boxed", ""), ("1.1", "x"), ("a", "\u0334" * 50_000)]
SECONDS = 3.0  # of processor time: linear readers take 0.1 s of it, and those that were quadratic took 10 to 1,000


class TooLongError(BaseException):
    """An exception that the tested code must not catch."""


@contextmanager
def at_most(seconds):
    def stop(*_):
        raise TooLongError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    begin = time.process_time()
    try:
        yield
        assert time.process_time() - begin < seconds
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def slow_ones(length, seconds, frames):
    """All readers and texts that take longer."""
    found = []
    for reader, read in READERS.items():
        for unit in UNITS:
            for before, after in frames:
                text = before + unit * (length // len(unit)) + after
                if reader == "tokens" and unit == "\ufdfa":
                    text = text[: length // 18]  # a sentence in one letter
                try:
                    with at_most(seconds):
                        read(text)
                except (TooLongError, AssertionError):
                    found.append((reader, unit, before, after[:1]))
    return found


def test_texts_of_a_hundred_thousand_characters():
    assert slow_ones(100_000, SECONDS, FRAMES[:3]) == []


@pytest.mark.slow
def test_texts_of_a_million_characters():
    assert slow_ones(1_000_000, 10 * SECONDS, FRAMES) == []


def test_a_quadratic_reader_is_noticed():
    old = re.compile(r"^\s*####\s*(\S.*?)\s*$", re.MULTILINE)
    with pytest.raises(TooLongError), at_most(1.0):
        old.search("\n" * 100_000)
