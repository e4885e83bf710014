"""A user's dynamics and costs at all problems and steps at once, and their derivatives.

The functions are written for one state (n,) and one action (m,); torch.func.vmap calls them for all. In here, problems
are the first dimension and steps the second.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..errors import TTCNetError
from . import checks
from .arithmetic import apply

Function = Callable[..., Tensor]


class Quadratic(NamedTuple):
    """The functions around a trajectory: slopes and curvature over (h, u), and those of the terminal cost over h."""

    A: Tensor
    B: Tensor
    slope: Tensor
    curvature: Tensor
    final_slope: Tensor
    final_curvature: Tensor


@dataclass(frozen=True)
class Functions:
    """Dynamics, cost and terminal cost of a batch of problems over T steps.

    `leaves` are the parameters, (P or 1, T+1 or 1, ...); `tree` puts them together as the user gave them.
    """

    dynamics: Function
    cost: Function
    terminal: Function | None
    leaves: list[Tensor]
    tree: Any
    horizon: int

    @classmethod
    def of(
        cls, dynamics: Function, cost: Function, terminal: Function | None, params: Any, batch: torch.Size, T: int
    ) -> Functions:
        leaves, tree = ([], None) if params is None else tree_flatten(params)
        lead, flat = len(batch), []
        for x in leaves:
            shared = all(size == 1 for size in x.shape[:lead])
            spread = x if shared else x.expand(*batch, *x.shape[lead:])
            flat.append(spread.reshape(1 if shared else batch.numel(), *x.shape[lead:]))
        return cls(dynamics, cost, terminal, flat, tree, T)

    def some(self, index: Tensor) -> Functions:
        """The functions of some of the problems, in any order, repeated or not."""
        return replace(self, leaves=[x if x.shape[0] == 1 else x[index] for x in self.leaves])

    def detached(self) -> Functions:
        return replace(self, leaves=[x.detach() for x in self.leaves])

    def next_state(self, h: Tensor, u: Tensor, first: int = 0) -> Tensor:
        """The states (P, S, n) after the steps first..first+S-1."""
        return self._call(_returning("dynamics", self.dynamics, h.shape[-1:]), first, h, u)

    def costs(self, h: Tensor, u: Tensor) -> Tensor:
        """The costs of every step and of the last state, (P, T+1); h is (P, T+1, n)."""
        steps = self._call(self._cost, 0, h[:, :-1], u)
        if self.terminal is None:
            return torch.cat([steps, torch.zeros_like(steps[:, :1])], -1)
        return torch.cat([steps, self._call(self._terminal, self.horizon, h[:, -1:])], -1)

    def rollout(self, h0: Tensor, act: Callable[[int, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Follow the dynamics from h0. Returns actions and states; act(t, h) chooses the actions."""
        states, actions = [h0], []
        for t in range(self.horizon):
            actions.append(act(t, states[-1]))
            states.append(self.next_state(states[-1].unsqueeze(1), actions[-1].unsqueeze(1), t).squeeze(1))
        return torch.stack(actions, 1), torch.stack(states, 1)

    def expand(self, h: Tensor, u: Tensor, costate: Tensor | None = None) -> Quadratic:
        """Expand dynamics and costs to second order. If co-states (P, T, n) are given, the curvature of the dynamics
        counts too, weighted by them."""
        n, x = h.shape[-1], torch.cat([h[:, :-1], u], -1)

        def step(x: Tensor, *params: Any) -> Tensor:
            return _returning("dynamics", self.dynamics, torch.Size((n,)))(x[:n], x[n:], *params)

        def cost(x: Tensor, *params: Any) -> Tensor:
            return self._cost(x[:n], x[n:], *params)

        def weighed(x: Tensor, weights: Tensor, *params: Any) -> Tensor:
            return cost(x, *params) + (weights * step(x, *params)).sum()

        jacobian, slope = self._call(jacrev(step), 0, x), self._call(grad(cost), 0, x)
        if costate is None:
            curvature = self._call(jacrev(grad(cost)), 0, x)
        else:
            curvature = self._call(jacrev(grad(weighed)), 0, x, costate)
        if self.terminal is None:
            ends = torch.zeros_like(h[:, -1]), torch.zeros_like(h[:, -1, None] * h[:, -1, :, None])
        else:
            last = h[:, -1:]
            ends = tuple(
                self._call(f, self.horizon, last).squeeze(1)
                for f in (grad(self._terminal), jacrev(grad(self._terminal)))
            )
        return Quadratic(jacobian[..., :n], jacobian[..., n:], slope, curvature, *ends)

    def conditions(self, h: Tensor, u: Tensor, costate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The optimality conditions, zero at a solution, at h_0..h_T, u_1..u_T and λ_1..λ_T: the derivatives of the
        Lagrangian over u and h, and the dynamics. Differentiable with respect to parameters."""

        def lagrangian(h: Tensor, u: Tensor, weights: Tensor, *params: Any) -> Tensor:
            return self._cost(h, u, *params) + (weights * self.dynamics(h, u, *params)).sum()

        before = h[:, :-1]
        over_h, over_u = self._call(grad(lagrangian, argnums=(0, 1)), 0, before, u, costate)
        last = torch.zeros_like(h[:, -1:])
        if self.terminal is not None:
            last = self._call(grad(self._terminal), self.horizon, h[:, -1:])
        return over_u, torch.cat([over_h[:, 1:], last], 1) - costate, self.next_state(before, u) - h[:, 1:]

    def first_costate(self, h: Tensor, u: Tensor, costate: Tensor) -> Tensor:
        """λ_0, (P, n), from h_0, u_1 and λ_1."""

        def ahead(h: Tensor, u: Tensor, weights: Tensor, *params: Any) -> Tensor:
            return self._cost(h, u, *params) + (weights * self.dynamics(h, u, *params)).sum()

        return self._call(grad(ahead), 0, h.unsqueeze(1), u.unsqueeze(1), costate.unsqueeze(1)).squeeze(1)

    def _cost(self, h: Tensor, u: Tensor, *params: Any) -> Tensor:
        return _returning("cost", self.cost, torch.Size())(h, u, *params)

    def _terminal(self, h: Tensor, *params: Any) -> Tensor:
        assert self.terminal is not None
        return _returning("terminal", self.terminal, torch.Size())(h, *params)

    def _call(self, function: Callable[..., Any], first: int, *points: Tensor) -> Any:
        """Call `function` at points (P, S, k) of the steps from `first` on."""
        count, steps = points[0].shape[:2]
        dims: list[int | None] = []
        flat = []
        for x in self.leaves:
            now = x if x.shape[1] == 1 else x[:, first : first + steps]
            alone = now.shape[:2] == (1, 1)
            flat.append(now[0, 0] if alone else now.expand(count, steps, *now.shape[2:]).flatten(0, 1))
            dims.append(None if alone else 0)
        extra = () if self.tree is None else (tree_unflatten(flat, self.tree),)
        where = () if self.tree is None else (tree_unflatten(dims, self.tree),)
        out = vmap(function, in_dims=(*(0 for _ in points), *where))(*(x.flatten(0, 1) for x in points), *extra)
        if isinstance(out, tuple):
            return tuple(x.unflatten(0, (count, steps)) for x in out)
        return out.unflatten(0, (count, steps))


def _returning(name: str, function: Function, shape: torch.Size) -> Function:
    def checked(point: Tensor, *others: Any) -> Tensor:
        try:
            out = function(point, *others)
        except TTCNetError:
            raise
        except (TypeError, IndexError, ValueError, RuntimeError) as error:
            _explain(name, function, error, (point, *others))
        if not isinstance(out, Tensor):
            checks.fail(name, "must return a tensor", type(out).__name__, "Compute it with torch.", "type")
        if out.shape != shape:
            rule = f"must return shape {tuple(shape)} for a state of shape {tuple(point.shape)}"
            remedy = "Write it for one state and one action, without batch dimensions: ilqr calls it for all of them."
            checks.fail(name, rule, tuple(out.shape), remedy, "shape")
        if out.dtype != point.dtype:
            remedy = "Give its constants the dtype of the state: torch.tensor(..., dtype=h.dtype)."
            checks.fail(name, f"must return the dtype of h0, {point.dtype}", out.dtype, remedy, "dtype")
        return out

    return checked


def _explain(name: str, function: Function, error: Exception, given: tuple[Any, ...]) -> NoReturn:
    """Raise the error of a user's function as ours, if its cause is one that users of ilqr meet."""
    said = str(error).partition("\n")[0][:200]
    try:
        inspect.signature(function).bind(*given)
    except TypeError:
        names = ("h", "params") if name == "terminal" else ("h", "u", "params")
        called = ", ".join(names[: len(given)])
        remedy = "Functions get params as their last argument if, and only if, ilqr was given params=."
        checks.fail(name, f"must take the arguments ({called})", said, remedy, "type")
    except ValueError:
        pass  # a function without a signature
    if isinstance(error, RuntimeError) and "vmap" in said:
        rule = "must be made of torch functions alone, without Python's `if` on values, .item(), float() or numpy"
        checks.fail(name, rule, said, "Use torch.where in place of `if`, and tensors in place of numbers.", "type")
    if isinstance(error, RuntimeError) and "dtype" in said:
        remedy = "Give its constants the dtype of the state: torch.tensor(..., dtype=h.dtype)."
        checks.fail(name, f"must compute in the dtype of h0, {given[0].dtype}", said, remedy, "dtype")
    if isinstance(error, IndexError) or (isinstance(error, RuntimeError) and ("size" in said or "shape" in said)):
        shapes = ", ".join(str(tuple(x.shape)) for x in given if isinstance(x, Tensor))
        rule = f"must take one state and one action, without batch dimensions: shapes {shapes}"
        checks.fail(name, rule, said, "Write h[0] for h[:, 0]: ilqr calls it for all problems and steps.", "shape")
    raise error


def backwards(model: Quadratic) -> Tensor:
    """The co-states λ_1..λ_T, (P, T, n), of the trajectory itself, optimal or not."""
    n = model.A.shape[-1]
    costates = [model.final_slope]
    for A, slope in zip(model.A.unbind(1)[:0:-1], model.slope[..., :n].unbind(1)[:0:-1], strict=True):
        costates.append(slope + apply(A.mT, costates[-1]))
    return torch.stack(costates[::-1], 1)


def convex(curvature: Tensor) -> Tensor:
    """The matrices with negative eigenvalues raised to (nearly) zero."""
    size = torch.diagonal(curvature, dim1=-2, dim2=-1).abs().amax(-1)
    least = torch.finfo(curvature.dtype).eps ** 0.625 * size  # 2e-10 in float64, 5e-5 in float32
    shift = torch.diag_embed(least.unsqueeze(-1).expand(curvature.shape[:-1]))
    bad = torch.linalg.cholesky_ex(curvature + shift)[1] != 0
    if not bad.any():
        return curvature
    values, vectors = torch.linalg.eigh(torch.where(curvature[bad].isfinite(), curvature[bad], 0))
    mended = curvature.clone()
    mended[bad] = (vectors * values.clamp_min(least[bad].unsqueeze(-1)).unsqueeze(-2)) @ vectors.mT
    return mended
