"""plan(): the one door to the solvers of modulated families."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from . import checks, recursion
from .adjoint import refuse_second_derivatives
from .arithmetic import full_precision, working_dtype
from .problem import ModulatedLQR
from .solve import solve


def plan(family: ModulatedLQR, horizon: int, backend: str = "auto", *, check: bool | None = None) -> Tensor:
    """The first optimal action of every problem of `family` over `horizon` steps, (N, H, m).

    Differentiable once with respect to every field. A horizon of 0 plans nothing and returns zeros.

    Args:
        family: the problems. Half precision is planned in float32 and returned in half precision.
        horizon: the number of steps to look ahead, 0 or more.
        backend: "reference" (the stable recursion in PyTorch, any device), "symplectic" (the paper's iteration; for
            comparison), or "auto", the fastest that is exact here. `backends()` tells what can run on this machine.
        check: whether to check values (finite, signs, symmetry). None checks on the CPU and not on a GPU, where
            reading values would make the host wait. Unchecked, a NaN or an indefinite cost stays in its own problem
            and makes that problem's action NaN.

    Raises:
        ValueError, TypeError: for an invalid family, horizon or backend.
        RuntimeError: if the backend cannot run here, or if second derivatives are asked for.

    Example:
        >>> import torch
        >>> from ttcnet.lqr import ModulatedLQR, plan
        >>> one, eye = torch.ones(1, 1, 2), torch.eye(2).expand(1, 1, 2, 2)
        >>> family = ModulatedLQR(
        ...     a=0 * one, B=eye[0], Q=eye[0], Qf=eye, r_inv=one, h0=one,
        ...     decay_A=0 * one, decay_B=0 * one, decay_Q=0 * one,
        ... )
        >>> plan(family, horizon=3)
        tensor([[[-0.6154, -0.6154]]])
    """
    if not isinstance(family, ModulatedLQR):
        remedy = "Build one with ModulatedLQR(...); general problems go to solve()."
        checks.fail("family", "must be a ModulatedLQR", type(family).__name__, remedy, TypeError)
    steps = checks.horizon(horizon)
    run = _choose(backend)
    checked = family.a.device.type == "cpu" if check is None else check
    if checked:
        family.check()
    if steps == 0:
        return torch.zeros_like(family.r_inv)
    u = run(family, steps)
    if checked and not u.detach().isfinite().all():
        _explain_failure(u.detach(), backend)
    return u


def backends() -> dict[str, str | None]:
    """Every backend of `plan`, with the reason why it cannot run on this machine, or None if it can."""
    return {"reference": None, "symplectic": None}


def _choose(backend: str) -> Callable[[ModulatedLQR, int], Tensor]:
    known = {"auto": _plan_by_recursion, "reference": _plan_by_recursion, "symplectic": _plan_symplectically}
    if backend not in known:
        checks.fail("backend", f"must be one of {', '.join(known)}", repr(backend), "See `ttcnet env`.")
    return known[backend]


def _plan_symplectically(family: ModulatedLQR, horizon: int) -> Tensor:
    problem = family.unroll(horizon)
    return solve(problem, method="symplectic", check=False).u[..., 0, :].to(family.a.dtype)


def _plan_by_recursion(family: ModulatedLQR, horizon: int) -> Tensor:
    return _Plan.apply(horizon, *(getattr(family, field.name) for field in fields(family)))


class _Plan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, horizon: int, *tensors: Tensor) -> Tensor:
        family = ModulatedLQR(*tensors)
        with full_precision(family.a.device):
            ready = recursion.prepare(family, working_dtype(family.a.dtype))
            u, kept = recursion.forward(ready, horizon, keep=any(ctx.needs_input_grad))
        ctx.horizon = horizon
        ctx.save_for_backward(*tensors, *kept)
        return u.to(family.a.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        refuse_second_derivatives("plan")
        count = len(fields(ModulatedLQR))
        tensors, kept = ctx.saved_tensors[:count], list(ctx.saved_tensors[count:])
        family = ModulatedLQR(*tensors)
        dtype = working_dtype(family.a.dtype)
        with full_precision(family.a.device):
            ready = recursion.prepare(family, dtype)
            grad = recursion.backward(ready, ctx.horizon, kept, grads[0].to(dtype))
        # what the heads of a token share gets the sum of their gradients
        return None, *((g if g.ndim == x.ndim else g.sum(1)).to(x.dtype) for g, x in zip(grad, tensors, strict=True))


def _explain_failure(u: Tensor, backend: str) -> None:
    index = tuple((~u.isfinite().all(-1)).nonzero()[0].tolist())
    if backend == "symplectic":
        remedy = 'The symplectic iteration broke down: use backend="reference".'
        checks.fail("plan", "must be finite", f"NaN or infinity in problem {index}", remedy)
    remedy = "Build Q and Qf as C @ C.mT. If they are, the numbers outgrew the dtype: use float64 or smaller inputs."
    checks.fail("Q and Qf", "must be positive semi-definite", f"no minimum in problem {index}", remedy)
