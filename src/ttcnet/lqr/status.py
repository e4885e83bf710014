"""How a search ended, problem by problem, and the warning about it."""

from __future__ import annotations

import warnings
from enum import IntEnum

import torch
from torch import Tensor

from . import checks


class Status(IntEnum):
    """How the search for the solution of a problem ended."""

    CONVERGED = 0
    ITERATION_LIMIT = 1
    STALLED = 2
    NOT_FINITE = 3
    INFEASIBLE = 4
    NO_MINIMUM = 5


ENDED = {
    Status.ITERATION_LIMIT: "was still under way when the iterations ran out",
    Status.STALLED: "found no further step that helps",
    Status.NOT_FINITE: "met NaN or infinity",
    Status.INFEASIBLE: "has no point that meets all constraints",
    Status.NO_MINIMUM: "has no finite minimum without constraints: its cost is not convex, or numbers overflow",
}
REMEDIES = {
    Status.ITERATION_LIMIT: "Raise max_iterations, start closer, or accept a larger tolerance.",
    Status.STALLED: "Look for kinks and for numbers of very different size, use float64, or accept a larger tolerance.",
    Status.NOT_FINITE: "Look for overflow, or for a root or a logarithm of a number that may be negative.",
    Status.INFEASIBLE: "Loosen its bounds.",
    Status.NO_MINIMUM: "Build Q as C @ C.mT, keep N small beside Q and R, and the horizon short for an unstable A.",
}
OF_ONE = {  # how problems of one solver end, and remedies
    ("ilqr", Status.NO_MINIMUM): ("has a cost that falls without end", "Bound the actions, or give them a cost."),
    ("solve_constrained", Status.NOT_FINITE): (
        "has NaN or infinity in a field or a bound, or its numbers overflow",
        "Look at its fields; if A is unstable, take a shorter horizon.",
    ),
    ("solve_constrained", Status.STALLED): (
        "found no further step that helps",
        "Its bounds leave next to no room, or its numbers differ too much in size: loosen the bounds a little, write "
        "it in other units, or accept a larger tolerance.",
    ),
}


def unfinished(status: Tensor) -> Tensor:
    """The problems that a search still works on."""
    return (status == Status.ITERATION_LIMIT).nonzero().squeeze(-1)


@torch.no_grad()
def report(what: str, status: Tensor, residual: Tensor) -> None:
    """Warn of problems that were not solved: how many, how each kind ended, and the first of each."""
    told = []
    for kind in ENDED:
        bad = status == kind
        if bad.any():
            which = f"problem {checks.first(bad)} of the batch" if bad.ndim else "the problem"
            rest = f", as {int(bad.sum()) - 1} others did" if bad.sum() > 1 else ""
            ended, remedy = OF_ONE.get((what, kind), (ENDED[kind], REMEDIES[kind]))
            told.append(f"{which} {ended} (residual {float(residual[bad][0]):.1e}){rest}. {remedy}")
    if told:
        warnings.warn(f"{what} did not solve every problem: {' '.join(told)}", RuntimeWarning, stacklevel=3)
