"""Shared by all mixers: one signature, one meaning of mask and state, two directions, and initial values."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ttcnet.bounds import check_size
from ttcnet.errors import fail
from ttcnet.lqr.arithmetic import working_dtype


@dataclass
class State:
    """The memory of a mixer of the tokens it has seen, for generation. Its tensors start with the batch."""

    def reorder(self, index: Tensor) -> None:
        """Keep the sequences `index` (k,) of the batch, in that order, repetitions allowed: beam search."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                setattr(self, field.name, value.index_select(0, index.to(value.device)))
            elif isinstance(value, State):
                value.reorder(index)


@dataclass
class Memory(State):
    """The state of a recurrence: of fixed size, however long the sequence.

    Args:
        memory: the state of the recurrence, (batch, ...), in float32 or float64.
        recent: the last inputs of the short convolution, (batch, kernel - 1, channels).
        seen: how many real tokens have passed, (batch,).
    """

    memory: Tensor
    recent: Tensor | None = None
    seen: Tensor | None = None


def store(old: Tensor, new: Tensor) -> Tensor:
    """The new content of a state. Written over the old one, at the same address as CUDA graphs want it, unless a
    gradient is to flow through it."""
    new = new.to(old.dtype)
    compiling = torch.compiler.is_compiling()
    frozen = not compiling and old.is_inference() and not torch.is_inference_mode_enabled()
    if new.requires_grad or old.requires_grad or frozen or new.shape != old.shape:
        return new
    with torch.no_grad():
        return old.copy_(new)


class Mixer(nn.Module):
    """Mixes tokens: x (batch, length, width) to the same shape. No residual and no norm around it: a block has those.

    Args:
        width: size of a token.
        heads: number of heads; mixers without heads ignore it.
        causal: a token sees itself and the past. Otherwise it sees all tokens: attention is not masked, and a
            recurrence runs twice, forwards and backwards in time. The two directions share the projections in and out;
            each direction has its own scan (short convolution, step sizes, decays).
            Their outputs are added.
        inner: the internal width, which scales the number of parameters; each kind says its meaning and its default.
    """

    per_head: ClassVar[bool] = True  # `inner` is a multiple of heads
    remembers: ClassVar[type[State] | tuple[type[State], ...] | None] = Memory  # the types of a state

    def __init__(self, width: int, *, heads: int, causal: bool = True, inner: int | None = None) -> None:
        super().__init__()
        self.width = positive("width", width, "Pass the size of a token, such as 128.")
        self.heads = positive("heads", heads, "Pass the number of heads, such as 4.")
        self.inner = positive("inner", self.default_inner(width) if inner is None else inner, "Pass a size.")
        self.causal = causal
        self.directions = 1 if causal else 2
        unit = self.unit(heads)
        if self.inner % unit:
            nearest = max(unit, round(self.inner / unit) * unit)
            rule = f"of {type(self).__name__} must be a multiple of {unit} for {heads} heads"
            remedy = f"Pass inner={nearest}, or another number of heads."
            fail("inner", rule, f"{self.inner}{' (the default)' if inner is None else ''}", remedy, "conflict")

    @classmethod
    def default_inner(cls, width: int) -> int:
        return width

    @classmethod
    def unit(cls, heads: int) -> int:
        """`inner` is a multiple of this."""
        return heads if cls.per_head else 1

    @property
    def head_size(self) -> int:
        return self.inner // self.heads

    def forward(self, x: Tensor, *, mask: Tensor | None = None, state: State | None = None) -> Tensor:
        """Mix.

        Args:
            x: (batch, length, width).
            mask: (batch, length), True where a token is real. Padding, left or right, influences no real token and
                comes back as zeros.
            state: from `new_state`. The tokens of x then follow those seen before, and the state is updated in place.
        """
        self._check(x, mask, state)
        if x.shape[1] == 0:
            return x
        if mask is not None:
            x = x.masked_fill(~mask.unsqueeze(-1), 0)
        y = self.mix(x, mask, state)
        return y if mask is None else y.masked_fill(~mask.unsqueeze(-1), 0)

    def mix(self, x: Tensor, mask: Tensor | None, state: State | None) -> Tensor:
        """Do the work of `forward` after its checks; padded tokens are zeros."""
        raise NotImplementedError

    def new_state(
        self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> State | None:
        """The state before the first token; None if the mixer has none. dtype is that of the tokens."""
        if not self.causal:
            remedy = "Build the mixer with causal=True."
            fail("causal", "must be True for generation token by token", self.causal, remedy, "stateful")
        weight = next(self.parameters())
        return self._new_state(batch, torch.device(device or weight.device), dtype or weight.dtype)

    def _new_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> State | None:
        return None

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        raise NotImplementedError

    def both_ways(self, x: Tensor) -> Tensor:
        """Put the reversed sequence beside (batch, length, k). Returns (batch, length, directions * k)."""
        return x if self.causal else torch.cat([x, x.flip(1)], -1)

    def add_ways(self, y: Tensor) -> Tensor:
        """The directions added up, each in the order of the tokens: (batch, length, directions * k) to (..., k)."""
        if self.causal:
            return y
        ahead, back = y.chunk(2, -1)
        return ahead + back.flip(1)

    def still(self, gates: Tensor, mask: Tensor | None) -> Tensor:
        """Gates (batch, length, directions * k) in the order of each direction, zero where a token is padding."""
        if mask is None:
            return gates
        ways = mask.unsqueeze(-1) if self.causal else torch.stack([mask, mask.flip(1)], -1)
        return gates.unflatten(-1, (self.directions, -1)).masked_fill(~ways.unsqueeze(-1), 0).flatten(-2)

    def _check(self, x: Tensor, mask: Tensor | None, state: State | None) -> None:
        if x.ndim != 3 or x.shape[-1] != self.width:
            rule = f"must have shape (batch, length, width = {self.width})"
            fail("x", rule, tuple(x.shape), "Reshape it, or build the mixer with its width.", "shape")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:2]):
            rule, remedy = "must be a bool tensor (batch, length), True for real tokens", "Convert it with mask.bool()."
            fail("mask", rule, f"{mask.dtype} {tuple(mask.shape)}", remedy, "shape")
        if state is not None and not self.causal:
            remedy = "Pass the whole sequence at once."
            fail("state", "must be None when causal=False", type(state).__name__, remedy, "stateful")
        if state is not None and (self.remembers is None or not isinstance(state, self.remembers)):
            rule, remedy = "must be one that this mixer made", "Pass a state that its new_state returned."
            fail("state", rule, type(state).__name__, remedy, "type")

    def extra_repr(self) -> str:
        return f"{self.width}, heads={self.heads}, causal={self.causal}, inner={self.inner}"


def unit_length(x: Tensor) -> Tensor:
    """x (..., k) scaled to length 1."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """x (..., k) scaled to a mean square of 1, times weight (k,)."""
    return F.rms_norm(x, weight.shape, weight.to(x.dtype), 1e-5)


def upcast(*values: Tensor) -> list[Tensor]:
    """The values in float32, or in float64 if they come in it: recurrences have no digits to spare."""
    return [value.to(working_dtype(value.dtype)) for value in values]


def draw_linear(layer: nn.Linear) -> None:
    """Weights of variance 1 / inputs, cut at two standard deviations; no bias."""
    std = layer.in_features**-0.5
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)


def draw_step_bias(bias: Tensor) -> None:
    """softplus(bias) log-uniform between 0.001 and 0.1: Mamba's step sizes."""
    step = torch.empty_like(bias).uniform_(math.log(1e-3), math.log(1e-1)).exp()
    fill(bias, step + torch.log(-torch.expm1(-step)))


@torch.no_grad()
def fill(parameter: Tensor, values: Tensor) -> None:
    """Set a parameter to given values, as the functions of torch.nn.init do with theirs.

    Transformers marks weights that came from a checkpoint, and has those functions pass over them; so does this one.
    """
    if not getattr(parameter, "_is_hf_initialized", False):
        parameter.copy_(values)


def positive(field: str, value: object, remedy: str) -> int:
    return check_size(field, value, 1, remedy)
