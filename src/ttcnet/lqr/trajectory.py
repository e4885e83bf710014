"""The result of `ilqr`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .status import Status


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Locally optimal actions and states, and how well each problem of the batch went.

    Attributes:
        u: actions u_1..u_T, (..., T, m).
        h: states h_0..h_T, (..., T+1, n). They follow from the actions to the bit.
        costate: co-states, (..., T+1, n): the slopes of the rest of the cost over each state.
        cost: of the trajectory, (...).
        status: how the search ended, (...), one of `Status` for every problem; 0 is converged.
        residual: the largest slope of the cost over an action that is free to move, with later actions following the
            feedback, over the largest term of any slope, (...).
        iterations: how many the search took, (...).
        K: feedback around the trajectory, u_t + K_t (h - h_{t-1}), (..., T, m, n), without gradients. Actions that
            are held at a bound do not react.
    """

    u: Tensor
    h: Tensor
    costate: Tensor
    cost: Tensor
    status: Tensor
    residual: Tensor
    iterations: Tensor
    K: Tensor

    @property
    def converged(self) -> Tensor:
        """Whether each problem was solved to the tolerance, (...)."""
        return self.status == Status.CONVERGED
