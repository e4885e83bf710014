"""Mamba2: a selective state space with one decay per head, which makes it a kind of linear attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ttcnet.lqr.arithmetic import working_dtype

from .base import (
    Memory,
    Mixer,
    State,
    draw_linear,
    draw_step_bias,
    fill,
    positive,
    rms_norm,
    store,
    upcast,
)
from .convolution import ShortConvolution
from .scans import decay_scan


class Mamba2(Mixer):
    """S_t = exp(Δ_t A) S_{t-1} + Δ_t B_t u_t' and y_t = S_t' C_t + D u_t; then norm(y * silu(gate)).

    `inner` is the number of channels, heads times the size of a head; twice the width by default. B and C are shared by
    the heads.

    Args:
        state_size: rows of S, the size of B and C.
        kernel: length of the convolution before the scan.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        causal: bool = True,
        inner: int | None = None,
        state_size: int = 64,
        kernel: int = 4,
    ) -> None:
        super().__init__(width, heads=heads, causal=causal, inner=inner)
        self.state_size = positive("state_size", state_size, "The paper of Mamba2 uses 64 to 256.")
        ways, inner = self.directions, self.inner
        self.sizes = [inner, inner + 2 * state_size, heads]  # gate, (u, B, C), Δ
        self.project = nn.Linear(width, sum(self.sizes), bias=False)
        self.convolution = ShortConvolution(ways * self.sizes[1], kernel, bias=True)
        self.step_bias = nn.Parameter(torch.empty(ways * heads))
        self.A_log = nn.Parameter(torch.empty(ways * heads))
        self.D = nn.Parameter(torch.empty(ways * heads))
        self.norm = nn.Parameter(torch.empty(inner))
        self.out = nn.Linear(inner, width, bias=False)
        self.reset_parameters()

    @classmethod
    def default_inner(cls, width: int) -> int:
        return 2 * width

    def reset_parameters(self) -> None:
        draw_linear(self.project)
        self.convolution.reset_parameters()
        draw_step_bias(self.step_bias)
        fill(self.A_log, torch.empty_like(self.A_log).uniform_(1, 16).log())
        nn.init.ones_(self.D)
        nn.init.ones_(self.norm)
        draw_linear(self.out)

    def _new_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> Memory:
        shape = (batch, 1, self.heads, self.state_size, self.head_size)
        recent = torch.zeros(batch, self.convolution.kernel - 1, self.sizes[1], device=device, dtype=dtype)
        return Memory(torch.zeros(shape, device=device, dtype=working_dtype(dtype)), recent)

    def mix(self, x: Tensor, mask: Tensor | None, state: State | None) -> Tensor:
        assert state is None or isinstance(state, Memory)
        ways, heads = self.directions, self.heads
        gate, u, step = self.project(x).split(self.sizes, -1)
        u = self.convolution(self.both_ways(u), mask, state).unflatten(-1, (ways, -1))
        u, B, C = u.split([self.inner, self.state_size, self.state_size], -1)
        u = u.unflatten(-1, (heads, -1))  # (batch, length, directions, heads, head_size)
        u, B, C, step, bias, A_log, D = upcast(u, B, C, self.both_ways(step), self.step_bias, self.A_log, self.D)
        step = self.still(F.softplus(step + bias), mask)
        log_decay = (step * -A_log.exp()).unflatten(-1, (ways, heads))
        v = step.unflatten(-1, (ways, heads)).unsqueeze(-1) * u
        before = None if state is None else state.memory
        y, memory = decay_scan(C, B, v, log_decay, before, keep=state is not None)
        if state is not None and memory is not None:
            state.memory = store(state.memory, memory)
        y = self.add_ways((y + D.view(ways, heads, 1) * u).flatten(2))
        return self.out(rms_norm(y * F.silu(gate), self.norm).to(gate.dtype))
