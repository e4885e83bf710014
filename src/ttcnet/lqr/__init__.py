"""Linear-quadratic control: many small problems at once, solved exactly and differentiated.

    solve(LQR(...))                   general problems: actions, states, co-states and cost
    plan(ModulatedLQR(...), horizon)  the first action of every problem of a family whose matrices decay over time

Needs torch, and knows nothing of neural networks.
"""

from .plan import backends, plan
from .problem import LQR, ModulatedLQR, Solution
from .solve import solve

__all__ = ["LQR", "ModulatedLQR", "Solution", "backends", "plan", "solve"]
