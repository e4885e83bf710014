"""The forward pass replayed as a CUDA graph: its time without the time of the host.

A capture that fails can leave torch's allocator unusable in that process. So a separate process first tries, once,
which providers can be captured at all.
"""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable
from functools import cache

import torch

from ttcnet.testing.errors import cast
from ttcnet.testing.regimes import draw

from .providers import PROVIDERS

CANDIDATES = ("plan", "symplectic")
LARGEST = 1024 * 128  # problems x steps: beyond, the host's share is small, and a graph saves little
SECONDS = 120.0


def worth_capturing(provider: str, problems: int, horizon: int) -> bool:
    return provider in CANDIDATES and problems * horizon <= LARGEST and provider in capturable()


def capture(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of `run`; it must have run before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


@cache
def capturable() -> frozenset[str]:
    """The providers whose forward pass can be captured, tried on a small family in another process."""
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[str] = context.Queue()
    process = context.Process(target=_try_all, args=(answers,), daemon=True)
    process.start()
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
    found = set()
    try:
        while True:
            found.add(answers.get(timeout=0.2))
    except queue.Empty:
        return frozenset(found)


def _try_all(answers: multiprocessing.Queue[str]) -> None:
    for name in CANDIDATES:
        family = cast(draw("trained", 8, 16), torch.float32, "cuda")
        try:
            with torch.no_grad():
                PROVIDERS[name](family, 4)
                capture(lambda name=name, family=family: PROVIDERS[name](family, 4)).replay()  # type: ignore[misc]
            torch.cuda.synchronize()
        except RuntimeError:
            return  # a failed capture may spoil the ones after it
        answers.put(name)
