"""All cases of the fuzz; cases.py describes them."""

import json
import re
import selectors
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from ttcnet.terminal.console import FAULT

from . import cases, world

LIMIT = 300.0  # seconds for a case, on a machine that has other things to do
ROOT = Path(__file__).parents[2]


def verdict(news):
    """The fault in the end of a case; empty if there is none."""
    said = news["said"]
    if news["trace"]:
        return f"traceback: {news['trace'].splitlines()[-1][:200]}"
    if "Traceback (most recent call last)" in said or FAULT in said:
        return f"traceback: {said[-300:]}"
    if news["code"] == 0:
        return "" if news["may_pass"] else "success"
    if not re.search(r"\w+ \w+ .*|╯", said.strip().rpartition("\n")[2]):
        return f"no sentence: {said[-200:]!r}"
    if re.search("[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]", said) or "\x1b]" in said:
        return f"control characters: {said[-200:]!r}"
    return ""


def outcomes(folder, first=0, step=1):
    """Number, name and how it ended of every case; a process that stalls or dies is followed by another."""
    number, name, total = first, "", len(cases.cases(folder))
    while number < total:
        call = [sys.executable, "-m", "tests.fuzz", str(folder), str(number), str(step)]
        with subprocess.Popen(call, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            for news in _lines(process):
                if news is None or "case" not in news:
                    if news is None:
                        process.kill()
                    yield number, name, ({"stalled": True} if news is None else news)
                    number += step
                    name = ""
                else:
                    number, name = news["number"], news["case"]
            process.wait()
        if process.returncode and number < total and name:
            yield number, name, {"died": process.returncode}
            number += step


def _lines(process):
    """The process's lines; None, and nothing after it, if the next takes longer than the limit."""
    selector, end = selectors.DefaultSelector(), time.monotonic() + LIMIT
    selector.register(process.stdout, selectors.EVENT_READ)
    while selector.select(max(0.0, end - time.monotonic())):
        line = process.stdout.readline()
        if not line:
            return
        end = time.monotonic() + LIMIT
        yield json.loads(line)
    yield None


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    world.build(folder)
    return folder


@pytest.mark.slow
def test_every_malformed_case_ends_with_a_sentence(made):
    bad, kinds = [], Counter()
    for number, name, news in outcomes(made):
        wrong = verdict(news) if "code" in news else str(news)
        kinds[name.partition(":")[0]] += 1
        if wrong:
            bad.append((number, name, news.get("harm"), wrong))
    assert kinds.total() == cases.CASES
    assert len(kinds) > 20
    assert bad == []
