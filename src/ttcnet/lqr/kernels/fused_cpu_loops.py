"""The inner loops of fused_cpu.py, compiled by numba at first use and kept on disk.

Up to BLOCK problems are solved side by side: every array here has them as its last dimension, and every innermost loop
runs over them, so that the compiler turns it into SIMD whatever n and m are. Of P, which is symmetric, the lower half
is kept, row by row: entry (i, k), k <= i, at i (i + 1) / 2 + k.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ttcnet.machine.compile_cache import jit

Array = Any
BLOCK = 128  # more do not fit into the processor's second cache, fewer leave SIMD idle
CANCELLED = 256.0  # max(P) |h| over |λ|, λ = P h, beyond which λ has too few digits in float32
_compile = jit(nogil=True, fastmath={"contract", "nsz"}, error_model="numpy")


@_compile
def _fade(rate: Array, t: int, out: Array) -> None:
    """exp(-t rate), with zero for values too small for normal numbers (see arithmetic.decayed)."""
    smallest = 16.0 * math.sqrt(np.finfo(rate.dtype).tiny)
    width = rate.shape[1]
    for i in range(len(rate)):
        for s in range(width):
            value = math.exp(-t * rate[i, s])
            out[i, s] = value if t == 1 or not value < smallest else 0.0


@_compile
def _absorb(P: Array, b: Array, w: Array, v: Array, d: Array, scaled: Array, scale: Array, largest: Array) -> None:
    """One action absorbed into P. v becomes P b before, d becomes 1 + w b' v, and largest the largest d so far."""
    n, width = b.shape
    v[:] = 0.0
    d[:] = 0.0
    at = 0
    for i in range(n):
        bi, vi = b[i], v[i]
        for k in range(i):
            entry, bk, vk = P[at], b[k], v[k]
            for s in range(width):
                vi[s] += entry[s] * bk[s]
            for s in range(width):
                vk[s] += entry[s] * bi[s]
            at += 1
        entry = P[at]
        for s in range(width):
            vi[s] += entry[s] * bi[s]
        at += 1
    for i in range(n):
        bi, vi = b[i], v[i]
        for s in range(width):
            d[s] += bi[s] * vi[s]
    for s in range(width):
        value = 1 + w[s] * d[s]
        d[s] = value if value > 0 else np.nan  # no minimum, in this problem alone, or too few digits
        scale[s] = math.sqrt(w[s] / d[s])
    for s in range(width):
        largest[s] = largest[s] if d[s] <= largest[s] else d[s]  # NaN, too, is larger than any
    for i in range(n):
        vi, si = v[i], scaled[i]
        for s in range(width):
            si[s] = vi[s] * scale[s]
    at = 0
    for i in range(n):
        si = scaled[i]
        for k in range(i + 1):
            entry, sk = P[at], scaled[k]
            for s in range(width):
                entry[s] -= si[s] * sk[s]
            at += 1


@_compile
def _look(b: Array, w: Array, top: Array, size: Array, largest: Array) -> None:
    """Raises largest to at least w |b|^2 max(P) / 32, with max(P) in top: how much smaller P may be along b than
    elsewhere."""
    n, width = b.shape
    size[:] = 0.0
    for i in range(n):
        bi = b[i]
        for s in range(width):
            size[s] += bi[s] * bi[s]
    for s in range(width):
        size[s] *= w[s] * top[s] / 32
        largest[s] = largest[s] if size[s] <= largest[s] else size[s]


@_compile
def _top(P: Array, n: int, top: Array) -> None:
    """max(P), which is on its diagonal."""
    width = len(top)
    top[:] = P[0]
    for i in range(1, n):
        entry = P[i * (i + 3) // 2]
        for s in range(width):
            top[s] = entry[s] if entry[s] > top[s] else top[s]


@_compile
def _weigh(top: Array, Q: Array, decay_Q: Array, m: int) -> None:
    """max(P) at the first step counts more for a single action, and if Q is next to nothing: see careful.cuh."""
    n, width = decay_Q.shape
    for s in range(width):
        of_Q = 0.0
        for i in range(n):
            of_Q = max(of_Q, Q[i * (i + 3) // 2, s] * math.exp(-2 * decay_Q[i, s]))
        if 1000 * of_Q < top[s]:
            top[s] *= 128
        elif m == 1:
            top[s] *= 32


@_compile
def _compare(top: Array, h: Array, lam: Array, size: Array, size2: Array, faint: Array, firm: Array) -> None:
    """Adds max(P) |h| to faint, and |λ|, λ = P h, to firm."""
    n, width = h.shape
    size[:], size2[:] = 0.0, 0.0
    for i in range(n):
        hi, li = h[i], lam[i]
        for s in range(width):
            size[s] += hi[s] * hi[s]
            size2[s] += li[s] * li[s]
    for s in range(width):
        faint[s] += top[s] * math.sqrt(size[s])
        firm[s] += math.sqrt(size2[s])


@_compile
def _step_back(P: Array, t: int, a: Array, Q: Array, decay_A: Array, decay_Q: Array, A: Array, scale: Array) -> None:
    """P° of step t becomes P of step t - 1."""
    n, width = a.shape
    _fade(decay_A, t, A)
    _fade(decay_Q, t - 1, scale)
    for i in range(n):
        for s in range(width):
            A[i, s] = 1 + A[i, s] * a[i, s]
    at = 0
    for i in range(n):
        for k in range(i + 1):
            for s in range(width):
                P[at, s] = A[i, s] * A[k, s] * P[at, s] + scale[i, s] * scale[k, s] * Q[at, s]
            at += 1


@_compile
def _side_by_side(source: Array, first: int, last: int, per: int, out: Array) -> None:
    """Vectors of neighbouring problems, (problems, size), into (size, width); the last one fills the remaining
    columns."""
    width = out.shape[-1]
    for s in range(width):
        p = min(first + s, last - 1) // per
        for i in range(source.shape[1]):
            out[i, s] = source[p, i]


@_compile
def _lower_half(source: Array, first: int, last: int, per: int, out: Array) -> None:
    """The symmetric parts of matrices of neighbouring problems, (problems, n, n), side by side."""
    width = out.shape[-1]
    for s in range(width):
        p = min(first + s, last - 1) // per
        at = 0
        for i in range(source.shape[1]):
            for k in range(i + 1):
                out[at, s] = (source[p, i, k] + source[p, k, i]) / 2
                at += 1


@_compile
def _transposed(source: Array, first: int, last: int, per: int, out: Array) -> None:
    """B of neighbouring problems, (problems, n, m), into (m, n, width)."""
    width = out.shape[-1]
    for s in range(width):
        p = min(first + s, last - 1) // per
        for i in range(source.shape[1]):
            for j in range(source.shape[2]):
                out[j, i, s] = source[p, i, j]


@_compile
def forward(
    first: int, last: int, per_B: int, per_Q: int, a: Array, B: Array, Q: Array, Qf: Array, r_inv: Array,
    decay_A: Array, decay_B: Array, decay_Q: Array, h0: Array, horizon: int, stretch: int, keep: bool,
    u: Array, points: Array, lost: Array,
) -> None:  # fmt: skip
    n, m, dtype = a.shape[1], r_inv.shape[1], a.dtype
    width = max(1, min(BLOCK, last - first))
    half = n * (n + 1) // 2
    P, Qs = np.empty((half, width), dtype), np.empty((half, width), dtype)
    Bt, V = np.empty((m, n, width), dtype), np.empty((m, n, width), dtype)
    states, actions = np.empty((7, n, width), dtype), np.empty((5, m, width), dtype)
    as_, decay_As, decay_Qs, x = states[0], states[1], states[2], states[3]
    work, A, scale = states[4], states[5], states[6]
    rs, decay_Bs, fade, D, us = actions[0], actions[1], actions[2], actions[3], actions[4]
    w, root, size = np.empty(width, dtype), np.empty(width, dtype), np.empty(width, dtype)
    top, largest = np.empty(width, dtype), np.empty(width, dtype)
    for p in range(first, last, width):
        _side_by_side(a, p, last, 1, as_)
        _side_by_side(decay_A, p, last, 1, decay_As)
        _side_by_side(decay_Q, p, last, 1, decay_Qs)
        _side_by_side(h0, p, last, 1, x)
        _side_by_side(r_inv, p, last, 1, rs)
        _side_by_side(decay_B, p, last, 1, decay_Bs)
        _transposed(B, p, last, per_B, Bt)
        _lower_half(Q, p, last, per_Q, Qs)
        _lower_half(Qf, p, last, 1, P)
        largest[:] = 1.0
        for t in range(horizon, 0, -1):
            if t == 1:
                _top(P, n, top)
                _weigh(top, Qs, decay_Qs, m)
            if keep and t < horizon and t % stretch == 0:
                points[t // stretch - 1, :, p : min(p + width, last)] = P[:, : min(width, last - p)]
            _fade(decay_Bs, t, fade)
            for j in range(m):
                some = False
                for s in range(width):
                    w[s] = rs[j, s] * fade[j, s] * fade[j, s]
                    some = some or w[s] != 0
                if t == 1:
                    _look(Bt[j], w, top, size, largest)
                if some or t == 1:
                    _absorb(P, Bt[j], w, V[j], D[j], work, root, largest)
            if t > 1:
                _step_back(P, t, as_, Qs, decay_As, decay_Qs, A, scale)
        # the actions of the first step were absorbed in order; they are decided in reverse order
        _fade(decay_As, 1, A)
        for i in range(n):
            for s in range(width):
                x[i, s] = (1 + A[i, s] * as_[i, s]) * x[i, s]
        for j in range(m - 1, -1, -1):
            w[:] = 0.0
            for i in range(n):
                for s in range(width):
                    w[s] += V[j, i, s] * x[i, s]
            for s in range(width):
                us[j, s] = -rs[j, s] * fade[j, s] / D[j, s] * w[s]
            for i in range(n):
                for s in range(width):
                    x[i, s] += Bt[j, i, s] * (fade[j, s] * us[j, s])
        for s in range(min(width, last - p)):
            for j in range(m):
                u[p + s, j] = us[j, s]
        lost[p : min(p + width, last)] = largest[: min(width, last - p)]


@_compile
def backward(
    first: int, last: int, per_B: int, per_Q: int, a: Array, B: Array, Q: Array, Qf: Array, r_inv: Array,
    decay_A: Array, decay_B: Array, decay_Q: Array, h0: Array, horizon: int, stretch: int, points: Array, g: Array,
    da: Array, dB: Array, dQ: Array, dQf: Array, dr_inv: Array, ddecay_A: Array, ddecay_B: Array, ddecay_Q: Array,
    dh0: Array, lost: Array,
) -> None:  # fmt: skip
    n, m, dtype = a.shape[1], r_inv.shape[1], a.dtype
    width = max(1, min(BLOCK, last - first))
    half = n * (n + 1) // 2
    P, Qs, dQs = np.empty((half, width), dtype), np.empty((half, width), dtype), np.empty((half, width), dtype)
    Bt, dBt = np.empty((m, n, width), dtype), np.empty((m, n, width), dtype)
    Ps, V = np.empty((stretch, half, width), dtype), np.empty((stretch, m, n, width), dtype)
    D = np.empty((stretch, m, width), dtype)
    states, actions = np.empty((18, n, width), dtype), np.empty((11, m, width), dtype)
    as_, decay_As, decay_Qs, h, h2, x, x2 = states[0], states[1], states[2], states[3], states[4], states[5], states[6]
    lam, lam2, A, fade_A, scale, linear = states[7], states[8], states[9], states[10], states[11], states[12]
    das, ddecay_As, ddecay_Qs, dh0s, work = states[13], states[14], states[15], states[16], states[17]
    rs, decay_Bs, gs, fade, u, u2 = actions[0], actions[1], actions[2], actions[3], actions[4], actions[5]
    known, drs, ddecay_Bs, e, e2 = actions[6], actions[7], actions[8], actions[9], actions[10]
    w, root, more = np.empty(width, dtype), np.empty(width, dtype), np.empty(width, dtype)
    sizes = np.empty((8, width), dtype)
    largest, most, size, size2 = sizes[0], sizes[1], sizes[2], sizes[3]
    faint, firm, faint2, firm2 = sizes[4], sizes[5], sizes[6], sizes[7]
    for p in range(first, last, width):
        _side_by_side(a, p, last, 1, as_)
        _side_by_side(decay_A, p, last, 1, decay_As)
        _side_by_side(decay_Q, p, last, 1, decay_Qs)
        _side_by_side(h0, p, last, 1, h)
        _side_by_side(r_inv, p, last, 1, rs)
        _side_by_side(decay_B, p, last, 1, decay_Bs)
        _side_by_side(g, p, last, 1, gs)
        _transposed(B, p, last, per_B, Bt)
        _lower_half(Q, p, last, per_Q, Qs)
        h2[:], das[:], ddecay_As[:], ddecay_Qs[:] = 0.0, 0.0, 0.0, 0.0
        largest[:], faint[:], firm[:], faint2[:], firm2[:] = 1.0, 0.0, 0.0, 0.0, 0.0
        drs[:], ddecay_Bs[:], dBt[:], dQs[:] = 0.0, 0.0, 0.0, 0.0
        for bottom in range(0, horizon, stretch):
            top = min(bottom + stretch, horizon)
            if top == horizon:
                _lower_half(Qf, p, last, 1, P)
            else:
                P[:, : min(width, last - p)] = points[top // stretch - 1, :, p : min(p + width, last)]
            for t in range(top, bottom, -1):  # backward in time: numbers of every step that the closed loop needs
                q = t - bottom - 1
                Ps[q] = P
                if t == bottom + 1:
                    _top(P, n, most)
                if t == 1:
                    _weigh(most, Qs, decay_Qs, m)
                _fade(decay_Bs, t, fade)
                for j in range(m):
                    some = False
                    for s in range(width):
                        w[s] = rs[j, s] * fade[j, s] * fade[j, s]
                        some = some or w[s] != 0
                    if t == bottom + 1:
                        _look(Bt[j], w, most, size, largest)
                    if some or t == 1:
                        _absorb(P, Bt[j], w, V[q, j], D[q, j], work, root, largest)
                    else:
                        V[q, j], D[q, j] = 0.0, 1.0
                if t > bottom + 1:
                    _step_back(P, t, as_, Qs, decay_As, decay_Qs, A, scale)
            for t in range(bottom + 1, top + 1):  # forward in time: the problem and its adjoint (names with a 2)
                q = t - bottom - 1
                _fade(decay_As, t, fade_A)
                _fade(decay_Bs, t, fade)
                for i in range(n):
                    for s in range(width):
                        A[i, s] = 1 + fade_A[i, s] * as_[i, s]
                        x[i, s] = A[i, s] * h[i, s]
                        x2[i, s] = A[i, s] * h2[i, s]
                known[:] = 0.0
                if t == 1:
                    # the gradient of the first action pulls once: a linear cost, absorbed like the quadratic one
                    linear[:] = 0.0
                    for j in range(m):
                        for i in range(n):
                            for s in range(width):
                                known[j, s] += Bt[j, i, s] * linear[i, s]
                        for s in range(width):
                            w[s] = rs[j, s] * fade[j, s] * (gs[j, s] + fade[j, s] * known[j, s]) / D[q, j, s]
                        for i in range(n):
                            for s in range(width):
                                linear[i, s] -= V[q, j, i, s] * w[s]
                else:
                    gs[:] = 0.0
                for j in range(m - 1, -1, -1):
                    w[:], root[:] = 0.0, 0.0
                    for i in range(n):
                        seen, xi, x2i = V[q, j, i], x[i], x2[i]
                        for s in range(width):
                            w[s] += seen[s] * xi[s]
                        for s in range(width):
                            root[s] += seen[s] * x2i[s]
                    for s in range(width):
                        gain = rs[j, s] / D[q, j, s]
                        u[j, s] = -gain * fade[j, s] * w[s]
                        u2[j, s] = -gain * (gs[j, s] + fade[j, s] * (root[s] + known[j, s]))
                        e[j, s] = fade[j, s] * u[j, s]
                        e2[j, s] = fade[j, s] * u2[j, s]
                    for i in range(n):
                        bi, ej, e2j, xi, x2i = Bt[j, i], e[j], e2[j], x[i], x2[i]
                        for s in range(width):
                            xi[s] += bi[s] * ej[s]
                        for s in range(width):
                            x2i[s] += bi[s] * e2j[s]
                lam[:], lam2[:] = 0.0, 0.0
                at = 0
                for i in range(n):
                    for k in range(i):
                        entry, xi, xk, x2i, x2k = Ps[q, at], x[i], x[k], x2[i], x2[k]
                        li, lk, l2i, l2k = lam[i], lam[k], lam2[i], lam2[k]
                        for s in range(width):
                            li[s] += entry[s] * xk[s]
                        for s in range(width):
                            lk[s] += entry[s] * xi[s]
                        for s in range(width):
                            l2i[s] += entry[s] * x2k[s]
                        for s in range(width):
                            l2k[s] += entry[s] * x2i[s]
                        at += 1
                    for s in range(width):
                        lam[i, s] += Ps[q, at, s] * x[i, s]
                        lam2[i, s] += Ps[q, at, s] * x2[i, s]
                    at += 1
                if a.itemsize == 4 and (t % 4 == 1 or t == horizon):  # now and then
                    _top(Ps[q], n, most)
                    _compare(most, x, lam, size, size2, faint, firm)
                    _compare(most, x2, lam2, size, size2, faint2, firm2)
                for j in range(m):
                    w[:], root[:] = 0.0, 0.0
                    for i in range(n):
                        bi, ej, e2j, li, l2i, dbi = Bt[j, i], e[j], e2[j], lam[i], lam2[i], dBt[j, i]
                        for s in range(width):
                            dbi[s] += li[s] * e2j[s] + l2i[s] * ej[s]
                        for s in range(width):
                            w[s] += bi[s] * li[s]
                        for s in range(width):
                            root[s] += bi[s] * l2i[s]
                    for s in range(width):
                        exact, reach2 = fade[j, s] * w[s], fade[j, s] * root[s]
                        exact2 = reach2 + gs[j, s]
                        if rs[j, s] > 0:  # B' λ = -R u, without the digits that the sum loses
                            exact, exact2 = -u[j, s] / rs[j, s], -u2[j, s] / rs[j, s]
                        drs[j, s] -= exact * exact2
                        ddecay_Bs[j, s] -= t * (exact * u2[j, s] + reach2 * u[j, s])
                for i in range(n):
                    for s in range(width):
                        through = fade_A[i, s] * (lam[i, s] * h2[i, s] + lam2[i, s] * h[i, s])
                        das[i, s] += through
                        ddecay_As[i, s] -= t * as_[i, s] * through
                        if t == 1:
                            dh0s[i, s] = A[i, s] * lam2[i, s]
                        h[i, s] = x[i, s]
                        h2[i, s] = x2[i, s]
                if t < horizon:
                    _fade(decay_Qs, t, scale)
                    for i in range(n):
                        for s in range(width):
                            lam[i, s] = scale[i, s] * h[i, s]
                            lam2[i, s] = scale[i, s] * h2[i, s]
                    at = 0
                    for i in range(n):
                        for k in range(i + 1):
                            li, lk, l2i, l2k, entry, cost = lam[i], lam[k], lam2[i], lam2[k], dQs[at], Qs[at]
                            di, dk = ddecay_Qs[i], ddecay_Qs[k]
                            for s in range(width):
                                more[s] = li[s] * l2k[s] + l2i[s] * lk[s]
                            for s in range(width):
                                entry[s] += more[s]
                            for s in range(width):
                                di[s] -= t * cost[s] * more[s]
                            if k < i:
                                for s in range(width):
                                    dk[s] -= t * cost[s] * more[s]
                            at += 1
        for s in range(min(width, last - p)):
            at = 0
            for i in range(n):
                da[p + s, i], dh0[p + s, i] = das[i, s], dh0s[i, s]
                ddecay_A[p + s, i], ddecay_Q[p + s, i] = ddecay_As[i, s], ddecay_Qs[i, s]
                for k in range(i + 1):
                    dQ[p + s, i, k] = dQ[p + s, k, i] = dQs[at, s] / 2
                    end = (h[i, s] * h2[k, s] + h2[i, s] * h[k, s]) / 2
                    dQf[p + s, i, k] = dQf[p + s, k, i] = end
                    at += 1
                for j in range(m):
                    dB[p + s, i, j] = dBt[j, i, s]
            for j in range(m):
                dr_inv[p + s, j], ddecay_B[p + s, j] = drs[j, s], ddecay_Bs[j, s]
        for s in range(width):
            if faint[s] > CANCELLED * firm[s] or faint2[s] > CANCELLED * firm2[s]:
                largest[s] = np.inf
        lost[p : min(p + width, last)] = largest[: min(width, last - p)]
