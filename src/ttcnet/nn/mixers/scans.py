"""Recurrences over a sequence, computed in parallel. Each equals its token-by-token definition.

    linear_scan   h_t = a_t h_{t-1} + b_t, element by element                                       Mamba
    decay_scan    S_t = α_t S_{t-1} + k_t v_t',  y_t = S_t' q_t                                     Mamba2, RetNet
    delta_scan    S_t = α_t S_{t-1} + β_t k_t (v_t - α_t S_{t-1}' k_t)',  y_t = S_t' q_t            Gated DeltaNet

The last two cut the sequence into chunks: within a chunk they are matrix products of chunk by chunk size, as in
attention, and only the matrices S pass from chunk to chunk. Decays come as logarithms (0 or less), and only
exponentials of sums over stretches of tokens are taken, never quotients of products that may have vanished.

Inputs are float32 or float64, and the arithmetic has the same dtype, also under autocast.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ttcnet.lqr.arithmetic import without_autocast

CHUNK = 64  # tokens; sequences of up to twice as many are one chunk


def in_chunks(x: Tensor, chunk: int) -> Tensor:
    """Cut (batch, length, ...) into (batch, chunks, tokens, ...), filled up with zeros, which change no state."""
    length = x.shape[1]
    if length <= 2 * chunk:
        return x.unsqueeze(1)
    missing = -length % chunk
    if missing:
        x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, missing))
    return x.unflatten(1, (-1, chunk))


def out_of_chunks(y: Tensor, length: int) -> Tensor:
    """Join (batch, chunks, tokens, ...) to (batch, length, ...)."""
    return y.flatten(1, 2)[:, :length]


def decay_between(passed: Tensor) -> Tensor:
    """exp(passed_i - passed_j) for i >= j and 0 elsewhere, (..., s) to (..., s, s): the share of j left at i."""
    size = passed.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=passed.device).tril()
    return (passed.unsqueeze(-1) - passed.unsqueeze(-2)).masked_fill(~later, -math.inf).exp()


def carry(written: Tensor, total: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """States before each chunk, and after the last one.

    Args:
        written: the sum that each chunk adds to the state, (batch, chunks, *heads, n, p).
        total: log of the decay over each chunk, (batch, chunks, *heads).
        state: before the first chunk, (batch, *heads, n, p); None for zeros.
    """
    chunks = written.shape[1]
    if chunks == 1:
        before = torch.zeros_like(written) if state is None else state.unsqueeze(1)
        return before, (before * total.exp()[..., None, None] + written)[:, 0]
    first = torch.zeros_like(written[:, :1]) if state is None else state.unsqueeze(1)
    # stretches (i, j) of chunks j+1..i, each summed for itself: differences of long sums would lose digits
    total = total.movedim(1, -1)  # (batch, *heads, chunks)
    steps = F.pad(total, (1, 0)).unsqueeze(-1).expand(*total.shape[:-1], chunks + 1, chunks + 1)
    later = torch.ones(chunks + 1, chunks + 1, dtype=torch.bool, device=total.device).tril()
    stretch = steps.masked_fill(~later.tril(-1), 0).cumsum(-2).masked_fill(~later, -math.inf).exp()
    parts = torch.cat([first, written], 1).movedim(1, -3)  # (batch, *heads, chunks + 1, n, p)
    states = (stretch @ parts.flatten(-2)).unflatten(-1, parts.shape[-2:]).movedim(-3, 1)
    return states[:, :-1], states[:, -1]


def decay_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    state: Tensor | None = None,
    keep: bool = False,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor | None]:
    """S_t = exp(log_decay_t) S_{t-1} + k_t v_t' and y_t = S_t' q_t for g groups of r heads.

    Args:
        q, k: (batch, length, g, n), shared by the heads of a group.
        v: (batch, length, g, r, p).
        log_decay: (batch, length, g, r), 0 or less.
        state: S_0, (batch, g, r, n, p); None for zeros.
        keep: whether to return the last S.

    Returns:
        y (batch, length, g, r, p), and the last S or None.
    """
    with without_autocast(q.device):
        length = q.shape[1]
        q, k = (in_chunks(x, chunk).transpose(2, 3) for x in (q, k))  # (batch, chunks, g, s, n)
        v = in_chunks(v, chunk).movedim(2, 4)  # (batch, chunks, g, r, s, p)
        passed = in_chunks(log_decay, chunk).movedim(2, 4).cumsum(-1)  # (batch, chunks, g, r, s)
        y = ((q @ k.mT).unsqueeze(3) * decay_between(passed)) @ v
        last = None
        if keep or state is not None or q.shape[1] > 1:
            left = (passed[..., -1:] - passed).exp().unsqueeze(-1)
            written = (k.unsqueeze(3) * left).mT @ v
            before, last = carry(written, passed[..., -1], state)
            y = y + (q.unsqueeze(3) * passed.exp().unsqueeze(-1)) @ before
        return out_of_chunks(y.movedim(4, 2), length), last if keep else None


def delta_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor | None = None,
    keep: bool = False,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor | None]:
    """The gated delta rule: forget, then replace a share β of the value under the key k_t by v_t.

    With w_t = β_t (v_t - α_t S_{t-1}' k_t), the value that token t writes, the rule is S_t = α_t S_{t-1} + k_t w_t'.
    Within a chunk the w_t solve a unit triangular system, one for all its tokens.

    Args:
        q, k: (batch, length, heads, n).
        v: (batch, length, heads, p).
        log_decay: log α, 0 or less, and beta: (batch, length, heads).
        state: S_0, (batch, heads, n, p); None for zeros.
        keep: whether to return the last S.

    Returns:
        y (batch, length, heads, p), and the last S or None.
    """
    with without_autocast(q.device):
        length, size = q.shape[1], v.shape[-1]
        q, k, v = (in_chunks(x, chunk).transpose(2, 3) for x in (q, k, v))  # (batch, chunks, heads, s, .)
        beta = in_chunks(beta, chunk).transpose(2, 3).unsqueeze(-1)
        passed = in_chunks(log_decay, chunk).transpose(2, 3).cumsum(-1)
        between, since = decay_between(passed), passed.exp().unsqueeze(-1)
        system, scores = (beta * k) @ k.mT * between, q @ k.mT * between
        alone = state is None and q.shape[1] == 1  # nothing to read at the start of a chunk
        wanted = beta * v if alone else torch.cat([beta * v, beta * since * k], -1)
        solved = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
        left = (passed[..., -1:] - passed).exp().unsqueeze(-1)
        if alone:
            last = ((left * k).mT @ solved)[:, 0] if keep else None
            return out_of_chunks((scores @ solved).transpose(2, 3), length), last
        S = torch.zeros_like(k[:, 0].mT @ v[:, 0]) if state is None else state
        parts = (solved[..., :size], solved[..., size:], scores, since * q, left * k, since[..., -1:, :])
        outputs = []
        for write, read, score, query, key, total in zip(*(part.unbind(1) for part in parts), strict=True):
            write = write - read @ S
            outputs.append(query @ S + score @ write)
            S = total * S + key.mT @ write
        return out_of_chunks(torch.stack(outputs, 1).transpose(2, 3), length), S if keep else None


def linear_scan(a: Tensor, b: Tensor, first: Tensor | None = None) -> Tensor:
    """h_t = a_t h_{t-1} + b_t, element by element, for a, b and h (batch, length, ...), and h_0 = first (batch, ...).

    The sequence is cut into about sqrt(length) stretches of as many tokens. All stretches are scanned side by side,
    then the ends of the stretches, and the state that enters a stretch is added to all its tokens. The gradient is the
    same recurrence, backwards in time.
    """
    if a.shape[1] == 1:
        return b if first is None else torch.addcmul(b, a, first.unsqueeze(1))
    h: Tensor = _LinearScan.apply(a, b, torch.zeros_like(a[:, 0]) if first is None else first)
    return h


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, first: Tensor) -> Tensor:
        h = _scan(a, b, first, reverse=False)
        ctx.save_for_backward(a, h, first)
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, h, first = ctx.saved_tensors
        ahead = torch.cat([a[:, 1:], torch.zeros_like(a[:, :1])], 1)
        grad = _scan(ahead, grads[0], torch.zeros_like(first), reverse=True)
        before = torch.cat([first.unsqueeze(1), h[:, :-1]], 1)
        return grad * before, grad, grad[:, 0] * a[:, 0]


def _scan(a: Tensor, b: Tensor, first: Tensor, reverse: bool) -> Tensor:
    length = a.shape[1]
    size = math.isqrt(length - 1) + 1
    if -length % size:  # zeros at the end; in reverse they come first, and so does the state, which is zero there
        a, b = (F.pad(x, (0, 0) * (x.ndim - 2) + (0, -length % size)) for x in (a, b))
    a, b = (x.unflatten(1, (-1, size)) for x in (a, b))
    order = range(size)[::-1] if reverse else range(size)
    steps_a, steps_b = a.unbind(2), b.unbind(2)
    h: list[Tensor] = [b[:, :, 0]] * size
    decay: list[Tensor] = [a[:, :, 0]] * size
    previous = None
    for t in order:
        h[t] = steps_b[t] if previous is None else torch.addcmul(steps_b[t], steps_a[t], h[previous])
        decay[t] = steps_a[t] if previous is None else steps_a[t] * decay[previous]
        previous = t
    assert previous is not None
    entering = [first] * a.shape[1]
    state = first
    for c in range(a.shape[1])[::-1] if reverse else range(a.shape[1]):
        entering[c] = state
        state = torch.addcmul(h[previous][:, c], decay[previous][:, c], state)
    whole = torch.addcmul(torch.stack(h, 2), torch.stack(decay, 2), torch.stack(entering, 1).unsqueeze(2))
    return whole.flatten(1, 2)[:, :length]
