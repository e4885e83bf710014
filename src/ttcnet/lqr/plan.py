"""plan(): the first actions of a family of problems, by one of several backends."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from . import checks, ops, pairs, stationary_ops
from .kernels import fused_cpu, fused_cuda
from .modulated import Family, ModulatedLQR
from .solve import solve
from .stationary import StationaryLQR, loses_gradient_of_q

NAMES = ("auto", "reference", "fused", "symplectic")
FAMILIES = (ModulatedLQR, StationaryLQR)


def plan(
    family: ModulatedLQR | StationaryLQR, horizon: int, backend: str = "auto", *, check: bool | None = None
) -> Tensor:
    """The first optimal action of every problem of `family` over `horizon` steps, (N, H, m).

    Differentiable once with respect to every field, also by torch.func (grad, vjp, jacrev, vmap over any field). A
    horizon of 0 plans nothing and returns zeros.

    Args:
        family: the problems. Half precision is planned in float32 and returned in half precision. A StationaryLQR is
            planned in PyTorch, "auto" or "reference", in about log₂ T products.
        horizon: the number of steps to look ahead, 0 to 65,536; TTCNET_MAX_HORIZON in the environment raises that.
        backend: "fused" (the stable recursion as one compiled kernel, on a CUDA device or the CPU), "reference" (the
            same in PyTorch, any device), "symplectic" (the paper's iteration; for comparison), or "auto", the fastest
            that is exact here. `backends()` lists those that can run on this machine. The symplectic iteration runs as
            compiled kernels on a CUDA device, up to 64 states and actions and unchecked, and in PyTorch otherwise. It
            loses digits over long or strongly controlled horizons, and warns only if values are checked.
        check: whether to check values (finite, signs, symmetry). None checks on the CPU and not on a GPU, where
            reading values would make the host wait, nor where torch traces or transforms (torch.compile, torch.func).
            Unchecked, a NaN or a missing minimum makes that problem's action NaN and leaves the others alone (the
            symplectic iteration does not notice that a minimum is missing). True also measures digits: it plans again
            in float64, and the up to 64 problems that cost most digits in pairs of doubles. That takes longer than
            the plan itself.

    Raises:
        ValueError, TypeError: for an invalid family, horizon or backend.
        RuntimeError: if the backend cannot run here, if second derivatives are asked for, and under torch.jit.trace.
        NotImplementedError: if forward mode derivatives are asked for.

    Warns:
        RuntimeWarning: if checked, and the gradient of a StationaryLQR's Q will have lost its digits; with check=True,
            if actions are off by more than ten roundings of the inputs, and by more than 1e-5 (2e-14 in float64).

    Examples:
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
    checks.not_traced()
    if not isinstance(family, FAMILIES):
        remedy = "Build one with ModulatedLQR(...); general problems go to solve()."
        checks.fail("family", "must be a ModulatedLQR or a StationaryLQR", type(family).__name__, remedy, "type")
    steps = checks.horizon(horizon)
    if backend not in NAMES:
        checks.fail("backend", f"must be one of {', '.join(NAMES)}", repr(backend), "See `ttcnet env`.", "unknown-name")
    checked = _readable(family) if check is None else check
    chosen = _choose(family, backend)
    if checked:
        family.check()
    if steps == 0:
        return torch.where(torch.zeros_like(family.r_inv, dtype=torch.bool), family.r_inv, 0)
    if isinstance(family, StationaryLQR):
        u = stationary_ops.plan(family, steps)
        if checked:
            _check_actions(family, u.detach())
            if family.Q.requires_grad and torch.is_grad_enabled():
                _check_gradient_of_q(family, steps)
        return u
    if chosen == "symplectic" and not _has_symplectic_kernels(family, checked):
        if ops.transformed():
            remedy = 'Use backend="auto" or "reference".'
            checks.fail("backend", "must have rules for torch.func", '"symplectic", which has none', remedy, "backend")
        return _plan_symplectically(family, steps, checked)
    u = ops.plan(family, steps, chosen)
    if checked:
        _check_actions(family, u.detach())
    if check:
        _check_digits(family, steps, u.detach())
    return u


def backends() -> dict[str, str | None]:
    """Every backend of `plan`, with the reason why it cannot run on this machine, or None if it can."""
    return {
        "reference": None,
        "fused on cuda": fused_cuda.why_not(),
        "fused on cpu": fused_cpu.why_not(),
        "symplectic": None,
        "symplectic on cuda": fused_cuda.why_not(),
    }


def _readable(family: ModulatedLQR | StationaryLQR) -> bool:
    """Whether values can be checked without making the host wait."""
    return family.h0.device.type == "cpu" and not torch.compiler.is_compiling() and not ops.transformed()


def _choose(family: ModulatedLQR | StationaryLQR, backend: str) -> str:
    """The backend for this family, or an error that says why it cannot run."""
    if isinstance(family, StationaryLQR):
        if backend not in ("auto", "reference"):
            remedy = 'Use backend="auto" or "reference".'
            rule, value = "must have a solver for a StationaryLQR", f'"{backend}", which has none'
            checks.fail("backend", rule, value, remedy, "backend")
        return "reference"
    if backend in ("reference", "symplectic"):
        return backend
    obstacle = _obstacle(family)
    if obstacle is None:
        return "fused"
    if backend == "fused":
        remedy = 'Use backend="auto" or "reference".'
        checks.fail("backend", "must be able to run here", f'"fused", but {obstacle}', remedy, "backend")
    return "reference"


def _has_symplectic_kernels(family: ModulatedLQR, checked: bool) -> bool:
    """Whether the symplectic iteration runs as kernels. If values are checked it runs in PyTorch, which measures the
    lost digits."""
    return not checked and family.a.device.type == "cuda" and _obstacle(family) is None


def _obstacle(family: ModulatedLQR) -> str | None:
    """Why kernels cannot plan this family, or None if they can."""
    device, largest = family.a.device.type, max(family.state_size, family.action_size)
    if device not in ("cpu", "cuda"):
        return f"there are kernels for CUDA devices and the CPU, and the family is on the device {family.a.device}"
    if device == "cuda" and largest > fused_cuda.LARGEST:
        return f"its kernels hold up to {fused_cuda.LARGEST} states and actions, and this family has {largest}"
    if torch.compiler.is_compiling():
        return None  # the operator itself will tell, when it runs
    return fused_cpu.why_not() if device == "cpu" else fused_cuda.why_not()


def _plan_symplectically(family: ModulatedLQR, horizon: int, check: bool) -> Tensor:
    solution = solve(family.unroll(horizon), method="symplectic", check=check)
    return solution.u[..., 0, :].to(family.a.dtype)


def _check_gradient_of_q(family: StationaryLQR, horizon: int) -> None:
    bad = loses_gradient_of_q(family, horizon)
    if bad.any():
        which = f"problem {checks.first(bad)}"
        told = f"The gradient of Q loses its digits in {which}, where Q is next to zero and A unstable."
        remedy = "Leave it out with Q.detach(), or use solve(family.unroll(horizon)).u[..., 0, :]."
        warnings.warn(f"{told} {remedy}", RuntimeWarning, stacklevel=3)


def _check_digits(family: ModulatedLQR, horizon: int, u: Tensor) -> None:
    found = pairs.measure(Family(*(getattr(family, name).detach() for name in Family._fields)), horizon, u)
    if not found.bad.any():
        return
    worst = int(torch.where(found.bad, found.error, 0).nan_to_num(torch.inf).argmax())
    place = tuple(divmod(int(found.places[worst]), u.shape[1]))
    off, moved = float(found.error[worst]), float(found.moved[worst])
    told = (
        f"plan has lost digits in {int(found.bad.sum())} of {u.shape[0] * u.shape[1]} problems: the action of problem"
    )
    told = f"{told} {place} is off by {off:.1e}, where a rounding of the inputs moves it by {moved:.1e}."
    remedy = "Gradients lose more: measure states and actions in other units, so that r_inv, B and Q are closer in size"
    remedy += "." if u.dtype == torch.float64 else ", or use float64."
    warnings.warn(f"{told} {remedy}", RuntimeWarning, stacklevel=3)


def _check_actions(family: ModulatedLQR | StationaryLQR, u: Tensor) -> None:
    bad = ~u.isfinite().all(-1)
    if not bad.any():
        return
    for name in ("Q", "Qf"):
        cost = getattr(family, name)
        if cost is not None and checks.has_negative_eigenvalue(cost.detach()):
            remedy = f"Build {name} as C @ C.mT."
            rule = "must be positive semi-definite"
            checks.fail(name, rule, f"no minimum in problem {checks.first(bad)}", remedy, "not-positive")
    remedy = "The numbers outgrew the dtype: use float64, a shorter horizon, or smaller inputs."
    checks.fail("plan", "must be finite", f"NaN or infinity in problem {checks.first(bad)}", remedy, "overflow")
