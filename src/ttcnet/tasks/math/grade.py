"""Grading by math-verify, gold answer first. It runs in processes with a time limit, so that it works from any thread
and no answer holds up the others."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any

from ttcnet.errors import fail

from ..task import Verdict

PACKAGES = ("math-verify", "antlr4-python3-runtime")  # other versions of them grade differently
SECONDS = 5.0  # processor time of an answer, so that a busy machine does not change verdicts


def grade(gold: str, text: str) -> bool:
    r"""Whether a text gives the gold answer.

    Examples:
        >>> grade("3/4", r"It follows that $p = \boxed{75\%}$.")
        True
    """
    return verdict(gold, text).right


def verdict(gold: str, text: str) -> Verdict:
    """Grade a text as `grade` does, and tell which answer was read from it. The processes behind it stay for the next
    calls; calls from several threads are graded side by side."""
    return _shared().submit(gold, text).result()


def same(one: str, other: str) -> bool:
    r"""Whether two answers mean the same.

    Examples:
        >>> same(r"\frac{1}{2}", "0.5")
        True
    """
    return one == other or verdict(one, f"\\boxed{{{other}}}").right


class Graders:
    """Processes that grade answers side by side; to be closed, or used in a `with` block."""

    def __init__(self, workers: int | None = None, seconds: float = SECONDS) -> None:
        self.workers = workers or min(8, os.cpu_count() or 1)
        self.seconds = seconds
        self._own = threading.local()
        self._started: list[_Process] = []
        self._threads = ThreadPoolExecutor(self.workers)

    def __enter__(self) -> Graders:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        for process in self._started:
            process.close()

    def submit(self, gold: str, text: str) -> Future[Verdict]:
        return self._threads.submit(self._grade, gold, text)

    def verdicts(self, pairs: Iterable[tuple[str, str]]) -> list[Verdict]:
        """Grade pairs (gold, text). Returns a verdict for each, in their order."""
        return [waiting.result() for waiting in [self.submit(gold, text) for gold, text in pairs]]

    def _grade(self, gold: str, text: str) -> Verdict:
        if not hasattr(self._own, "process"):
            self._own.process = _Process()
            self._started.append(self._own.process)
        return self._own.process.ask(gold, text, self.seconds)


class _Process:
    """`compare` in a process, which is started again after it had to be ended."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[str] | None = None

    def ask(self, gold: str, text: str, seconds: float) -> Verdict:
        code = 0
        for _ in range(2):  # a process that died for lack of memory may succeed at the second attempt
            try:
                return Verdict(**_exchange(self._ready(), {"gold": gold, "text": text, "seconds": seconds}))
            except _EndedError:
                code = self.close()
            if code == -signal.SIGPROF:
                return Verdict(False, None, f"took more than {seconds:g} s")
        return Verdict(False, None, f"the grader ended with {code}")

    def _ready(self) -> subprocess.Popen[str]:
        if self._running is None:
            here = os.pathsep.join(filter(None, sys.path))
            self._running = subprocess.Popen(
                [sys.executable, "-m", "ttcnet.tasks.math.compare"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", env=os.environ | {"PYTHONPATH": here},
            )  # fmt: skip
            try:
                news = _exchange(self._running)
            except _EndedError:
                remedy = "Its own error is above; `python -m ttcnet.tasks.math.compare` shows it too."
                fail("grader", "must start", f"a process that ended with {self.close()}", remedy, "failed")
            if "error" in news:
                self.close()
                field, rule, value, remedy = news["error"]
                fail(field, rule, value, remedy, "package")
        return self._running

    def close(self) -> int:
        process, self._running = self._running, None
        if process is None:
            return 0
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        return process.wait()


class _EndedError(Exception):
    """The process is no more."""


def _exchange(process: subprocess.Popen[str], task: dict[str, Any] | None = None) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if task is not None:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = ""
    if not line.endswith("\n"):
        raise _EndedError
    answer: dict[str, Any] = json.loads(line)
    return answer


@cache
def _shared() -> Graders:
    graders = Graders()
    atexit.register(graders.close)
    return graders
