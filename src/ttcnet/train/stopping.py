"""SIGTERM, by which the schedulers of clusters tell a job that it will be killed: the run saves what it has learned."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from transformers import TrainerCallback

from ttcnet.console import tell

STATUS = 128 + signal.SIGTERM


@contextmanager
def on_sigterm(answer: Callable[..., None]) -> Iterator[None]:
    """For the time of the block; in the main thread alone, since Python knows signals nowhere else."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, answer)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Stopper(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Before training SIGTERM ends the process; during training it is answered after the step, with a checkpoint, by
    all processes of a job if any of them has heard it."""

    def __init__(self) -> None:
        self.heard = self.training = False

    def listening(self) -> AbstractContextManager[None]:
        return on_sigterm(self._hear)

    def _hear(self, *_: Any) -> None:
        if not self.training:
            self.stop("Stopped by SIGTERM. Give the command again to go on.")
        if not self.heard:  # it may come twice: from the scheduler, and from the launcher, which passes it on
            self.heard = True
            tell("SIGTERM: stopping after this step ...")

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # type: ignore[override, unused-ignore]
        self.training = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # type: ignore[override, unused-ignore]
        if dist.is_initialized():
            heard = torch.tensor(int(self.heard), device=args.device)
            dist.all_reduce(heard, dist.ReduceOp.MAX)
            self.heard = bool(heard)
        if self.heard:
            control.should_save = control.should_training_stop = True

    def check(self, state: Any) -> None:
        """After training: stop, if the run did not come to its end."""
        if self.heard and state.global_step < state.max_steps:
            self.stop(
                f"Stopped by SIGTERM after step {state.global_step:,} of {state.max_steps:,}, which is saved. "
                "Give the command again to go on."
            )

    def stop(self, text: str) -> NoReturn:
        tell(text)
        raise SystemExit(STATUS)
