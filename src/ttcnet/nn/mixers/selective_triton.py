"""The kernels of selective.py, in Triton: not to be imported without it.

A program has one sequence, one direction and a block of channels, and takes the tokens chunk by chunk: it loads those
of a chunk, then steps through them with the states in registers. In training the forward pass writes down the states
that enter each chunk. From these the backward pass computes the states of the chunk again, last chunk first, holds them
in registers, and goes back through them. Tokens past the end have a step of zero, which changes nothing.

Gradients that several programs contribute to are summed afterwards, in a fixed order: those of B and C over the blocks
of channels, that of A over the sequences.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ttcnet.machine.compile_cache import usable

from .selective import CHUNK

triton.knobs.cache.dir = usable("TRITON_CACHE_DIR", triton.knobs.cache.dir)
FORWARD, BACKWARD = 32, 16  # channels of a program; the backward pass holds the states of all tokens of a chunk


def forward(
    inputs: list[Tensor], first: Tensor | None, y: Tensor, last: Tensor | None, entering: Tensor | None
) -> None:
    """Fill y, the last states and those that enter the chunks. Everything is contiguous and in float32."""
    flags = dict(FIRST=first is not None, LAST=last is not None, KEEP=entering is not None)
    _launch(_forward, FORWARD, [*inputs, first, y, last, entering], flags)


def backward(
    inputs: list[Tensor], entering: Tensor, dy: Tensor, dlast: Tensor | None, with_first: bool
) -> list[Tensor]:
    """Gradients of u, step, A, B and C, and of the first states if wanted."""
    u, _, A, B, _ = inputs
    blocks = triton.cdiv(u.shape[3], BACKWARD)
    du, dstep = torch.empty_like(u), torch.empty_like(u)
    dA = torch.empty((u.shape[0], *A.shape), dtype=u.dtype, device=u.device)
    dB, dC = (torch.empty((blocks, *B.shape), dtype=u.dtype, device=u.device) for _ in range(2))
    dfirst = torch.empty_like(dA) if with_first else None
    flags = dict(FIRST=with_first, LAST=dlast is not None)
    _launch(_backward, BACKWARD, [*inputs, entering, dy, dlast, du, dstep, dA, dB, dC, dfirst], flags)
    grads = [du, dstep, dA.sum(0), dB.sum(0), dC.sum(0)]
    return grads if dfirst is None else [*grads, dfirst]


def _launch(kernel: Any, channels: int, tensors: list[Tensor | None], flags: dict[str, bool]) -> None:
    u, A = tensors[0], tensors[2]
    assert u is not None
    assert A is not None
    batch, length, ways, inner = u.shape
    states = triton.next_power_of_2(A.shape[2])
    grid = (batch, ways, triton.cdiv(inner, channels))
    sizes = dict(N=A.shape[2], STATES=states, CHANNELS=channels, CHUNK=CHUNK)
    how = dict(num_warps=max(1, states // 16), enable_fp_fusion=True)  # the latter's default depends on the version
    with torch.cuda.device_of(u):
        kernel[grid](*tensors, length, inner, **flags, **sizes, **how)


@triton.jit(do_not_specialize=["length"])
def _forward(
    u,
    step,
    A,
    B,
    C,
    first,
    y,
    last,
    entering,
    length,
    inner,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    KEEP: tl.constexpr,
    N: tl.constexpr,
    STATES: tl.constexpr,
    CHANNELS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    sequence, way, ways = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    channel, state = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS), tl.arange(0, STATES)
    cell, real = channel[:, None] * N + state[None, :], (channel < inner)[:, None] & (state < N)[None, :]
    count, line = tl.cdiv(length, CHUNK), ways * inner
    own = (sequence * ways + way) * inner * N + cell
    A = tl.load(A + way * inner * N + cell, real, 0.0) * 1.4426950408889634  # exp(x) = exp2(x / log(2))
    h = tl.load(first + own, real, 0.0) if FIRST else tl.zeros((CHANNELS, STATES), tl.float32)
    for c in range(count):
        if KEEP:
            tl.store(entering + ((sequence * count + c) * ways + way) * inner * N + cell, h, real)
        row = (sequence * length + c * CHUNK) * ways + way
        at, shared, left = row * inner + channel, row * N + state, length - c * CHUNK
        us, steps, Bs, Cs = (), (), (), ()
        for i in tl.static_range(CHUNK):  # all loads before the first store: the compiler cannot move them past one
            inside, known = channel < tl.where(i < left, inner, 0), state < tl.where(i < left, N, 0)
            us += (tl.load(u + at + i * line, inside, 0.0),)
            steps += (tl.load(step + at + i * line, inside, 0.0),)
            Bs += (tl.load(B + shared + i * ways * N, known, 0.0),)
            Cs += (tl.load(C + shared + i * ways * N, known, 0.0),)
        for i in tl.static_range(CHUNK):
            h = tl.exp2(steps[i][:, None] * A) * h + (steps[i] * us[i])[:, None] * Bs[i][None, :]
            inside = channel < tl.where(i < left, inner, 0)
            tl.store(y + at + i * line, tl.sum(h * Cs[i][None, :], 1), inside)
    if LAST:
        tl.store(last + own, h, real)


@triton.jit(do_not_specialize=["length"])
def _backward(
    u,
    step,
    A,
    B,
    C,
    entering,
    dy,
    dlast,
    du,
    dstep,
    dA,
    dB,
    dC,
    dfirst,
    length,
    inner,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    N: tl.constexpr,
    STATES: tl.constexpr,
    CHANNELS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    sequence, way, ways = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    channel, state = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS), tl.arange(0, STATES)
    cell, real = channel[:, None] * N + state[None, :], (channel < inner)[:, None] & (state < N)[None, :]
    count, line = tl.cdiv(length, CHUNK), ways * inner
    own = (sequence * ways + way) * inner * N + cell
    A = tl.load(A + way * inner * N + cell, real, 0.0) * 1.4426950408889634
    to_A = tl.zeros((CHANNELS, STATES), tl.float32)
    # the gradient of the states, on its way from a token to the one before
    g = tl.load(dlast + own, real, 0.0) if LAST else tl.zeros((CHANNELS, STATES), tl.float32)
    for back in range(count):
        c = count - 1 - back
        row = (sequence * length + c * CHUNK) * ways + way
        at, shared, left = row * inner + channel, row * N + state, length - c * CHUNK
        share = shared + tl.program_id(2) * tl.num_programs(0).to(tl.int64) * length * ways * N
        us, steps, Bs, Cs, dys = (), (), (), (), ()
        for i in tl.static_range(CHUNK):
            inside, known = channel < tl.where(i < left, inner, 0), state < tl.where(i < left, N, 0)
            us += (tl.load(u + at + i * line, inside, 0.0),)
            steps += (tl.load(step + at + i * line, inside, 0.0),)
            Bs += (tl.load(B + shared + i * ways * N, known, 0.0),)
            Cs += (tl.load(C + shared + i * ways * N, known, 0.0),)
            dys += (tl.load(dy + at + i * line, inside, 0.0),)
        hs = (tl.load(entering + ((sequence * count + c) * ways + way) * inner * N + cell, real, 0.0),)
        for i in tl.static_range(CHUNK):
            hs += (tl.exp2(steps[i][:, None] * A) * hs[i] + (steps[i] * us[i])[:, None] * Bs[i][None, :],)
        for i in tl.static_range(CHUNK - 1, -1, -1):
            inside, known = channel < tl.where(i < left, inner, 0), state < tl.where(i < left, N, 0)
            g += dys[i][:, None] * Cs[i][None, :]
            to_B = tl.sum(g * (steps[i] * us[i])[:, None], 0)
            to_C = tl.sum(hs[i + 1] * dys[i][:, None], 0)
            written = tl.sum(g * Bs[i][None, :], 1)
            g *= tl.exp2(steps[i][:, None] * A)
            decayed = g * hs[i]
            to_A += decayed * steps[i][:, None]
            to_step = tl.sum(decayed * A, 1) * 0.6931471805599453 + us[i] * written
            tl.store(du + at + i * line, steps[i] * written, inside)
            tl.store(dstep + at + i * line, to_step, inside)
            tl.store(dB + share + i * ways * N, to_B, known)
            tl.store(dC + share + i * ways * N, to_C, known)
    tl.store(dA + own, to_A, real)
    if FIRST:
        tl.store(dfirst + own, g, real)
