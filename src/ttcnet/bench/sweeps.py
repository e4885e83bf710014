"""Which shapes are measured, and which of them are skipped.

horizon   the paper's figure, left: T from 2^4 to 2^11, 1,024 problems
problems  the paper's figure, right: 2^4 to 2^18 problems, T = 64
llm       training of a language model: 4,096 and 16,384 tokens of 16 heads, T = 8, 16, 32
decode    generating text: 1, 8 and 64 tokens of 16 heads, T = 8, 16, 64, 128
targets   six shapes from the corners of the others, for a short table
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ttcnet.errors import fail

from .measure import Outcome, Point

Shape = tuple[int, int]  # problems, horizon
HEADS = 16
SWEEPS: dict[str, list[Shape]] = {
    "horizon": [(1024, 2**k) for k in range(4, 12)],
    "problems": [(2**k, 64) for k in range(4, 19)],
    "llm": [(tokens * HEADS, T) for tokens in (4096, 16384) for T in (8, 16, 32)],
    "decode": [(tokens * HEADS, T) for tokens in (1, 8, 64) for T in (8, 16, 64, 128)],
    "targets": [(65536, 8), (65536, 64), (1024, 16), (1024, 2048), (16, 8), (16, 128)],
}
FAR = 16  # times the work: from further away, nothing is estimated


def expand(names: Iterable[str]) -> list[tuple[str, Shape]]:
    """Every shape of the named sweeps, with the sweep's name; "all" is all of them."""
    chosen = list(dict.fromkeys(name for given in names for name in (SWEEPS if given == "all" else [given])))
    for name in chosen:
        if name not in SWEEPS:
            fail("sweep", f"must be one of all, {', '.join(SWEEPS)}", repr(name), "Use one of those.", "unknown-name")
    return [(name, shape) for name in chosen for shape in SWEEPS[name]]


class History:
    """The results so far. A shape that was measured in another sweep is not measured again. A shape is not tried if one
    with no more problems and steps has failed for lack of memory or time."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.outcomes: dict[Point, Outcome] = {}

    def add(self, point: Point, outcome: Outcome) -> None:
        self.outcomes[replace(point, sweep="")] = outcome

    def foresee(self, point: Point) -> Outcome | None:
        """The outcome, if it is known or need not be tried."""
        known = self.outcomes.get(replace(point, sweep=""))
        if known is not None:
            return known
        estimates: list[tuple[float, float]] = []
        for other, outcome in self.outcomes.items():
            if other.problems > point.problems or other.horizon > point.horizon or not _alike(point, other):
                continue
            if outcome.status == "out of memory" or outcome.status.startswith("over "):
                return Outcome(f"skipped: {outcome.status} at {other.problems}x{other.horizon}")
            if outcome.status.startswith("skipped: would take"):
                return outcome
            work = (point.problems * point.horizon) / (other.problems * other.horizon)
            if outcome.status == "ok" and work <= FAR:
                # a long measurement takes each pass about twice
                estimates.append((work, 2e-3 * (outcome.median_ms + outcome.forward_ms) * work))
        if estimates and min(estimates)[1] > self.limit:  # by the nearest shape
            return Outcome(f"skipped: would take over {self.limit:.0f} s")
        return None


def _alike(point: Point, other: Point) -> bool:
    """Whether they differ only in their size."""
    return replace(point, sweep="", problems=other.problems, horizon=other.horizon) == other
