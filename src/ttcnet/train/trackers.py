"""Lines of the log for TensorBoard, Weights & Biases and the like, while a run is trained."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ttcnet.errors import fail
from ttcnet.terminal.console import tell

from .loop import Report


def check_tracker(name: str) -> None:
    """Fail unless lines of the log can be sent there."""
    from accelerate.tracking import get_available_trackers

    known = ("none", "all", *map(str, get_available_trackers()))
    if name not in known:
        remedy = "Use one of those, or install the package of another."
        fail("report_to", f"must be one of {', '.join(known)}", repr(name), remedy, "unknown-name")


def tensorboard_if_there() -> str:
    """The tracker "tensorboard"; "none" if it is not installed, with a message."""
    if importlib.util.find_spec("tensorboard") is not None:
        return "tensorboard"
    tell("Without TensorBoard, which pip install 'ttcnet[train]' brings; log.jsonl has the same.")
    return "none"


@contextmanager
def tracking(name: str, folder: Path) -> Iterator[Report]:
    """Yields a function that sends lines of a run's log to a tracker: "none", "tensorboard", which writes into the
    folder `tensorboard` of the run, or another that accelerate knows. Every process must open it; the first one
    sends."""
    if name == "none":
        yield lambda *_: None
    elif name == "tensorboard":
        with ExitStack() as opened:
            writer: Any = None

            def report(_: Any, trained: Any, news: dict[str, float]) -> None:
                nonlocal writer
                if writer is None:  # a run that logs no new line gets no new file
                    writer = opened.enter_context(_writer(folder))
                for key, value in news.items():
                    writer.add_scalar(key, value, trained.step)

            yield report
    else:
        from accelerate import Accelerator

        tracker = Accelerator(log_with=name, project_dir=folder)
        tracker.init_trackers("ttcnet")
        yield lambda _, trained, news: tracker.log(news, step=trained.step)
        tracker.end_training()


def _writer(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"))
