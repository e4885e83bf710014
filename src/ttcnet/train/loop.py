"""The training loop: steps, log, checkpoints, and stopping in time; for one run, or for several side by side."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

from rich.console import Console
from torch import Tensor

from ttcnet.errors import fail
from ttcnet.machine.processes import any_of_all, count, is_first_process, of_first, rank, together
from ttcnet.terminal.console import tell
from ttcnet.terminal.progress_bars import Bar

from .checkpoint import random_states, restore_random
from .run import Run

STATUS = 128 + signal.SIGTERM


class Trainable(Protocol):
    """A job of the loop: it is trained step by step. `Learner` is one, for a model and an objective."""

    step: int  # steps that were taken
    steps: int  # steps in all

    def advance(self) -> None:
        """Take one step."""

    def news(self) -> dict[str, float]:
        """Numbers since the last call, for the log. One that is not finite may be an error."""

    def describe(self, news: dict[str, float]) -> str:
        """Put the numbers of `news` as text for the progress bar."""

    def state(self) -> dict[str, Tensor]:
        """The content of a checkpoint: tensors that are spread over processes, or the same in all."""

    def restore(self, tensors: Mapping[str, Tensor], step: int, source: str) -> None:
        """Restore a state that `state` returned after a step. `source` names the checkpoint in messages."""


Report = Callable[[Run, Trainable, dict[str, float]], None]


def train(
    *pairs: tuple[Run, Trainable],
    every: int,
    save_every: int,
    minutes: float | None = None,
    listen_every: int = 1,
    report: Report | None = None,
) -> bool:
    """Take all remaining steps after the last checkpoint. True at the end, False if time was up.

    Several runs are trained side by side, each from a thread of its own. Schedulers of clusters send SIGTERM before
    they kill a job: then a checkpoint is saved and the process ends, in all processes of a job if any of them got it.

    Args:
        every: steps between lines of the log. A checkpoint has a line too: no line spans one.
        save_every: steps between checkpoints.
        minutes: save and stop after so many, to resume another time.
        listen_every: steps after which several processes ask each other for SIGTERM.
        report: gets every line of the log, in the first process.
    """
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    for run, each in pairs:
        _resume(run, each)
    jobs, total = [each for _, each in pairs], max(each.steps for _, each in pairs)
    logged, saved = ([each.step for each in jobs] for _ in range(2))
    lengths = (every, save_every, *((listen_every,) if count() > 1 else ()))
    with _listening() as heard, _progress(jobs, total) as show, ThreadPoolExecutor(len(jobs)) as pool:
        if len(jobs) > 1:  # on a GPU the first step is recorded; no other thread may work meanwhile
            for each in jobs:
                _advance(each, each.step + 1, heard)
        while (step := min(each.step for each in jobs)) < total:
            until = min(step - step % length + length for length in lengths)
            if len(jobs) == 1:
                _advance(jobs[0], until, heard, show)
            else:
                for done in [pool.submit(_advance, each, until, heard) for each in jobs]:
                    done.result()
            told, late = any_of_all(bool(heard), time.monotonic() > deadline)
            stopping = (told or late) and any(each.step < each.steps for each in jobs)
            texts = []
            for place, (run, each) in enumerate(pairs):
                due = stopping or each.step % save_every == 0 or each.step == each.steps
                saving = due and each.step > saved[place]
                if (saving or each.step % every == 0) and each.step > logged[place]:
                    news, logged[place] = each.news(), each.step
                    texts.append(each.describe(news))
                    run.log({"step": each.step} | news)
                    if report is not None and is_first_process():
                        report(run, each, news)
                if saving:
                    run.save(each.step, each.state() | random_states())
                    saved[place] = each.step
            show(", ".join(texts))
            if stopping and told:
                step = min(each.step for each in jobs)
                _stop(f"Stopped by SIGTERM after step {step:,} of {total:,}, which is saved.")
            if stopping:
                return False
    return True


@contextmanager
def _progress(jobs: Sequence[Trainable], total: int) -> Iterator[Callable[..., None]]:
    """Yields a function that shows a text, and the steps of the slowest job."""
    with Bar(console=Console(stderr=True), disable=not is_first_process()) as progress:
        bar = progress.add_task("training", total=total)

        def show(text: str = "") -> None:
            said = {"description": text} if text else {}
            progress.update(bar, completed=min(each.step for each in jobs), **said)

        show()
        yield show


def _resume(run: Run, each: Trainable) -> None:
    last = run.last_checkpoint()
    if last is not None:
        tell(f"Resuming from {last.path}.")
    first = of_first("none" if last is None else last.path.name)
    with together():
        if last is not None:
            if last.path.name != first:
                remedy = "Wait until all machines see the same files, or delete the file that differs."
                value = f"{last.path.name} in process {rank()}"
                fail("checkpoint", f"must be that of process 0, {first}", value, remedy, "disagree")
            each.restore(last.tensors, last.step, str(last.path))
            restore_random(last.tensors, str(last.path))
    run.cut_log(each.step)


def _advance(each: Trainable, until: int, heard: list[Any], show: Callable[[], None] = lambda: None) -> None:
    alone = count() == 1  # several processes stop together or not at all
    while each.step < min(until, each.steps) and not (heard and alone):
        each.advance()
        show()


@contextmanager
def on_sigterm(answer: Callable[..., None]) -> Iterator[None]:
    """Handle SIGTERM inside the block. This works in the main thread only, as Python's signals do."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, answer)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _listening() -> Iterator[list[Any]]:
    """Yields a list that stays empty until SIGTERM comes."""
    heard: list[Any] = []

    def hear(*_: Any) -> None:
        if not heard:  # it may come twice: from the scheduler, and from the launcher, which passes it on
            heard.append(True)
            tell("SIGTERM: stopping after this step ...")

    with on_sigterm(hear):
        yield heard


def stop_at_once(*_: Any) -> None:
    """Handle SIGTERM while there is nothing to save yet."""
    _stop("Stopped by SIGTERM.")


def _stop(text: str) -> NoReturn:
    tell(f"{text} Give the command again to resume.")
    raise SystemExit(STATUS)
