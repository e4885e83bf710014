"""MesaNet: every token is answered by the ridge regression that fits all keys to their values so far."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ttcnet.lqr.adjoint import refuse_second_derivatives
from ttcnet.lqr.arithmetic import without_autocast, working_dtype

from .base import (
    Memory,
    Mixer,
    State,
    draw_linear,
    positive,
    rms_norm,
    store,
    unit_length,
    upcast,
)
from .convolution import ShortConvolution
from .scans import CHUNK, carry, decay_between, in_chunks, out_of_chunks

LEAST_RIDGE = 0.25


class MesaNet(Mixer):
    """y_t = G_t' (H_t + Λ)^-1 q_t with H_t = γ_t H_{t-1} + β_t k_t k_t' and G_t = γ_t G_{t-1} + β_t k_t v_t'.

    γ_t = sigmoid(W_γ x_t + bias) and β_t = sigmoid(W_β x_t + bias) are numbers per head, Λ is a learned diagonal of
    at least 0.25, q and k have length 1; then a norm per head. The systems are solved by conjugate gradients. The
    matrices H_t are never formed: their products with vectors are linear attention. `inner` is the width of queries,
    keys and values alike, the width by default.

    Args:
        kernel: length of the convolution of queries and keys.
        iterations: of conjugate gradients, 30 as in the paper of MesaNet; as many as the size of a head would give the
            solution exactly but for rounding.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        causal: bool = True,
        inner: int | None = None,
        kernel: int = 4,
        iterations: int = 30,
    ) -> None:
        super().__init__(width, heads=heads, causal=causal, inner=inner)
        self.iterations = positive("iterations", iterations, "The paper of MesaNet uses 30.")
        ways, inner = self.directions, self.inner
        self.sizes = [2 * inner, inner, heads, heads]  # (queries, keys), values, β, γ
        self.project = nn.Linear(width, sum(self.sizes), bias=False)
        self.convolution = ShortConvolution(ways * 2 * inner, kernel, bias=False)
        self.beta_bias = nn.Parameter(torch.empty(ways * heads))
        self.decay_bias = nn.Parameter(torch.empty(ways * heads))
        self.ridge = nn.Parameter(torch.empty(ways * heads, self.head_size))
        self.norm = nn.Parameter(torch.empty(self.head_size))
        self.out = nn.Linear(inner, width, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        draw_linear(self.project)
        self.convolution.reset_parameters()
        nn.init.zeros_(self.beta_bias)
        nn.init.uniform_(self.decay_bias, 1, 6)  # memories of 4 to 400 tokens
        nn.init.constant_(self.ridge, math.log(math.expm1(1 - LEAST_RIDGE)))  # Λ = 1
        nn.init.ones_(self.norm)
        draw_linear(self.out)

    def _new_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> Memory:
        memory = torch.zeros(
            batch, self.heads, self.head_size, 2 * self.head_size, device=device, dtype=working_dtype(dtype)
        )
        recent = torch.zeros(batch, self.convolution.kernel - 1, 2 * self.inner, device=device, dtype=dtype)
        return Memory(memory, recent)

    def mix(self, x: Tensor, mask: Tensor | None, state: State | None) -> Tensor:
        assert state is None or isinstance(state, Memory)
        ways, heads = self.directions, self.heads
        u, v, beta, decay = (self.both_ways(part) for part in self.project(x).split(self.sizes, -1))
        u = self.convolution(u, mask, state)
        u, w, beta, decay = upcast(u, v, beta, decay)
        q, k = u.unflatten(-1, (ways, 2, heads, -1)).unbind(3)
        q, k, w = q.flatten(2, 3), k.flatten(2, 3), w.unflatten(-1, (ways * heads, -1))
        beta = self.still(torch.sigmoid(beta + self.beta_bias), mask)
        log_decay = self.still(F.logsigmoid(decay + self.decay_bias), mask)
        ridge = F.softplus(self.ridge.to(q.dtype)) + LEAST_RIDGE
        before = None if state is None else state.memory
        y, memory = mesa_scan(
            unit_length(q), unit_length(k), w, log_decay, beta, ridge, before, state is not None, self.iterations
        )
        if state is not None and memory is not None:
            state.memory = store(state.memory, memory)
        y = self.add_ways(y.flatten(2)).unflatten(-1, (heads, -1))
        return self.out(rms_norm(y, self.norm).flatten(2).to(v.dtype))


def mesa_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    ridge: Tensor,
    state: Tensor | None = None,
    keep: bool = False,
    iterations: int = 30,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor | None]:
    """y_t = G_t' (H_t + Λ)^-1 q_t, as above.

    Args:
        q, k: (batch, length, heads, n).
        v: (batch, length, heads, p).
        log_decay: log γ, 0 or less, and beta: (batch, length, heads).
        ridge: the diagonal of Λ, (heads, n), positive.
        state: H_0 and G_0 side by side, (batch, heads, n, n + p); None for zeros.
        keep: whether to return the last H and G.

    Returns:
        y (batch, length, heads, p), and the last state or None.
    """
    with without_autocast(q.device):
        length, n = q.shape[1], q.shape[-1]
        q, k, v = (in_chunks(x, chunk).transpose(2, 3) for x in (q, k, v))  # (batch, chunks, heads, s, .)
        beta = in_chunks(beta, chunk).transpose(2, 3)
        passed = in_chunks(log_decay, chunk).transpose(2, 3).cumsum(-1)
        weight = decay_between(passed) * beta.unsqueeze(-2)
        since = passed.exp().unsqueeze(-1)
        before = last = None
        if keep or state is not None or q.shape[1] > 1:
            left = ((passed[..., -1:] - passed).exp() * beta).unsqueeze(-1)
            written = (left * k).mT @ torch.cat([k, v], -1)
            before, last = carry(written, passed[..., -1], state)
        H = None if before is None else before[..., :n]
        x = _solve(k, weight, since, H, ridge.unsqueeze(-2), q, iterations)
        y = ((x @ k.mT) * weight) @ v
        if before is not None:
            y = y + (since * x) @ before[..., n:]
        return out_of_chunks(y.transpose(2, 3), length), last if keep else None


def _times(x: Tensor, k: Tensor, weight: Tensor, since: Tensor, H: Tensor | None, ridge: Tensor) -> Tensor:
    """Multiply: (H_t + Λ) x_t for all tokens t at once."""
    y = ((x @ k.mT) * weight) @ k + ridge * x
    return y if H is None else y + (since * x) @ H


def _solve(
    k: Tensor, weight: Tensor, since: Tensor, H: Tensor | None, ridge: Tensor, q: Tensor, iterations: int
) -> Tensor:
    """x_t with (H_t + Λ) x_t = q_t, differentiable without remembering the iterations.

    Around the solution, dx = (H + Λ)^-1 d(q - (H + Λ) x) with x held fixed inside: one product under autograd gives
    the residual, whose gradient is the same system solved once more.
    """
    fixed = (k.detach(), weight.detach(), since.detach(), None if H is None else H.detach(), ridge.detach())
    with torch.no_grad():
        x = _conjugate_gradients(lambda p: _times(p, *fixed), q, iterations)
    residual = q - _times(x, k, weight, since, H, ridge)
    correction: Tensor = _Inverse.apply(residual, iterations, *fixed)
    return x + correction


class _Inverse(torch.autograd.Function):
    """Zeros, with the gradient of (H + Λ)^-1 times the residual."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, iterations: int, *fixed: Tensor | None) -> Tensor:
        ctx.save_for_backward(*fixed)
        ctx.iterations = iterations
        return torch.zeros_like(residual)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives("MesaNet", "take another mixer")
        fixed = ctx.saved_tensors
        grad = _conjugate_gradients(lambda p: _times(p, *fixed), grads[0], ctx.iterations)
        return (grad, None, *(None for _ in fixed))


def _conjugate_gradients(times: Callable[[Tensor], Tensor], q: Tensor, iterations: int) -> Tensor:
    tiny = torch.finfo(q.dtype).tiny
    x, residual, p = torch.zeros_like(q), q, q
    size = q.square().sum(-1, keepdim=True)
    for _ in range(iterations):
        image = times(p)
        step = size / (p * image).sum(-1, keepdim=True).clamp_min(tiny)
        x, residual = x + step * p, residual - step * image
        before, size = size, residual.square().sum(-1, keepdim=True)
        p = residual + size / before.clamp_min(tiny) * p
    return x
