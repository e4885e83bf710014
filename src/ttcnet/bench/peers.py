"""Solvers of other projects, behind the signature of `plan`: (family, horizon) to the first actions.

Each is skipped if its package is not installed. All of them take a problem with every matrix written out, so their
times include writing it out (`unroll`) and differentiating through that.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from ttcnet.lqr import LQR, ModulatedLQR


def mpc_pytorch(family: ModulatedLQR, horizon: int) -> Tensor:
    """mpc.pytorch (Amos et al. 2018), set up for an unconstrained linear-quadratic problem: one step, no line search.

    It has a control after the last state. Here that control has a cost and no effect.
    """
    from mpc import mpc

    p = _written_out(family, horizon)
    count, T, n, m = *p.A.shape[:2], p.state_size, p.action_size
    F = torch.cat([p.A, p.B], -1).transpose(0, 1)
    solver = mpc.MPC(
        n, m, T + 1, lqr_iter=1, grad_method=mpc.GradMethods.ANALYTIC, verbose=-1, exit_unconverged=False, eps=1e-12,
        detach_unconverged=False, backprop=True, max_linesearch_iter=1, u_init=p.A.new_zeros(T + 1, count, m),
    )  # fmt: skip
    _, u, _ = solver(
        p.h0, mpc.QuadCost(_stage_costs(p).transpose(0, 1), p.A.new_zeros(T + 1, count, n + m)), mpc.LinDx(F)
    )
    return u[0].reshape(family.r_inv.shape)


def pypose(family: ModulatedLQR, horizon: int) -> Tensor:
    """The LQR module of PyPose, differentiated by autograd. As mpc.pytorch, it has a control after the last state."""
    import pypose as pp

    p = _written_out(family, horizon)
    count, T, n, m = *p.A.shape[:2], p.state_size, p.action_size
    steps = list(zip(p.A.unbind(1), p.B.unbind(1), strict=True))

    class System(pp.module.LTV):  # type: ignore[misc]
        """Returns A and B at its own time step, as in PyPose's manual; it observes nothing."""

        A = property(lambda self: steps[int(self.systime)][0])
        B = property(lambda self: steps[int(self.systime)][1])

        def observation(self, state: Tensor, input: Tensor, t: Tensor | None = None) -> Tensor:  # noqa: A002
            return state

    # a step out of the last state, so that its control acts on something
    steps.append((torch.zeros_like(p.A[:, 0]), torch.zeros_like(p.B[:, 0])))
    solver = pp.module.LQR(System(), _stage_costs(p), p.A.new_zeros(count, T + 1, n + m), T + 1)
    _, u, _ = solver(p.h0)
    return u[:, 0].reshape(family.r_inv.shape)


def diffilqrax(family: ModulatedLQR, horizon: int) -> Tensor:
    """diffilqrax's dlqr, which solves a second problem for the gradients, in JAX, compiled."""
    return by_diffilqrax(_written_out(family, horizon))[:, 0].reshape(family.r_inv.shape)


def by_diffilqrax(p: LQR) -> Tensor:
    """All actions of a batch of problems without linear terms."""
    return _ThroughJax.apply(p.A, p.B, p.Q, p.R, p.h0)


class _ThroughJax(torch.autograd.Function):
    """Actions of a batch by diffilqrax, from and to torch on the device of the problem, which JAX must have.
    Numbers that its forward pass keeps for the backward pass stay in JAX."""

    @staticmethod
    def forward(ctx: Any, *problem: Tensor) -> Tensor:
        forward, with_pullback, _ = _jax_passes()
        with _jax_dtype(problem[0]):
            arrays = [_to_jax(x) for x in problem]
            if any(ctx.needs_input_grad):
                u, ctx.pullback = with_pullback(*arrays)
            else:
                u = forward(*arrays)
            return _to_torch(u)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:
        with _jax_dtype(g):
            return tuple(_to_torch(x) for x in _jax_passes()[2](ctx.pullback, _to_jax(g)))


def _to_jax(x: Tensor) -> Any:
    import jax

    return jax.dlpack.from_dlpack(x.detach().contiguous())


def _to_torch(x: Any) -> Tensor:
    return torch.utils.dlpack.from_dlpack(x.block_until_ready()).clone()


def _jax_dtype(x: Tensor) -> Any:
    """diffilqrax switches JAX to float64 when it is imported, and then mixes it with float32 and fails. So for float32
    JAX is switched back while it works."""
    import jax

    return jax.enable_x64(x.dtype == torch.float64)


@cache
def _jax_passes() -> tuple[Any, Any, Any]:
    """Compiled functions: from A, B, Q, R, h0 to the actions; from these to the actions and a pullback; from a pullback
    and the gradient of the actions to the gradients of the five."""
    import jax
    import jax.numpy as jnp
    from diffilqrax import typs
    from diffilqrax.diff_lqr import dlqr

    def actions(A: Any, B: Any, Q: Any, R: Any, h0: Any) -> Any:
        (T, n, m), kind = B.shape, B.dtype
        before = jnp.concatenate([jnp.zeros((1, n, n), kind), Q[:-1]])  # its cost of a state comes before the step
        zeros = {"a": (T, n), "q": (T, n), "r": (T, m), "S": (T, n, m), "qf": (n,)}
        none = {name: jnp.zeros(shape, kind) for name, shape in zeros.items()}
        lqr = typs.LQR(A=A, B=B, Q=before, R=R, Qf=Q[-1], **none)
        return dlqr(typs.ModelDims(n, m, T, 1.0), typs.LQRParams(h0, lqr), jnp.zeros((T + 1, n + m), kind))[:T, n:]

    batched = jax.vmap(actions)

    return jax.jit(batched), jax.jit(lambda *p: jax.vjp(batched, *p)), jax.jit(lambda pullback, g: pullback(g))


def _written_out(family: ModulatedLQR, horizon: int) -> LQR:
    """The problems with every matrix written out, tokens and heads in one leading dimension."""
    p = family.unroll(horizon).standard_form()
    return LQR(*(x.flatten(0, 1) for x in (p.A, p.B, p.Q, p.R, p.h0)))


def _stage_costs(p: LQR) -> Tensor:
    """(problems, T + 1, n + m, n + m): the cost of h_t and of the action that follows it; after h_T, a unit cost."""
    count, T, n, m = *p.A.shape[:2], p.state_size, p.action_size
    C = p.A.new_zeros(count, T + 1, n + m, n + m)
    C[:, 1:, :n, :n] = p.Q
    C[:, :-1, n:, n:] = p.R
    C[:, -1, n:, n:] = torch.eye(m, dtype=p.A.dtype, device=p.A.device)
    return C
