"""Mamba: a selective state space, every channel with its own small diagonal recurrence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ttcnet.lqr.arithmetic import without_autocast, working_dtype

from .base import Memory, Mixer, State, draw_linear, draw_step_bias, fill, positive, store, upcast
from .convolution import ShortConvolution
from .selective import selective_scan


class Mamba(Mixer):
    """h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t u_t and y_t = C_t h_t + D u_t, times silu(gate); Δ, B and C come from u_t.

    `inner` is the number of channels, twice the width by default. Heads do not matter.

    Args:
        state_size: of each channel.
        kernel: length of the convolution before the scan.
        rank: of the map from the channels to the step sizes Δ; None means width / 16, rounded up.
    """

    per_head = False

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        causal: bool = True,
        inner: int | None = None,
        state_size: int = 16,
        kernel: int = 4,
        rank: int | None = None,
    ) -> None:
        super().__init__(width, heads=heads, causal=causal, inner=inner)
        self.state_size = positive("state_size", state_size, "The paper of Mamba uses 16.")
        self.rank = -(-width // 16) if rank is None else positive("rank", rank, "Pass None for width / 16.")
        ways, inner = self.directions, self.inner
        self.project = nn.Linear(width, 2 * inner, bias=False)  # u, gate
        self.convolution = ShortConvolution(ways * inner, kernel, bias=True)
        self.select = nn.Parameter(torch.empty(ways, inner, self.rank + 2 * state_size))  # u to Δ's low rank, B, C
        self.step = nn.Parameter(torch.empty(ways, self.rank, inner))
        self.step_bias = nn.Parameter(torch.empty(ways, inner))
        self.A_log = nn.Parameter(torch.empty(ways, inner, state_size))
        self.D = nn.Parameter(torch.empty(ways, inner))
        self.out = nn.Linear(inner, width, bias=False)
        self.reset_parameters()

    @classmethod
    def default_inner(cls, width: int) -> int:
        return 2 * width

    def reset_parameters(self) -> None:
        draw_linear(self.project)
        self.convolution.reset_parameters()
        bound = self.inner**-0.5
        nn.init.uniform_(self.select, -bound, bound)
        nn.init.uniform_(self.step, -(self.rank**-0.5), self.rank**-0.5)
        draw_step_bias(self.step_bias)
        rates = torch.arange(1, self.state_size + 1, device=self.A_log.device, dtype=torch.float32)
        fill(self.A_log, rates.log().expand_as(self.A_log))
        nn.init.ones_(self.D)
        draw_linear(self.out)

    def _new_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> Memory:
        memory = torch.zeros(
            batch, self.directions, self.inner, self.state_size, device=device, dtype=working_dtype(dtype)
        )
        recent = torch.zeros(batch, self.convolution.kernel - 1, self.inner, device=device, dtype=dtype)
        return Memory(memory, recent)

    def mix(self, x: Tensor, mask: Tensor | None, state: State | None) -> Tensor:
        assert state is None or isinstance(state, Memory)
        u, gate = self.project(x).chunk(2, -1)
        u = self.convolution(self.both_ways(u), mask, state).unflatten(-1, (self.directions, -1))
        select = torch.einsum("blwi,wio->blwo", u, self.select.to(u.dtype))
        low, B, C = select.split([self.rank, self.state_size, self.state_size], -1)
        step = torch.einsum("blwr,wri->blwi", low, self.step.to(low.dtype))
        u, step, B, C, bias, A_log, D = upcast(u, step, B, C, self.step_bias, self.A_log, self.D)
        with without_autocast(x.device):
            step = F.softplus(step + bias)
            step = self.still(step.flatten(2), mask).unflatten(-1, (self.directions, -1))
            first = None if state is None else state.memory
            y, last = selective_scan(u, step, -A_log.exp(), B, C, first, keep=state is not None)
            if state is not None and last is not None:
                state.memory = store(state.memory, last)
            y = self.add_ways((y + D * u).flatten(2)) * F.silu(gate)
        return self.out(y.to(gate.dtype))
