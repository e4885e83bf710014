"""solve as one compiled forward pass and one backward pass (kernels/dense_cpu.py, kernels/dense_cuda.py), as a function
that torch can differentiate.

The backward pass is the adjoint problem of adjoint.py, with all products summed on the way. If it is differentiated
itself, and under torch.func, it is written in terms of the solve instead, as for every method. Only the problems that
lost more digits than they can spare are solved again, by riccati.py in plain PyTorch.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from . import feedback, riccati
from .adjoint import Terms, adjoint_terms, completed, products, tangent_terms, transformed, with_q0
from .arithmetic import apply, full_precision, symmetrise, working_dtype
from .kernels import dense_cpu, dense_cuda
from .problem import LQR
from .steps import largest_pivot

FIELDS = dense_cpu.FIELDS
PASSES: dict[str, Any] = {"cpu": dense_cpu, "cuda": dense_cuda}  # by the device of a problem
Fields = tuple[Tensor | None, ...]


CAREFULLY = 0.0  # the limit of steps.descend that no problem keeps to


class Found(NamedTuple):
    u: Tensor
    h: Tensor
    costate: Tensor
    cost: Tensor
    feedback: tuple[Tensor, ...] = ()
    compiled: bool = True  # whether no problem had to be solved again in PyTorch


def obstacle(problem: LQR) -> str | None:
    """Why the compiled passes cannot solve this problem, or None if they can."""
    device, n, m = problem.h0.device, problem.state_size, problem.action_size
    if device.type not in PASSES:
        return f"they run on the CPU and on CUDA devices, and the problem is on the device {device}"
    passes = PASSES[device.type]
    if max(n, m) > passes.LARGEST:
        return f"they hold up to {passes.LARGEST} states and actions, and this problem has {max(n, m)}"
    if problem.horizon == 0:
        return "there is no step to solve"
    if torch.compiler.is_compiling() or any(type(x) not in (Tensor, Parameter) for x in problem.given().values()):
        return "they take plain tensors, outside of torch.compile"
    found: str | None = passes.obstacle(n, m, working_dtype(problem.h0.dtype), device)
    return found


@cache
def tell(why: str) -> None:
    """Logs that `solve` runs step by step, once for each reason."""
    logging.getLogger("ttcnet").warning(
        "ttcnet: solve runs step by step in PyTorch. Its compiled passes cannot: %s.", why
    )


def solve(problem: LQR, gains: bool) -> Found:
    """The solution, in the dtype of the problem, or float32 for smaller dtypes."""
    problem = problem.as_matrices()
    dtype = working_dtype(problem.h0.dtype)
    fields = tuple(None if x is None else x.to(dtype) for x in (getattr(problem, name) for name in FIELDS))
    if transformed():
        found = Found(*_TransformedDense.apply(problem.horizon, *fields))
        return found if not gains else found._replace(feedback=_feedback(problem, dtype))
    if not torch.is_grad_enabled() or not any(x is not None and x.requires_grad for x in fields):
        return _solve(fields, problem.horizon, gains, False)[0]
    notes: list[bool] = []
    u, h, costate, cost, *values = _Dense.apply(problem.horizon, gains, notes, *fields)
    K, k, P, p = values
    more = feedback.differentiable(_standard(problem, dtype), (K, k, P, p)) if gains else ()
    return Found(u, h, costate, cost, more, all(notes))


def _standard(problem: LQR, dtype: torch.dtype) -> Terms:
    whole = problem.standard_form(dtype)
    return Terms(*(getattr(whole, name) for name in Terms._fields))


def _feedback(problem: LQR, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Gains and values under torch.func, by riccati.py."""
    terms = _standard(problem, torch.float64)
    with torch.no_grad(), full_precision(terms.h0.device):
        factors = riccati.factorise(terms.A, terms.B, terms.Q, terms.R, terms.N, largest_pivot(dtype, torch.float64))
        found = riccati.feedback(factors, terms.h0, terms.r, with_q0(terms.q), terms.c)
    return tuple(x.to(dtype) for x in feedback.differentiable(terms, found))


def _batch(fields: Fields) -> torch.Size:
    lead = fields[4].ndim - 1  # type: ignore[union-attr]
    return torch.broadcast_shapes(*(x.shape[:lead] for x in fields if x is not None))


class Group(NamedTuple):
    """Problems that are solved alike: their places (None for all), the dtype (None for riccati.py), the kept
    tensors."""

    which: Tensor | None
    work: torch.dtype | None
    kept: Any = None


# By how many roundings of a sum of n + m terms an optimality condition may be violated. A larger violation means that
# P has lost digits that actions need. If few actions hold unstable dynamics, that happens long before d is large.
ROUNDINGS = 16.0
# The largest d for which the compiled passes are good enough, by the dtypes of the problem and of the work. With their
# refinement they lose digits only if several actions have the same effect, about one for a factor of 100. In float32,
# digits that are lost where no d is large count as a d (HIDDEN of dense_cpu_steps.py). In float64 they do not, because
# riccati.py, which comes next, loses as many.
WAYS = {
    torch.float32: ((torch.float32, 1e3), (torch.float64, 1e9)),
    torch.float64: ((torch.float64, 1e4),),
}


@torch.no_grad()
def _solve(fields: Fields, horizon: int, gains: bool, keep: bool) -> tuple[Found, tuple[Any, list[Group]]]:
    """The solution, and the groups that the backward pass needs."""
    batch, like = _batch(fields), fields[4]
    assert like is not None
    passes, roundings = PASSES[like.device.type], ROUNDINGS * math.sqrt(sum(fields[1].shape[-2:]))  # type: ignore[union-attr]
    given = passes.read({name: x for name, x in zip(FIELDS, fields, strict=True) if x is not None}, batch, horizon)
    found: dict[str, Tensor] = {}
    groups: list[Group] = []
    index: Tensor | None = None
    for work, limit in WAYS[like.dtype]:
        out, kept, lost, unmet = passes.forward(given.of(index), work, keep and index is None, gains)
        if index is None:
            found = out
        else:
            for name, x in found.items():
                x[index] = out[name]
        fine = (lost <= limit) & (unmet <= roundings * torch.finfo(like.dtype).eps)  # not NaN
        if bool(fine.all()):
            groups.append(Group(index, work, kept))
            index = None
            break
        easy, hard = fine.nonzero().squeeze(-1), (~fine).nonzero().squeeze(-1)
        groups.append(Group(easy if index is None else index[easy], work))
        index = hard if index is None else index[hard]
    if index is not None:
        groups.append(Group(index, None))
        _again(fields, batch, horizon, index, found, gains)
    u, h, costate, cost, *more = (x.reshape(batch + x.shape[1:]) for x in found.values())
    return Found(u, h, costate, cost, tuple(more), groups[-1].work is not None), (given, groups)


def _some(fields: Fields, batch: torch.Size, index: Tensor) -> list[Tensor | None]:
    """The fields of some problems alone, in float64, with one leading dimension."""
    lead = len(batch)

    def pick(x: Tensor) -> Tensor:
        return x.expand(batch + x.shape[lead:]).reshape(-1, *x.shape[lead:])[index].double()

    return [None if x is None else pick(x) for x in fields]


def _again(
    fields: Fields, batch: torch.Size, horizon: int, index: Tensor, found: dict[str, Tensor], gains: bool
) -> None:
    """Put the solution by riccati.py of the problems `index` into `found`."""
    problem = LQR(**dict(zip(FIELDS, _some(fields, batch, index), strict=True)), horizon=horizon)  # type: ignore[arg-type]
    terms = _standard(problem, torch.float64)
    factors = riccati.factorise(terms.A, terms.B, terms.Q, terms.R, terms.N, CAREFULLY)
    right = (terms.h0, terms.r, with_q0(terms.q), terms.c)
    u, h, costate = riccati.substitute(factors, *right)
    parts = {"u": u, "h": h, "costate": costate, "cost": problem.objective(u, h)}
    if gains:
        parts |= dict(zip(("K", "k", "P", "p"), riccati.feedback(factors, *right), strict=True))
    for name, x in parts.items():
        found[name][index] = x.to(found[name].dtype)


def _by_riccati(horizon: int, fields: Fields) -> tuple[Tensor, Tensor, Tensor]:
    problem = LQR(**dict(zip(FIELDS, fields, strict=True)), horizon=horizon)  # type: ignore[arg-type]
    A, B, Q, R, h0, r, q, c, N = _standard(problem, torch.float64)
    factors = riccati.factorise(A, B, Q, R, N, CAREFULLY)
    return riccati.substitute(factors, h0, r, with_q0(q), c)


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, horizon: int, gains: bool, notes: list[bool], *fields: Any) -> Any:
        found, ctx.made = _solve(fields, horizon, gains, True)
        notes.append(found.compiled)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*found[:3], *fields)
        ctx.horizon = horizon
        more = found.feedback or tuple(found.u.new_empty(0) for _ in range(4))
        ctx.mark_non_differentiable(*more)  # feedback.py has their gradients
        return *found[:4], *more

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        u, h, costate, *fields = ctx.saved_tensors
        if all(g is None for g in grads[:4]):
            return (None,) * (3 + len(fields))
        wanted = tuple(name for name, want in zip(FIELDS, ctx.needs_input_grad[3:], strict=True) if want)
        if torch.is_grad_enabled():
            found = _in_torch(ctx.horizon, fields, (u, h, costate), grads[:4], _by_compiled)
            return None, None, None, *(x if name in wanted else None for name, x in zip(FIELDS, found, strict=True))
        totals = _gradients(ctx.horizon, ctx.made, tuple(fields), (u, h, costate), grads[:4], wanted)
        return None, None, None, *(totals.get(name) for name in FIELDS)


def _gradients(
    horizon: int, made: tuple[Any, list[Group]], fields: Fields, point: Any, grads: Any, wanted: tuple[str, ...]
) -> dict[str, Tensor]:
    """Gradients by the compiled pass, group by group."""
    (given, groups), batch, dtype = made, _batch(fields), point[0].dtype
    passes = PASSES[point[0].device.type]

    def flat(x: Tensor | None, last: int) -> Tensor | None:
        return None if x is None else x.detach().to(dtype).reshape(-1, *x.shape[x.ndim - last :]).contiguous()

    points = tuple(flat(x, 2) for x in point)
    slopes = tuple(flat(g, 2 if k < 3 else 0) for k, g in enumerate(grads))
    totals: dict[str, Tensor] = {}
    for index, work, kept in groups:
        some = [None if x is None else x if index is None else x[index] for x in (*points, *slopes)]
        if work is None:
            assert index is not None
            tensors = [None if x is None else x.double() for x in some]
            found = _in_torch(horizon, _some(fields, batch, index), tensors[:3], tensors[3:], _by_riccati)
            parts = {name: x for name, x in zip(FIELDS, found, strict=True) if x is not None}
        else:
            parts = passes.backward(given.of(index), work, kept, some[:3], some[3:], wanted)
        for name in wanted:
            _put(totals, name, parts[name], index, given, dtype)
    lead, result = len(batch), {}
    for name, x in zip(FIELDS, fields, strict=True):
        if name in wanted and x is not None:
            front = [1] * lead if given.forms[name][0] else list(batch)
            grad = totals[name].reshape((*front, *x.shape[lead:]))
            result[name] = grad.sum_to_size(x.shape).to(x.dtype)
    return result


def _put(
    totals: dict[str, Tensor], name: str, part: Tensor, index: Tensor | None, given: Any, dtype: torch.dtype
) -> None:
    """Put a group's gradient of a field into that of all problems."""
    if given.forms[name][0]:
        part = part.sum(0, keepdim=True)
        totals[name] = totals[name] + part.reshape(totals[name].shape) if name in totals else part
    elif index is None:
        totals[name] = part
    else:
        if name not in totals:
            totals[name] = part.new_empty((given.problems, *part.shape[1:]), dtype=dtype)
        totals[name][index] = part.reshape(len(index), *totals[name].shape[1:]).to(dtype)


Solver = Callable[[int, Fields], tuple[Tensor, Tensor, Tensor]]


def _by_compiled(horizon: int, fields: Fields) -> tuple[Tensor, Tensor, Tensor]:
    if any(x is not None and x.requires_grad for x in fields) and torch.is_grad_enabled():
        return _Dense.apply(horizon, False, [], *fields)[:3]
    return _solve(fields, horizon, False, False)[0][:3]


def _by_transformed(horizon: int, fields: Fields) -> tuple[Tensor, Tensor, Tensor]:
    return _TransformedDense.apply(horizon, *fields)[:3]


def _in_torch(horizon: int, fields: Any, point: Any, grads: Any, again: Solver) -> list[Tensor | None]:
    """The gradients of all fields, in operations that can be differentiated again."""
    du, dh, dcostate, dcost = grads
    zero = [torch.zeros_like(x) if g is None else g for x, g in zip(point, (du, dh, dcostate), strict=True)]
    A, B, Q, R, _, _, _, _, N, Qf = fields
    adjoint = adjoint_terms(Terms(A, B, Q, R, None, N=N), *zero)
    found = completed(again(horizon, (*adjoint, Qf)), zero[1])
    total = products(point, found)
    if dcost is not None:  # the cost moves with its own terms alone, at the optimum
        g = dcost[..., None]
        own = products(point, point)
        halves = {name: 0.5 * g[..., None, None] * getattr(own, name) for name in ("A", "B", "Q", "R", "N")}
        linear = {name: g[..., None] * getattr(own, name) for name in ("r", "q", "c")}
        more = Terms(**halves, **linear, h0=g * own.h0)
        total = Terms(*(x + y for x, y in zip(total, more, strict=True)))
    grads_Q, end = total.Q, None
    if Qf is not None:
        grads_Q, end = total.Q[..., :-1, :, :], total.Q[..., -1, :, :]
    every = (*total._replace(Q=grads_Q), end)
    return [None if x is None else y.sum_to_size(x.shape) for x, y in zip(fields, every, strict=True)]


class _TransformedDense(torch.autograd.Function):
    """The solve under torch.func and in forward mode: a mapped dimension leads the batch."""

    @staticmethod
    def forward(horizon: int, *fields: Any) -> Any:
        return tuple(_solve(fields, horizon, False, False)[0][:4])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.horizon, *fields = inputs
        ctx.save_for_backward(*output[:3], *fields)
        ctx.save_for_forward(*output[:3], *fields)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        u, h, costate, *fields = ctx.saved_tensors
        return None, *_in_torch(ctx.horizon, fields, (u, h, costate), grads, _by_transformed)

    @staticmethod
    def vmap(info: Any, dims: Any, horizon: int, *fields: Any) -> Any:
        moved = [
            None if x is None else x.unsqueeze(0) if d is None else x.movedim(d, 0)
            for x, d in zip(fields, dims[1:], strict=True)
        ]
        found = _TransformedDense.apply(horizon, *moved)
        return found, (0,) * len(found)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        u, h, costate, *fields = ctx.saved_tensors
        A, B, Q, R, _, _, _, _, N, Qf = fields
        moved, end = Terms(*tangents[:-1]), tangents[-1]
        if Qf is not None and (moved.Q is not None or end is not None):  # as one Q for every step
            lead, T = Qf.ndim - 2, ctx.horizon
            dQ = torch.zeros_like(Q) if moved.Q is None else moved.Q
            end = torch.zeros_like(Qf) if end is None else end
            dQ = dQ.expand(*dQ.shape[:lead], T - 1, *dQ.shape[lead + 1 :])
            parts = torch.broadcast_shapes(dQ.shape[:lead], end.shape[:lead])
            ends = end.unsqueeze(lead).expand(*parts, 1, -1, -1)
            moved = moved._replace(Q=torch.cat([dQ.expand(*parts, -1, -1, -1), ends], lead))
        terms = Terms(A, B, Q, R, None, N=N)
        right, first = tangent_terms(terms, (u, h, costate), moved)
        du, dh, dcostate = _by_transformed(ctx.horizon, (*right, Qf))
        own = [torch.zeros_like(costate[..., 0])[..., 0]]
        before, after, lam = h[..., :-1, :], h[..., 1:, :], costate[..., 1:, :]
        for d, x, y in ((moved.A, lam, before), (moved.B, lam, u), (moved.N, before, u)):
            if d is not None:
                own.append((x * apply(d, y)).sum((-2, -1)))
        for d, x in ((moved.Q, after), (moved.R, u)):
            if d is not None:
                own.append(0.5 * (x * apply(symmetrise(d), x)).sum((-2, -1)))
        for d, x in ((moved.r, u), (moved.q, after), (moved.c, lam)):
            if d is not None:
                own.append((d * x).sum((-2, -1)))
        if moved.h0 is not None:
            own.append((moved.h0 * costate[..., 0, :]).sum(-1))
        dcostate = torch.cat([dcostate[..., :1, :] + first, dcostate[..., 1:, :]], -2)
        return du, dh, dcostate, torch.stack(torch.broadcast_tensors(*own)).sum(0)
