"""The search behind ilqr: all problems of a batch side by side.

An iteration expands the dynamics to first order and the costs to second (Gauss-Newton). Near the solution that is slow,
so both are expanded to second order there. quadratic_step.py finds the minimum of this model within the bounds, by
`solve`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import checks
from .arithmetic import apply
from .expansion import Functions, Quadratic, backwards
from .quadratic_step import Step, bend, mended, put, regularised, toward, towards_minimum
from .status import Status, unfinished

SHORTER = 0.5 ** torch.arange(1, 11)  # steps to try if a whole one does not lower the cost enough
LONGER = 2.0 ** torch.arange(1, 6)  # and if it lowers the cost more than the model expects
SHORT = 0.1  # steps of up to this length call for regularisation
NEAR = 0.1  # below this residual the curvature of the dynamics counts
ENOUGH = 1e-4  # least share of the decrease that the slope predicts
LEAST, MOST = 1e-3, 1e7  # regularisation: the first over the curvature of the cost to go, the last over the first
LEAPS = (1e-3, 1e-2, 1e-1)  # away from points without slope that are no minima, over the size of the actions
SMALL = 1e-3  # of the tolerance: the predicted decrease at a solution, over the cost
PATIENCE = 10  # iterations whose gain is lost in the rounding of the cost, and that come no nearer to a solution


class Setting(NamedTuple):
    """The inputs of `ilqr`, with all problems in one dimension; `crossed` and `broken` problems had bounds that cross
    or are NaN, and have none now."""

    functions: Functions
    h0: Tensor
    u: Tensor
    u_min: Tensor
    u_max: Tensor
    batch: torch.Size
    crossed: Tensor
    broken: Tensor


class Tried(NamedTuple):
    """Trajectories at the end of steps, and the lengths of these."""

    u: Tensor
    h: Tensor
    price: Tensor
    noise: Tensor
    length: Tensor


class Search:
    """The state of all problems of a batch, (P, ...), and an iteration of those that are under way."""

    def __init__(self, setting: Setting, tolerance: float) -> None:
        self.functions = setting.functions.detached()
        self.h0, self.u, self.low, self.high = (x.detach() for x in setting[1:5])
        self.batch, self.tolerance = setting.batch, tolerance
        count = self.h0.shape[0]
        self.status = torch.full((count,), int(Status.ITERATION_LIMIT), device=self.h0.device)
        self.status[setting.crossed] = int(Status.INFEASIBLE)
        self.status[setting.broken] = int(Status.NOT_FINITE)
        self.iterations = torch.zeros_like(self.status)
        self.residual = torch.full_like(self.h0[:, 0], torch.inf)
        self.nearest = self.residual.clone()
        self.mu, self.unit = torch.zeros_like(self.residual), torch.ones_like(self.residual)
        self.factor, self.patience = self.unit.clone(), torch.full_like(self.status, PATIENCE)
        self.leaps = torch.zeros_like(self.status)

    def start(self, check: bool) -> None:
        self.u = self.u.clamp(self.low, self.high)
        starts = self.u.unbind(1)
        _, self.h = self.functions.rollout(self.h0, lambda t, h: starts[t])
        costs = self.functions.costs(self.h, self.u)
        self.price, self.noise = costs.sum(-1), _noise(costs)
        self.bottom = -(1 + costs.abs().sum(-1)) / torch.finfo(costs.dtype).eps ** 2  # no minimum lies below
        self.costate, self.held_low = torch.zeros_like(self.h[:, 1:]), torch.zeros_like(self.u, dtype=torch.bool)
        self.held_high, self.K = self.held_low.clone(), self.u.unsqueeze(-1) * self.h[:, :-1].unsqueeze(-2)
        bad = ~(self.price.isfinite() & self.h.isfinite().flatten(1).all(-1))
        self.status[bad] = int(Status.NOT_FINITE)
        if check and bad.any():
            self._explain(bad, costs)

    def _explain(self, bad: Tensor, costs: Tensor) -> None:
        place = int(bad.nonzero()[0, 0])
        which = f"problem {checks.first(bad.reshape(self.batch))} of the batch" if self.batch else "the problem"
        steps = (~self.h[place].isfinite().all(-1)).nonzero()
        if not len(steps):
            late = int((~costs[place].isfinite()).nonzero()[0, 0])
            field, where = ("terminal", "") if late == self.functions.horizon else ("cost", f" at step {late + 1}")
        elif int(steps[0]) == 0:
            field, where = "h0", ""
        else:
            field, where = "dynamics", f" at step {int(steps[0])}"
        remedy = "Start from other actions (u=), mend the function, or pass check=False to solve the others."
        checks.fail(field, "must be finite along the first trajectory", f"NaN or infinity{where} in {which}", remedy, "not-finite")  # noqa: E501  # fmt: skip

    def measure(self, last: bool = False) -> tuple[Tensor, Functions, Step]:
        """The problems under way and their next steps; ends those that have converged. Those at a point without slope
        that is no minimum leave it, unless there is no iteration left."""
        live = unfinished(self.status)
        functions, h, u, low, high = (
            self.functions.some(live),
            *(x[live] for x in (self.h, self.u, self.low, self.high)),
        )
        model, extra = functions.expand(h, u), self.mu[live] * self.unit[live]
        slope = model.slope[..., h.shape[-1] :] + apply(model.B.mT, backwards(model))
        step = towards_minimum(mended(model, extra), slope, u, low, high)
        step = step._replace(scale=step.scale.maximum(bend(model)))
        residual = torch.where(step.residual.isnan(), torch.inf, step.residual)  # the model has no minimum: regularise
        self.residual[live], self.costate[live], self.K[live] = residual, step.costate, step.K
        nearer = residual < 0.9 * self.nearest[live]
        self.nearest[live] = torch.where(nearer, residual, self.nearest[live])
        self.patience[live[nearer]] = PATIENCE
        self.held_low[live], self.held_high[live] = step.low & (u <= low), step.high & (u >= high)
        broken = ~torch.stack([x.flatten(1).isfinite().all(-1) for x in model]).all(0)
        self.status[live[broken]] = int(Status.NOT_FINITE)
        near = ((residual < NEAR) & ~broken).nonzero().squeeze(-1)
        if len(near):
            there, part = live[near], Step(*(x[near] for x in step))
            exact = functions.some(near).expand(h[near], u[near], part.costate)
            still = residual[near] <= self.tolerance
            still &= part.promise.abs() <= (SMALL * self.tolerance * _size(self.noise[there])).maximum(
                self.noise[there]
            )
            minimum = self._is_minimum(exact, there, part, slope[near]) if still.any() else still
            self.status[there[still & minimum]] = int(Status.CONVERGED)
            other = towards_minimum(regularised(exact, extra[near]), slope[near], u[near], low[near], high[near])
            fine = torch.cat([x.flatten(1) for x in other[:3]], -1).isfinite().all(-1) & (other.promise < 0)
            put(step, near[fine], Step(*(x[fine] for x in other)))
            if not last:
                self._leap(there[still & ~minimum])
                residual[near[still & ~minimum]] = -1
        on = ((self.status[live] == Status.ITERATION_LIMIT) & (residual >= 0)).nonzero().squeeze(-1)
        return live[on], functions.some(on), Step(*(x[on] for x in step))

    def _is_minimum(self, exact: Quadratic, live: Tensor, step: Step, slope: Tensor) -> Tensor:
        """Whether the cost curves upwards, or not at all, along all actions that are free to move."""
        low, high = self.held_low[live], self.held_high[live]
        little = torch.finfo(slope.dtype).eps ** 0.5 * step.scale.nan_to_num()
        found = toward(regularised(exact, little), low, high, torch.zeros_like(slope), slope, self.u[live])
        return found.K.flatten(1).isfinite().all(-1)

    def _leap(self, live: Tensor) -> None:
        """Move some problems a little, in a direction of no meaning, the same for all; slopes lead further away."""
        if not len(live):
            return
        low, high = self.low[live], self.high[live]
        size = torch.where((high - low).isfinite(), high - low, 1 + self.u[live].abs())
        way = torch.randn(size.shape[1:], generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(size)
        share = torch.tensor((*LEAPS, 0.0)).to(size)[self.leaps[live]]
        move = (share[:, None, None] * size * way).unbind(1)
        u, h, K, least, most = (x.unbind(1) for x in (self.u[live], self.h[live], self.K[live].nan_to_num(), low, high))

        def act(t: int, now: Tensor) -> Tensor:
            return (u[t] + move[t] + apply(K[t], now - h[t])).clamp(least[t], most[t])

        functions = self.functions.some(live)
        actions, states = functions.rollout(h[0], act)
        costs = functions.costs(states, actions)
        stuck = ~costs.isfinite().all(-1) | (self.leaps[live] == len(LEAPS))
        self.status[live[stuck]] = int(Status.STALLED)
        live, fine = live[~stuck], ~stuck
        self.u[live], self.h[live] = actions[fine], states[fine]
        self.price[live], self.noise[live] = costs[fine].sum(-1), _noise(costs[fine])
        self.leaps[live] += 1
        self.iterations[live] += 1
        self.nearest[live], self.patience[live] = torch.inf, PATIENCE

    def iterate(self) -> bool:
        """One step of every problem under way; False if there is none left."""
        if not len(unfinished(self.status)):
            return False
        live, functions, step = self.measure()
        if not len(live):
            return bool(len(unfinished(self.status)))
        self.iterations[live] += 1
        self.unit[live] = torch.where(step.scale.isfinite(), LEAST * step.scale, self.unit[live])
        lost = self._lost(live, step.promise)
        self.patience[live] -= lost.to(self.patience.dtype)
        best = self._roll(live, functions, step, torch.ones(1).to(step.d))
        # a right model gains half of the decrease that its slope predicts; one that bends too much gains more
        eager = (self.price[live] - best.price > 0.75 * step.promise.abs()) & ~lost
        for some, lengths in ((best.price == torch.inf, SHORTER), (eager, LONGER)):
            rows = some.nonzero().squeeze(-1)
            if len(rows):
                part = Step(*(x[rows] for x in step))
                other = self._roll(live[rows], functions.some(rows), part, lengths.to(step.d))
                better = other.price < best.price[rows]
                for x, y in zip(best, other, strict=True):
                    x[rows[better]] = y[better]
        good = best.price < torch.inf
        at = live[good]
        self.u[at], self.h[at], self.price[at], self.noise[at] = (x[good] for x in best[:4])
        self._regularise(live, good & (best.length > SHORT))
        self.status[at[self.price[at] < self.bottom[at]]] = int(Status.NO_MINIMUM)
        return True

    def _lost(self, live: Tensor, promise: Tensor) -> Tensor:
        """Whether the predicted decrease of a step is lost in the rounding of the cost."""
        return promise.abs() <= self.noise[live]

    def _regularise(self, live: Tensor, good: Tensor) -> None:
        """Less after a good step and more after a bad one, faster and faster (Tassa, Erez and Todorov 2012)."""
        factor, mu = self.factor[live], self.mu[live]
        factor = torch.where(good, (factor / 2).clamp_max(0.5), (factor * 2).clamp_min(2))
        mu = torch.where(good, torch.where(mu * factor > 1, mu * factor, 0), (mu * factor).clamp_min(1))
        self.mu[live], self.factor[live] = mu, factor
        self.status[live[(mu > MOST) | (self.patience[live] < 0)]] = int(Status.STALLED)

    def _roll(self, live: Tensor, functions: Functions, step: Step, lengths: Tensor) -> Tried:
        """Follow the feedback of every step with these lengths, and return the one that lowers the cost most; its cost
        is infinite if none lowers it enough."""
        ways, count = len(lengths), len(live)
        many = torch.arange(count, device=live.device).repeat(ways)
        length, at = lengths.repeat_interleave(count), live[many]
        u, h, low, high = (x[at].unbind(1) for x in (self.u, self.h, self.low, self.high))
        Ks, ks = step.K[many].unbind(1), (length[:, None, None] * step.k[many]).unbind(1)

        def act(t: int, now: Tensor) -> Tensor:
            return (u[t] + ks[t] + apply(Ks[t], now - h[t])).clamp(low[t], high[t])

        actions, states = functions.some(many).rollout(h[0], act)
        costs = functions.some(many).costs(states, actions)
        price, promise = costs.sum(-1), step.promise[many]
        slack = torch.where(self._lost(at, promise), 100 * self.noise[at], 0)  # costs may cancel within themselves
        enough = (promise < 0) & (price <= self.price[at] + ENOUGH * length * promise + slack)
        price = torch.where(enough, price, torch.inf)
        rows = price.reshape(ways, -1).argmin(0) * count + torch.arange(count, device=live.device)
        return Tried(actions[rows], states[rows], price[rows], _noise(costs)[rows], length[rows])


def _noise(costs: Tensor) -> Tensor:
    """The rounding error of a sum of costs."""
    return 16 * torch.finfo(costs.dtype).eps * costs.abs().sum(-1)


def _size(noise: Tensor) -> Tensor:
    """The sum of the sizes of the costs, from its rounding error."""
    return noise / (16 * torch.finfo(noise.dtype).eps)
