"""The infinite horizon: the discrete algebraic Riccati equation, with gradients by the equation itself.

    P = Q + A' P A - (A' P B + N) (R + B' P B)^-1 (B' P A + N')

It is solved by doubling: each iteration finds P over twice as many steps as the one before, so 2^k steps take k
iterations. An iteration solves with I + G H, where G and H are positive semi-definite, and inverts nothing else but R.
If actions are cheap, that loses digits. Steps of Newton find them again: each adds to P the solution of a Lyapunov
equation, whose right side is the error of the equation at P.

A small change of the equation moves P by X, the solution of X = F' X F + change, with F = A + B K the closed loop. The
adjoint of that is a Lyapunov equation with F', which is solved by doubling too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import checks
from .adjoint import transformed
from .arithmetic import full_precision, symmetrise
from .steps import wide_dtype

POLISH = 8  # steps of Newton, at most
TURNS = 64  # over 2^64 steps; a closed loop that has not settled by then never will


class Regulator(NamedTuple):
    """The cost to go 1/2 h' P h, (..., n, n), that of h itself included, and the feedback u = K h, (..., m, n)."""

    P: Tensor
    K: Tensor


def dare(A: Tensor, B: Tensor, Q: Tensor, R: Tensor, N: Tensor | None = None, *, check: bool = True) -> Regulator:
    """The constant feedback that minimises sum_t 1/2 h_t' Q h_t + 1/2 u_t' R u_t + h_{t-1}' N u_t without end, for
    h_t = A h_{t-1} + B u_t.

    Differentiable with respect to all arguments, any number of times, also by torch.func (with check=False). Computed
    in float64 and returned in the dtype of A. Leading batch dimensions broadcast.

    Args:
        A: dynamics, (..., n, n). The actions must reach every direction that does not settle without them.
        B: effect of the actions, (..., n, m).
        Q: state cost, (..., n, n), symmetric positive semi-definite. Every direction that does not settle without
            actions must cost something.
        R: action cost, (..., m, m), symmetric positive definite.
        N: cost of an action together with the state it starts from, (..., n, m); None means zero.
        check: whether to check values before and after.

    Raises:
        ValueError: for invalid arguments, and if a problem has no feedback that makes it settle, or none of least cost.

    Warns:
        RuntimeWarning: if half of the digits are lost, or more.

    Examples:
        >>> import torch
        >>> from ttcnet.lqr import dare
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> dare(A=one, B=one, Q=one, R=one).P
        tensor([[1.6180]], dtype=torch.float64)
    """
    given = {"A": A, "B": B, "Q": Q, "R": R} | ({} if N is None else {"N": N})
    checks.one_kind(given, anchor="A")
    n, m = B.shape[-2:] if B.ndim >= 2 else (0, 0)
    if not (n and m):
        checks.fail("B", "must have shape (..., n, m)", tuple(B.shape), "Pass a matrix, even for n = m = 1.", "shape")
    for name, shape in (("A", (n, n)), ("Q", (n, n)), ("R", (m, m)), ("N", (n, m))):
        value = given.get(name)
        if value is not None and tuple(value.shape[-2:]) != shape:
            rule = f"must have shape (..., {shape[0]}, {shape[1]}), to match B"
            checks.fail(name, rule, tuple(value.shape), "Reshape it.", "shape")
    try:
        batch = torch.broadcast_shapes(*(x.shape[:-2] for x in given.values()))
    except RuntimeError:
        told = ", ".join(f"{name} {tuple(x.shape[:-2])}" for name, x in given.items())
        checks.fail("leading dimensions", "must broadcast", told, "Make them equal, or 1.", "shape")
    if check and not _readable(given.values()):
        checks.fail("check", "must be False under torch.func.vmap", check, "It shows no values.", "conflict")
    if check:
        for name, value in given.items():
            checks.finite(name, value)
        checks.symmetric("Q", Q)
        checks.symmetric("R", R)
        checks.positive_definite("R", R, diagonal=False)
    asked, dtype = A.dtype, wide_dtype(A.dtype, A.device)
    ready = [x.to(dtype).expand(*batch, -1, -1) for x in given.values()]
    if N is None:
        ready.append(torch.zeros_like(ready[1]))
    ready[2], ready[3] = symmetrise(ready[2]), symmetrise(ready[3])
    with full_precision(A.device):
        P = _Stationary.apply(*ready)
        K = _gain(P, *ready)
        if check:
            _check_solution(ready, P, K, asked)
    return Regulator(P.to(asked), K.to(asked))


def _gain(P: Tensor, A: Tensor, B: Tensor, Q: Tensor, R: Tensor, N: Tensor) -> Tensor:
    return -torch.linalg.solve_ex(symmetrise(R + B.mT @ P @ B), B.mT @ P @ A + N.mT)[0]


def _doubled(A: Tensor, B: Tensor, Q: Tensor, R: Tensor, N: Tensor) -> Tensor:
    """P; NaN, or far from a solution, if there is no solution."""
    R_inv = torch.linalg.inv_ex(R)[0]
    A, H = A - B @ R_inv @ N.mT, symmetrise(Q - N @ R_inv @ N.mT)
    G = symmetrise(B @ R_inv @ B.mT)
    one = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    for _ in range(TURNS):
        through = torch.linalg.solve_ex(one + G @ H, torch.cat([A, G], -1))[0]
        near, far = through.split([A.shape[-1]] * 2, -1)
        more = symmetrise(A.mT @ H @ near)
        G, H, A = symmetrise(G + A @ far @ A.mT), H + more, A @ near
        if _settled(more, H):
            break
    return H


def _polished(P: Tensor, *fields: Tensor) -> Tensor:
    """P with all of its digits; NaN if it is no minimum."""
    A, B, _, R, _ = fields
    off = _violation(P, *fields)
    for _ in range(POLISH):
        F = A + B @ _gain(P, *fields)
        other = P + _lyapunov(F.mT, symmetrise(_terms(P, *fields).sum(0)))
        other_off = _violation(other, *fields)
        better = other_off < off  # not if the feedback does not settle: it has no cost
        P, off = torch.where(better[..., None, None], other, P), torch.where(better, other_off, off)
        if not _any(better):
            break
    bad = torch.linalg.cholesky_ex(symmetrise(R + B.mT @ P @ B))[1] != 0
    return torch.where(bad[..., None, None], torch.nan, P)


def _violation(P: Tensor, A: Tensor, B: Tensor, Q: Tensor, R: Tensor, N: Tensor) -> Tensor:
    """Of the equation, over the largest of its terms, (...)."""
    terms = _terms(P, A, B, Q, R, N)
    size = terms.abs().amax((-2, -1)).amax(0)
    return terms.sum(0).abs().amax((-2, -1)) / size.clamp_min(torch.finfo(P.dtype).tiny)


def _terms(P: Tensor, A: Tensor, B: Tensor, Q: Tensor, R: Tensor, N: Tensor) -> Tensor:
    """The terms of the equation, all on one side, (4, ..., n, n)."""
    return torch.stack([A.mT @ P @ A, (A.mT @ P @ B + N) @ _gain(P, A, B, Q, R, N), Q, -P])


def _readable(values: Iterable[Tensor]) -> bool:
    try:
        return all(bool(x.isfinite().any()) or True for x in values)
    except RuntimeError:  # torch.func.vmap
        return False


def _any(values: Tensor) -> bool:
    """Whether any is true; yes, if values cannot be read."""
    try:
        return bool(values.any())
    except RuntimeError:  # torch.func.vmap
        return True


def _settled(more: Tensor, whole: Tensor) -> bool:
    """Whether an iteration changed no finite problem. If values cannot be read, all iterations are made."""
    try:
        size = whole.abs().amax((-2, -1))
        return not bool((more.abs().amax((-2, -1)) > torch.finfo(whole.dtype).eps / 8 * size).any())
    except RuntimeError:  # torch.func.vmap
        return False


def _lyapunov(F: Tensor, change: Tensor) -> Tensor:
    """The solution of X = F X F' + change."""
    X = change
    for _ in range(TURNS):
        more = F @ X @ F.mT
        X, F = symmetrise(X + more), F @ F
        if _settled(more, X):
            break
    return X


class _Stationary(torch.autograd.Function):
    """The stationary P of a problem, with its gradients."""

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, B: Tensor, Q: Tensor, R: Tensor, N: Tensor) -> Tensor:
        return _polished(_doubled(A, B, Q, R, N), A, B, Q, R, N)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        A, B, Q, R, N, P = ctx.saved_tensors
        with full_precision(P.device):
            K = _gain(P, A, B, Q, R, N)
            F = A + B @ K
            X = _lyapunov(F, symmetrise(grads[0]))
            PFX = 2 * P @ F @ X
            return PFX, PFX @ K.mT, X, K @ X @ K.mT, 2 * X @ K.mT

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        A, B, Q, R, N, P = ctx.saved_tensors
        dA, dB, dQ, dR, dN = (
            torch.zeros_like(x) if d is None else d for x, d in zip((A, B, Q, R, N), tangents, strict=True)
        )
        K = _gain(P, A, B, Q, R, N)
        F = A + B @ K
        change = symmetrise(dQ) + K.mT @ symmetrise(dR) @ K + 2 * symmetrise(dN @ K + (dA + dB @ K).mT @ P @ F)
        return _lyapunov(F.mT, change)


@torch.no_grad()
def _check_solution(fields: list[Tensor], P: Tensor, K: Tensor, asked: torch.dtype) -> None:
    if transformed():
        return
    A, B, Q, R, N = fields
    F = A + B @ K
    good = F.isfinite().all(-1).all(-1) & P.isfinite().all(-1).all(-1)
    size = torch.linalg.eigvals(torch.where(good[..., None, None], F, 0)).abs().amax(-1)
    bad = ~good | (size >= 1)
    joint = torch.cat([torch.cat([Q, N], -1), torch.cat([N.mT, R], -1)], -2)
    falls = bad & (torch.linalg.eigvalsh(joint)[..., 0] < -(torch.finfo(asked).eps ** 0.5) * joint.abs().amax((-2, -1)))
    if falls.any():
        which = f"problem {checks.first(falls)} of the batch" if falls.ndim else "the problem"
        remedy = "Build Q as C @ C.mT, and keep N small beside Q and R."
        checks.fail(
            "[Q N; N' R]", "must be positive semi-definite for a minimum to exist", which, remedy, "not-positive"
        )
    if bad.any():
        which = f"problem {checks.first(bad)} of the batch" if bad.ndim else "the problem"
        worst = f"an eigenvalue of A + B K of size {float(size[bad].max()):.6g}" if good.all() else "NaN or infinity"
        remedy = "A direction that does not settle must be within reach of B and cost something in Q; look at both."
        checks.fail("closed loop", "must settle", f"{worst} in {which}", remedy, "unstable")
    off = _violation(P, *fields)
    lost = off > torch.finfo(asked).eps ** 0.5
    if lost.any():
        which = f"problem {checks.first(lost)} of the batch" if lost.ndim else "the problem"
        told = f"dare has lost digits in {which}: it meets the equation to {float(off[lost][0]):.1e} only"
        warnings.warn(f"{told}. Scale the problem so that R, Q and B are closer in size.", RuntimeWarning, stacklevel=3)
