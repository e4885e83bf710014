"""Mamba's scan: in plain PyTorch, and by kernels (selective_triton.py) that write no states to memory but those at
every CHUNK tokens. The kernels are operators of torch, ttcnet::selective_scan and its backward pass, so that
torch.compile and other tracers see one opaque step.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from ttcnet.lqr.adjoint import refuse_second_derivatives

from .scans import linear_scan

CHUNK = 8  # tokens between the states that are kept for the backward pass
LARGEST = 64  # states of a channel
_TRITON = find_spec("triton") is not None


def selective_scan(
    u: Tensor, step: Tensor, A: Tensor, B: Tensor, C: Tensor, first: Tensor | None = None, keep: bool = False
) -> tuple[Tensor, Tensor | None]:
    """h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t u_t and y_t = C_t' h_t, with n states for every channel.

    In float32 on a CUDA device where Triton is installed, a kernel of its own, with first derivatives alone; otherwise
    plain PyTorch.

    Args:
        u, step: inputs and Δ, (batch, length, directions, channels).
        A: 0 or less, (directions, channels, n).
        B, C: (batch, length, directions, n).
        first: h_0, (batch, directions, channels, n); None for zeros.
        keep: whether to return the last h.

    Returns:
        y (batch, length, directions, channels), and the last h or None.
    """
    tensors = [u, step, A, B, C] if first is None else [u, step, A, B, C, first]
    if not _has_kernel(tensors):
        return plain_scan(u, step, A, B, C, first, keep)
    train = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    inputs = [x.contiguous() for x in (u, step, A, B, C)]  # here, where the compiler makes it part of another step
    y, last, _ = torch.ops.ttcnet.selective_scan(*inputs, first, keep, train)
    return y, last if keep else None


def _has_kernel(tensors: list[Tensor]) -> bool:
    small = tensors[2].shape[-1] <= LARGEST
    return _TRITON and small and all(x.is_cuda and x.dtype == torch.float32 for x in tensors)


def plain_scan(
    u: Tensor, step: Tensor, A: Tensor, B: Tensor, C: Tensor, first: Tensor | None = None, keep: bool = False
) -> tuple[Tensor, Tensor | None]:
    """`selective_scan` with all states in memory: the reference."""
    a = (step.unsqueeze(-1) * A).exp()  # (batch, length, directions, channels, n)
    b = (step * u).unsqueeze(-1) * B.unsqueeze(-2)
    h = linear_scan(a, b, first)
    return (h @ C.unsqueeze(-1)).squeeze(-1), h[:, -1] if keep else None


def _shapes(u: Tensor, A: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of the last states, and of those that enter the chunks."""
    batch, length, *_ = u.shape
    return (batch, *A.shape), (batch, (length + CHUNK - 1) // CHUNK, *A.shape)


def _allocate(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate y, last and entering; the last two are empty where they are not wanted."""
    u, _, A, _, _, _, keep, train = arguments
    one, several = _shapes(u, A)
    shapes = u.shape, one if keep else (0,), several if train else (0,)
    y, last, entering = (torch.empty(shape, dtype=u.dtype, device=u.device) for shape in shapes)
    return y, last, entering


def _scan(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    from . import selective_triton

    *tensors, first, keep, train = arguments
    y, last, entering = _allocate(*arguments)
    selective_triton.forward(
        [x.contiguous() for x in tensors],
        None if first is None else first.contiguous(),
        y,
        last if keep else None,
        entering if train else None,
    )
    return y, last, entering


def _scan_backward(*arguments: Any) -> list[Tensor]:
    from . import selective_triton

    *tensors, entering, dy, dlast, with_first = arguments
    inputs = [x.contiguous() for x in tensors]
    dlast = None if dlast is None else dlast.contiguous()
    return selective_triton.backward(inputs, entering, dy.contiguous(), dlast, with_first)


def _scan_backward_fake(*arguments: Any) -> list[Tensor]:
    *tensors, _, _, _, with_first = arguments
    u, _, A, _, _ = tensors
    shapes = [x.shape for x in tensors] + ([_shapes(u, A)[0]] if with_first else [])
    return [torch.empty(shape, dtype=u.dtype, device=u.device) for shape in shapes]


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, first, keep, ctx.train = inputs
    _, last, entering = output
    ctx.with_first = first is not None
    ctx.save_for_backward(*tensors, entering)
    ctx.mark_non_differentiable(*([entering] if keep else [last, entering]))
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dy: Tensor | None, dlast: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    refuse_second_derivatives("selective_scan in float32 on a CUDA device", "compute in float64")
    assert ctx.train, "the forward pass kept no states: it was called with train=False"
    dy = torch.zeros_like(ctx.saved_tensors[0]) if dy is None else dy
    grads = torch.ops.ttcnet.selective_scan_backward(*ctx.saved_tensors, dy, dlast, ctx.with_first)
    return *grads, *([None] * (8 - len(grads)))


_library = torch.library.Library("ttcnet", "FRAGMENT")
for _name, _signature, _compute, _fake in (
    ("selective_scan", "Tensor? first, bool keep, bool train) -> (Tensor, Tensor, Tensor)", _scan, _allocate),
    (
        "selective_scan_backward",
        "Tensor entering, Tensor dy, Tensor? dlast, bool with_first) -> Tensor[]",
        _scan_backward,
        _scan_backward_fake,
    ),
):
    _library.define(
        f"{_name}(Tensor u, Tensor step, Tensor A, Tensor B, Tensor C, {_signature}", tags=torch.Tag.pt2_compliant_tag
    )
    _library.impl(_name, _compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"ttcnet::{_name}", _fake, lib=_library)
torch.library.register_autograd("ttcnet::selective_scan", _differentiate, setup_context=_remember, lib=_library)
