"""Contextualisation: from a token to the control problem that it plans.

For every head:  a, r_inv, the decays, and the coefficients of the terminal cost. For a token, shared by its heads:  the
coefficients of B and Q. Where they come from is the kind of the context. "token": all are linear in the token, as the
state h0 is, so that problem and state can differ. "head", the text of the paper: a head draws its own from
its state h0 alone, and the token the shared ones from all its states. Matrices are combinations of learned bases,

    B = Σ_i c_i B_i        Q = Σ_i c_i C_i C_i' / √n        Qf likewise, over the bases of Q

with coefficients scaled to length 1, so that a high learning rate moves directions and not sizes; those of Q and Qf are
positive, and so are r_inv and the decays.

a lies in (-1, 1), so that A_t = 1 + exp(-t decay_A) a stays positive, and where it is positive, below 4 decay_A: then a
state left alone grows at most e^4 times, however long the horizon, because Σ_t exp(-t decay) < 1 / decay. Without that
bound plans over long horizons lose their digits, the more the fewer actions there are. Without decays that
bound is 0: a layer that is time-homogeneous and "pure", the same in all else, has a = min(tanh, 0). With True, as all
earlier time-homogeneous layers, a = -sigmoid.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from ttcnet.lqr import ModulatedLQR
from ttcnet.lqr.arithmetic import without_autocast, working_dtype
from ttcnet.nn.options import PURE

DECAYS = 0.03, 0.7  # the range, log-uniform, of decays at the start: some heads look far, others near
GROWTH = 4.0  # the logarithm of the growth that a state may have without actions
BASIS_STD = 0.25


class Affine(nn.Module):
    """Weight and bias of a linear map that `HeadContext` computes itself, in float32.

    Not an nn.Linear: libraries that quantise or serve models replace those by layers of their own, whose weights
    cannot be read here.
    """

    def __init__(self, inputs: int, outputs: int, **where: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, **where))
        self.bias = nn.Parameter(torch.empty(outputs, **where))


class Context(nn.Module):
    """Shared by all kinds of context: the bases, and the way from numbers to problems.

    Args:
        heads: number of heads.
        state_size: n, the size of a head's state.
        action_size: m, the size of a head's action.
        rank: number of basis matrices of B and of Q.
        time_homogeneous: no decays: the problem is the same at every step. "pure" changes nothing else; True makes a
            the negative of a sigmoid.
        where: device and dtype of the parameters, as torch takes them.
    """

    kind: ClassVar[str]
    inputs: int  # numbers per token that it starts from: the outputs of the layer's projection
    bias: nn.Parameter  # biases of the numbers that heads draw, which come first

    def __init__(
        self, heads: int, state_size: int, action_size: int, rank: int, time_homogeneous: bool | str, **where: Any
    ) -> None:
        super().__init__()
        self.heads, self.rank, self.time_homogeneous = heads, rank, time_homogeneous
        n, m = self.sizes = state_size, action_size
        # the numbers that a head draws, in this order
        self.parts = {"a": n, "r_inv": m, "Qf": rank}
        if not time_homogeneous:
            self.parts |= {"decay_A": 1, "decay_B": m, "decay_Q": n}
        self.drawn = sum(self.parts.values())
        self.bases_B = nn.Parameter(torch.empty(rank, n, m, **where))
        self.bases_C = nn.Parameter(torch.empty(rank, n, n, **where))

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        nn.init.zeros_(self.bias)
        if not self.time_homogeneous:
            count = sum(size for name, size in self.parts.items() if name.startswith("decay"))
            rates = torch.empty(self.heads, count, device=self.bias.device).uniform_(*map(math.log, DECAYS)).exp()
            self._set_decays(rates + torch.log(-torch.expm1(-rates)))  # so that their softplus is the rates
        nn.init.normal_(self.bases_B, std=BASIS_STD)
        nn.init.normal_(self.bases_C, std=BASIS_STD)

    @torch.no_grad()
    def _set_decays(self, values: Tensor) -> None:
        if not getattr(self.bias, "_is_hf_initialized", False):  # transformers' mark of a weight that was loaded
            drawn = self.bias.view(-1)[: self.heads * self.drawn].view(self.heads, self.drawn)
            drawn[:, -values.shape[1] :] = values.to(self.bias.dtype)

    def forward(self, inputs: Tensor) -> ModulatedLQR:
        """Problems from the output of the layer's projection, (N, inputs)."""
        # in float32, also under autocast: the planner has no digits to spare
        with without_autocast(inputs.device):
            return self._write(*self._draw(inputs.to(working_dtype(inputs.dtype))))

    def _draw(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """States (N, heads, n), the numbers of each head (N, heads, drawn), and the coefficients of B and Q (N, 2
        rank)."""
        raise NotImplementedError

    def _write(self, h0: Tensor, drawn: Tensor, shared: Tensor) -> ModulatedLQR:
        n, m = self.sizes
        own = dict(zip(self.parts, drawn.split(list(self.parts.values()), -1), strict=True))
        of_B, of_Q = shared.chunk(2, -1)
        bases_B, bases_C = self.bases_B.to(h0.dtype), self.bases_C.to(h0.dtype)
        bases_Q = (bases_C @ bases_C.mT / n**0.5).flatten(1)
        B = (normalize(of_B, dim=-1) @ bases_B.flatten(1)).unflatten(-1, (n, m))
        Q = (normalize(softplus(of_Q), dim=-1) @ bases_Q).unflatten(-1, (n, n))
        Qf = (normalize(softplus(own["Qf"]), dim=-1) @ bases_Q).unflatten(-1, (n, n))
        sizes = {"decay_A": 1, "decay_B": m, "decay_Q": n}
        if self.time_homogeneous:
            decays = {name: h0.new_zeros(*h0.shape[:2], size) for name, size in sizes.items()}
            a = torch.tanh(own["a"]).clamp_max(0) if self.time_homogeneous == PURE else -torch.sigmoid(own["a"])
        else:
            decays = {name: softplus(own[name]) for name in sizes}
            a = torch.tanh(own["a"])
            a = torch.where(a > 0, (GROWTH * decays["decay_A"]).clamp_max(1) * a, a)
        return ModulatedLQR(a=a, B=B, Q=Q, Qf=Qf, r_inv=softplus(own["r_inv"]), h0=h0, **decays)

    def extra_repr(self) -> str:
        n, m = self.sizes
        return f"heads={self.heads}, n={n}, m={m}, rank={self.rank}, time_homogeneous={self.time_homogeneous!r}"


class TokenContext(Context):
    """The layer's projection of the token gives everything: states, the numbers of each head, and shared
    coefficients."""

    kind = "token"

    def __init__(self, *sizes: Any, **where: Any) -> None:
        super().__init__(*sizes, **where)
        self.widths = [self.heads * self.sizes[0], self.heads * self.drawn, 2 * self.rank]
        self.inputs = sum(self.widths)
        self.bias = nn.Parameter(torch.empty(sum(self.widths[1:]), **where))
        self.reset_parameters()

    def _draw(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        bias = nn.functional.pad(self.bias.to(inputs.dtype), (self.widths[0], 0))
        state, drawn, shared = (inputs + bias).split(self.widths, -1)
        return state.unflatten(-1, (self.heads, -1)), drawn.unflatten(-1, (self.heads, -1)), shared


class HeadContext(Context):
    """The layer's projection gives states alone. A head draws its numbers from its own state, and the shared
    coefficients come from all states."""

    kind = "head"

    def __init__(self, *sizes: Any, **where: Any) -> None:
        super().__init__(*sizes, **where)
        n, _ = self.sizes
        self.inputs = self.heads * n
        self.weight = nn.Parameter(torch.empty(self.heads, n, self.drawn, **where))
        self.bias = nn.Parameter(torch.empty(self.heads, self.drawn, **where))
        self.shared = Affine(self.heads * n, 2 * self.rank, **where)  # coefficients of B and of Q
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.sizes[0] ** -0.5)
        nn.init.normal_(self.shared.weight, std=self.inputs**-0.5)
        nn.init.zeros_(self.shared.bias)
        super().reset_parameters()

    def _draw(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state, dtype = inputs.unflatten(-1, (self.heads, -1)), inputs.dtype
        bias = self.bias.to(dtype).unsqueeze(1)
        drawn = torch.baddbmm(bias, state.transpose(0, 1), self.weight.to(dtype)).transpose(0, 1)
        shared = nn.functional.linear(inputs, self.shared.weight.to(dtype), self.shared.bias.to(dtype))
        # tokens first in memory too, as the planner wants all that is made of it; and torch.compile, which keeps
        # parts of it for the backward pass, then has no stride that depends on the number of tokens
        return state, drawn.contiguous(), shared


CONTEXTS: dict[str, type[Context]] = {kind.kind: kind for kind in (TokenContext, HeadContext)}
BASES = ("bases_A", "bases_B", "bases_C")  # the names of parameters that weight decay may leave alone
