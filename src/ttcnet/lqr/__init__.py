"""Linear-quadratic control: many small problems at once, solved exactly and differentiated.

    solve(LQR(...))                   general problems: actions, states, co-states and cost
    solve_constrained(LQR(...), ...)  the same within bounds and linear inequalities
    dare(A, B, Q, R)                  the best constant feedback for a horizon without end
    ilqr(dynamics, cost, h0, T)       nonlinear dynamics, other costs and bounds on actions
    plan(ModulatedLQR(...), horizon)  the first action of every problem of a family whose matrices decay over time
    plan(StationaryLQR(...), horizon) likewise, matrices the same at every step, with dense dynamics

Needs torch, and knows nothing of neural networks.
"""

from .constrained import ConstrainedSolution, solve_constrained
from .dare import Regulator, dare
from .ilqr import ilqr
from .modulated import ModulatedLQR
from .plan import backends, plan
from .problem import LQR
from .solution import Solution
from .solve import solve
from .stationary import StationaryLQR
from .status import Status
from .trajectory import Trajectory

__all__ = [
    "LQR",
    "ConstrainedSolution",
    "ModulatedLQR",
    "Regulator",
    "Solution",
    "StationaryLQR",
    "Status",
    "Trajectory",
    "backends",
    "dare",
    "ilqr",
    "plan",
    "solve",
    "solve_constrained",
]
