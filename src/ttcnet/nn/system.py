"""Contextualisation by whole systems: a token writes the dynamics themselves, dense, and the same at every step.

For every head, with coefficients c and e that are linear in the token and shared by its heads:

    A = I + D (A_0 + Σ_i c_i A_i) D      B = D (B_0 + Σ_i e_i B_i)      Q = D C diag(q) C' D      R^-1 = diag(r_inv)

A_i, B_i and C are learned; the state h_0 is linear in the token, and so are q and r_inv before a softplus. The last
step has the same cost as the others. Nothing is scaled to a fixed size: the token decides on sizes.

D² is diagonal: the pace of each state, learned. A pace of 1/32 is that of a continuous system in steps of 1/32, whose
plans still change at horizons of 32. Paces start between 1 and 1/32. Were all of them 1, plans would look the same from
about four steps on, no gradient would lead from there to slow systems, and a rate that suits fast ones would throw slow
ones about: "Where planning pays" in the documentation, third round.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from ttcnet.errors import fail
from ttcnet.lqr import StationaryLQR
from ttcnet.lqr.adjoint import transformed
from ttcnet.lqr.arithmetic import without_autocast, working_dtype
from ttcnet.lqr.stationary import pause

from .mixers.base import fill

FADING = 0.3  # A_0 is -FADING times the identity: a state that is left alone fades
SPREAD = 0.3  # spread of A and B over tokens in a new layer, where the pace is 1
PIECE = 2**22  # numbers of the matrices of tokens that a CPU writes at once, so that Ctrl-C is answered
SLOWEST = 1 / 32  # the slowest pace of a new layer


class SystemContext(nn.Module):
    """Problems from the output of the layer's projection.

    Args:
        heads: number of heads.
        state_size: n, the size of a head's state.
        action_size: m, the size of a head's action.
        rank: number of matrices A_i, and likewise B_i, of a head.
        time_homogeneous: must be left out, since these problems are the same at every step anyway.
        where: device and dtype of the parameters, as torch takes them.
    """

    kind: ClassVar[str] = "system"

    def __init__(
        self, heads: int, state_size: int, action_size: int, rank: int, time_homogeneous: bool | str, **where: Any
    ) -> None:
        super().__init__()
        if time_homogeneous:
            rule, remedy = "must be left out with context 'system', which has no decays", "Leave it out."
            fail("time_homogeneous", rule, repr(time_homogeneous), remedy, "conflict")
        self.heads, self.rank = heads, rank
        n, m = self.sizes = state_size, action_size
        self.widths = [heads * n, rank, rank, heads * n, heads * m]
        self.inputs = sum(self.widths)
        self.bias = nn.Parameter(torch.empty(sum(self.widths[3:]), **where))  # biases of q and r_inv
        self.bases_A = nn.Parameter(torch.empty(rank + 1, heads, n, n, **where))  # A_0 comes first
        self.bases_B = nn.Parameter(torch.empty(rank + 1, heads, n, m, **where))
        self.C = nn.Parameter(torch.empty(heads, n, n, **where))
        self.log_pace = nn.Parameter(torch.empty(heads * n, **where))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        n, _ = self.sizes
        one = torch.eye(n, device=self.C.device, dtype=self.C.dtype)
        nn.init.zeros_(self.bias)
        of_A, of_B = (
            nn.init.normal_(torch.empty_like(bases), std=SPREAD * self.rank**-0.5)
            for bases in (self.bases_A, self.bases_B)
        )
        of_A[0] = -FADING * one
        nn.init.normal_(of_B[0], std=n**-0.5)
        fill(self.bases_A, of_A)
        fill(self.bases_B, of_B)
        fill(self.C, one + 0.1 * torch.randn_like(self.C))
        fill(self.log_pace, math.log(SLOWEST) * torch.linspace(0, 1, n).repeat(self.heads))

    def forward(self, inputs: Tensor) -> StationaryLQR:
        """The problems of N tokens, from the layer's projection (N, inputs)."""
        n, m = self.sizes
        at_once = max(1, PIECE // (self.heads * n * max(n, m)))
        # tracers come first: they must not see a comparison with the number of tokens
        if torch.compiler.is_compiling() or transformed() or inputs.device.type != "cpu" or len(inputs) <= at_once:
            return self._problems(inputs)
        parts = [vars(self._problems(some)) for some in inputs.split(at_once)]
        for x in (x for part in parts for x in part.values() if x is not None and x.requires_grad):
            x.register_hook(pause)
        names = [name for name, value in parts[0].items() if value is not None]
        return StationaryLQR(**{name: torch.cat([part[name] for part in parts]) for name in names})

    def _problems(self, inputs: Tensor) -> StationaryLQR:
        with without_autocast(inputs.device):
            inputs = inputs.to(working_dtype(inputs.dtype))
            dtype = inputs.dtype
            bias = pad(self.bias.to(dtype), (sum(self.widths[:3]), 0))
            h0, of_A, of_B, q, r_inv = (inputs + bias).split(self.widths, -1)
            D = (self.log_pace.to(dtype) / 2).exp().view(self.heads, -1, 1)
            one = torch.eye(self.sizes[0], device=inputs.device, dtype=dtype)
            C = D * self.C.to(dtype) * softplus(q.unflatten(-1, (self.heads, -1))).sqrt().unsqueeze(-2)
            return StationaryLQR(
                A=one + D * _combined(of_A, self.bases_A.to(dtype)) * D.mT,
                B=D * _combined(of_B, self.bases_B.to(dtype)),
                Q=C @ C.mT,
                r_inv=softplus(r_inv.unflatten(-1, (self.heads, -1))),
                h0=h0.unflatten(-1, (self.heads, -1)),
            )

    def extra_repr(self) -> str:
        n, m = self.sizes
        return f"heads={self.heads}, n={n}, m={m}, rank={self.rank}"


def _combined(coefficients: Tensor, bases: Tensor) -> Tensor:
    """The first basis and the combination of the others, (N, heads, i, j)."""
    return (bases[0].flatten() + coefficients @ bases[1:].flatten(1)).unflatten(-1, bases.shape[1:])
