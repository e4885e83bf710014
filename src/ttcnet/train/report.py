"""What a run of fine-tuning tells while it runs."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import TrainerCallback

from ttcnet.bars import Bar
from ttcnet.errors import fail
from ttcnet.processes import is_first_process
from ttcnet.reading import cut_log


class Report(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """A progress bar with loss, tokens a second and the time left; log.jsonl in the folder of the run."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log.jsonl"
        self.progress = Bar(console=Console(stderr=True), disable=not is_first_process())
        self.task = self.progress.add_task("fine-tuning", total=None)
        self.then, self.tokens = time.monotonic(), 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # type: ignore[override, unused-ignore]
        if is_first_process():
            cut_log(self.log, state.global_step)
        self.progress.update(self.task, total=state.max_steps, completed=state.global_step)
        self.then, self.tokens = time.monotonic(), state.num_input_tokens_seen

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # type: ignore[override, unused-ignore]
        self.progress.update(self.task, completed=state.global_step)
        control.should_log |= control.should_save  # no line of the log spans a checkpoint, and the last step has one

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:  # type: ignore[override, unused-ignore]
        if not logs or "loss" not in logs:
            return
        loss = float(logs["loss"])
        for what, number in (("loss", loss), ("the norm of the gradients", float(logs.get("grad_norm", 0.0)))):
            if not math.isfinite(number):
                remedy = "Lower lr, or look for what is odd in the data or in the base model. "
                remedy += "The last checkpoint is from before."
                fail(what, "must be a finite number", f"{number} at step {state.global_step}", remedy)
        now, tokens = time.monotonic(), state.num_input_tokens_seen
        speed = (tokens - self.tokens) / max(now - self.then, 1e-9)
        self.then, self.tokens = now, tokens
        self.progress.update(self.task, description=f"loss {loss:.3f}, {speed:,.0f} tokens/s")
        kept = {"step": state.global_step, "loss": loss, "lr": float(logs["learning_rate"]), "tokens": tokens}
        if is_first_process():
            with self.log.open("a") as file:
                file.write(json.dumps(kept | {"tokens_per_second": speed}) + "\n")
