"""The inner loops of dense.py: dynamic programming for dense problems, compiled by numba at first use and kept on disk.

As in cpu_loops.py, problems are solved side by side: every work array has them as its last dimension, and of symmetric
matrices the lower half is kept, row by row. With R = L L', actions are measured in units of their cost, z = L' u, so
that every action costs 1/2 z² and is absorbed into P one by one:

    v = P b        d = 1 + b' v        P <- P - v v' / d

That is a difference. Where d is large it is taken again: what is left of k = v / d - P b, which should be nothing, is put
into P by the smallest symmetric change. A step keeps P, and v and d of each action; the actions are decided in reverse
order, each from what it saw. A cross term is eliminated first: with ν = N L^-T, the actions z + ν' h have none, and act on
A - B ν' with the state cost Q - ν ν'.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ttcnet.compiling import jit

Array = Any
REFINED = 4.0  # the d from which on P is refined
_compile = jit(nogil=True, fastmath={"contract", "nsz"}, error_model="numpy")


@_compile
def _matrix(source: Array, at: Array, p: int, last: int, t: int, out: Array, turned: bool) -> None:
    """The matrices of step t of neighbouring problems, side by side; `turned`, their transposes."""
    step = t if source.shape[1] > 1 else 0
    for s in range(out.shape[-1]):
        x = source[at[min(p + s, last - 1)], step]
        for i in range(x.shape[0]):
            for k in range(x.shape[1]):
                if turned:
                    out[k, i, s] = x[i, k]
                else:
                    out[i, k, s] = x[i, k]


@_compile
def _half(source: Array, at: Array, p: int, last: int, t: int, out: Array) -> None:
    """The symmetric parts of matrices, the lower half of each."""
    step = t if source.shape[1] > 1 else 0
    for s in range(out.shape[-1]):
        x = source[at[min(p + s, last - 1)], step]
        place = 0
        for i in range(x.shape[0]):
            for k in range(i + 1):
                out[place, s] = (x[i, k] + x[k, i]) / 2
                place += 1


@_compile
def _vector(source: Array, at: Array, p: int, last: int, t: int, out: Array) -> None:
    """Zero where there is no source."""
    if source.shape[0] == 0:
        out[:] = 0.0
        return
    step = t if source.shape[1] > 1 else 0
    for s in range(out.shape[-1]):
        x = source[at[min(p + s, last - 1)], step]
        for i in range(x.shape[0]):
            out[i, s] = x[i]


@_compile
def _cholesky(L: Array, m: int, least: Array) -> None:
    """In place, of the lower halves; NaN where there is none. least becomes the smallest pivot, at most what it was."""
    width = L.shape[1]
    for i in range(m):
        for j in range(i + 1):
            entry = L[i * (i + 1) // 2 + j]
            for k in range(j):
                a, b = L[i * (i + 1) // 2 + k], L[j * (j + 1) // 2 + k]
                for s in range(width):
                    entry[s] -= a[s] * b[s]
            if i == j:
                for s in range(width):
                    least[s] = least[s] if least[s] <= entry[s] else entry[s]
                    entry[s] = math.sqrt(entry[s]) if entry[s] > 0 else np.nan
            else:
                pivot = L[j * (j + 3) // 2]
                for s in range(width):
                    entry[s] /= pivot[s]


@_compile
def _whiten(L: Array, rows: Array) -> None:
    """Rows x_j of a matrix X' become those of (X L^-T)', in place."""
    m, n, width = rows.shape
    for j in range(m):
        for k in range(j):
            entry = L[j * (j + 1) // 2 + k]
            for i in range(n):
                a, b = rows[j, i], rows[k, i]
                for s in range(width):
                    a[s] -= entry[s] * b[s]
        pivot = L[j * (j + 3) // 2]
        for i in range(n):
            a = rows[j, i]
            for s in range(width):
                a[s] /= pivot[s]


@_compile
def _whiten_vector(L: Array, x: Array) -> None:
    """x becomes L^-1 x."""
    m, width = x.shape
    for j in range(m):
        for k in range(j):
            entry, a, b = L[j * (j + 1) // 2 + k], x[j], x[k]
            for s in range(width):
                a[s] -= entry[s] * b[s]
        pivot, a = L[j * (j + 3) // 2], x[j]
        for s in range(width):
            a[s] /= pivot[s]


@_compile
def _colour(L: Array, x: Array) -> None:
    """x becomes L^-T x: actions in their own units."""
    m, width = x.shape
    for j in range(m - 1, -1, -1):
        a = x[j]
        for k in range(j + 1, m):
            entry, b = L[k * (k + 1) // 2 + j], x[k]
            for s in range(width):
                a[s] -= entry[s] * b[s]
        pivot = L[j * (j + 3) // 2]
        for s in range(width):
            a[s] /= pivot[s]


@_compile
def _symmetric_times(P: Array, x: Array, out: Array) -> None:
    n, width = x.shape
    out[:] = 0.0
    place = 0
    for i in range(n):
        xi, oi = x[i], out[i]
        for k in range(i):
            entry, xk, ok = P[place], x[k], out[k]
            for s in range(width):
                oi[s] += entry[s] * xk[s]
            for s in range(width):
                ok[s] += entry[s] * xi[s]
            place += 1
        entry = P[place]
        for s in range(width):
            oi[s] += entry[s] * xi[s]
        place += 1


@_compile
def _absorb(P: Array, b: Array, v: Array, d: Array, work: Array, rest: Array, scale: Array, largest: Array) -> None:
    """One action absorbed into P. v becomes P b before, d becomes 1 + b' v, and largest the largest d so far."""
    n, width = b.shape
    _symmetric_times(P, b, v)
    d[:] = 1.0
    for i in range(n):
        bi, vi = b[i], v[i]
        for s in range(width):
            d[s] += bi[s] * vi[s]
    refine = False
    for s in range(width):
        d[s] = d[s] if d[s] > 0 else np.nan  # no minimum, in this problem alone, unless it is for want of digits
        scale[s] = 1 / math.sqrt(d[s])
        refine = refine or d[s] > REFINED
    for s in range(width):
        largest[s] = largest[s] if d[s] <= largest[s] else d[s]  # NaN, too, is larger than any
    for i in range(n):
        vi, wi = v[i], work[i]
        for s in range(width):
            wi[s] = vi[s] * scale[s]
    place = 0
    for i in range(n):
        wi = work[i]
        for k in range(i + 1):
            entry, wk = P[place], work[k]
            for s in range(width):
                entry[s] -= wi[s] * wk[s]
            place += 1
    if refine:
        _refine(P, b, v, d, work, rest, scale)


@_compile
def _refine(P: Array, b: Array, v: Array, d: Array, work: Array, rest: Array, scale: Array) -> None:
    """The smallest symmetric change of P after which P b = k, k = v / d, once more: with e = k - P b and κ = b' k, it is
    (e k' + k e') / κ - k k' (b' e) / κ²."""
    n, width = b.shape
    _symmetric_times(P, b, rest)
    scale[:] = 0.0
    for i in range(n):
        bi, vi, wi, ei = b[i], v[i], work[i], rest[i]
        for s in range(width):
            wi[s] = vi[s] / d[s]
            ei[s] = wi[s] - ei[s]
        for s in range(width):
            scale[s] += bi[s] * ei[s]
    for i in range(n):
        wi, ei = work[i], rest[i]
        for s in range(width):  # k over κ = (d - 1) / d; half of the last term goes to either side
            known = d[s] > REFINED
            wi[s] = wi[s] * d[s] / (d[s] - 1) if known else 0.0
            ei[s] = ei[s] - wi[s] * scale[s] / 2 if known else 0.0
    place = 0
    for i in range(n):
        wi, ei = work[i], rest[i]
        for k in range(i + 1):
            entry, wk, ek = P[place], work[k], rest[k]
            for s in range(width):
                entry[s] += wi[s] * ek[s] + ei[s] * wk[s]
            place += 1


@_compile
def _step_back(P: Array, A: Array, G: Array, Q: Array, nu: Array, crossed: bool) -> None:
    """P <- Q + A' P A - ν ν'. G is room for P A."""
    n, width = A.shape[0], A.shape[2]
    for i in range(n):
        for k in range(n):
            out = G[i, k]
            out[:] = 0.0
            for j in range(n):
                entry = P[i * (i + 1) // 2 + j] if j <= i else P[j * (j + 1) // 2 + i]
                a = A[j, k]
                for s in range(width):
                    out[s] += entry[s] * a[s]
    place = 0
    for i in range(n):
        for k in range(i + 1):
            out = P[place]
            out[:] = Q[place]
            for j in range(n):
                a, g = A[j, i], G[j, k]
                for s in range(width):
                    out[s] += a[s] * g[s]
            if crossed:
                for j in range(nu.shape[0]):
                    a, g = nu[j, i], nu[j, k]
                    for s in range(width):
                        out[s] -= a[s] * g[s]
            place += 1


@_compile
def _dot(x: Array, y: Array, out: Array) -> None:
    """out becomes x' y."""
    out[:] = 0.0
    for i in range(x.shape[0]):
        a, b = x[i], y[i]
        for s in range(len(out)):
            out[s] += a[s] * b[s]


@_compile
def _add(out: Array, x: Array, factor: Array) -> None:
    """out becomes out + x factor."""
    for i in range(x.shape[0]):
        a, b = out[i], x[i]
        for s in range(len(factor)):
            a[s] += b[s] * factor[s]


@_compile
def _times(A: Array, x: Array, out: Array, turned: bool) -> None:
    """out becomes A x, or A' x."""
    n, width = x.shape
    out[:] = 0.0
    for i in range(n):
        o = out[i]
        for k in range(n):
            entry, a = A[k, i] if turned else A[i, k], x[k]
            for s in range(width):
                o[s] += entry[s] * a[s]


@_compile
def _decide(row: Array, Bt: Array, known: Array, x: Array, z: Array, f: Array) -> None:
    """The actions z of a step whose drift is x, which becomes the state after it."""
    m, n, width = Bt.shape
    half = n * (n + 1) // 2
    for j in range(m - 1, -1, -1):
        _dot(row[half + j * n : half + (j + 1) * n], x, f)
        zj, kj, dj = z[j], known[j], row[half + m * n + j]
        for s in range(width):
            zj[s] = -(f[s] + kj[s]) / dj[s]
        _add(x, Bt[j], zj)


@_compile
def _linear(
    row: Array, A: Array, Bt: Array, nu: Array, crossed: bool, rho: Array, c: Array, p: Array, known: Array, x: Array,
    z: Array, lam: Array, before: Array, f: Array,
) -> None:  # fmt: skip
    """A step of the recursion for the slopes: from p behind a step, what its actions know of it, and the slope `before`
    the step, without the linear cost of that state. z becomes the actions from h = 0."""
    m, n, width = Bt.shape
    half = n * (n + 1) // 2
    x[:] = p
    for j in range(m):
        kj, dj = known[j], row[half + m * n + j]
        _dot(Bt[j], x, kj)
        rj = rho[j]
        for s in range(width):
            kj[s] += rj[s]
            f[s] = -kj[s] / dj[s]
        _add(x, row[half + j * n : half + (j + 1) * n], f)
    x[:] = c
    _decide(row, Bt, known, x, z, f)
    _symmetric_times(row[:half], x, lam)
    for i in range(n):
        li, pi = lam[i], p[i]
        for s in range(width):
            li[s] += pi[s]
    _times(A, lam, before, True)
    if crossed:
        for j in range(m):
            rj = rho[j]
            for s in range(width):
                f[s] = -rj[s]
            _add(before, nu[j], f)


@_compile
def _roll(
    row: Array, A: Array, Bt: Array, nu: Array, crossed: bool, c: Array, p: Array, known: Array, h: Array, x: Array,
    z: Array, lam: Array, f: Array,
) -> None:  # fmt: skip
    """A step forward from h: x becomes the next state, lam its co-state, z the actions in units of their cost."""
    n, width = h.shape
    half = n * (n + 1) // 2
    _times(A, h, x, False)
    for i in range(n):
        xi, ci = x[i], c[i]
        for s in range(width):
            xi[s] += ci[s]
    _decide(row, Bt, known, x, z, f)
    _symmetric_times(row[:half], x, lam)
    for i in range(n):
        li, pi = lam[i], p[i]
        for s in range(width):
            li[s] += pi[s]
    if crossed:
        for j in range(len(z)):
            _dot(nu[j], h, f)
            zj = z[j]
            for s in range(width):
                zj[s] -= f[s]


@_compile
def _prepare(
    which: Array, A: Array, B: Array, R: Array, N: Array, p: int, last: int, t: int, Am: Array, Bt: Array, L: Array,
    nu: Array, least: Array, f: Array,
) -> None:  # fmt: skip
    """The matrices of step t, actions in units of their cost, without a cross term."""
    m = Bt.shape[0]
    _matrix(A, which[0], p, last, t, Am, False)
    _matrix(B, which[1], p, last, t, Bt, True)
    _half(R, which[3], p, last, t, L)
    _cholesky(L, m, least)
    _whiten(L, Bt)
    if N.shape[0]:
        _matrix(N, which[8], p, last, t, nu, True)
        _whiten(L, nu)
        for j in range(m):
            for k in range(nu.shape[1]):
                for s in range(len(f)):
                    f[s] = -nu[j, k, s]
                _add(Am[:, k], Bt[j], f)


@_compile
def _descend(
    which: Array, A: Array, B: Array, Q: Array, R: Array, N: Array, Qf: Array, p: int, last: int, space: Array, P: Array,
    Qs: Array, G: Array, Am: Array, Bt: Array, L: Array, nu: Array, vectors: Array, lost: Array,
) -> None:  # fmt: skip
    """P, v and d of every step into `space`, and P before the first step, without a cost of that state, into P."""
    T, n, m, width = len(space), Am.shape[0], Bt.shape[0], P.shape[1]
    half = n * (n + 1) // 2
    fixed = A.shape[1] == 1 and B.shape[1] == 1 and R.shape[1] == 1 and N.shape[1] == 1
    work, rest, scale, least = vectors[:n], vectors[n : 2 * n], vectors[2 * n], vectors[2 * n + 1]
    least[:] = np.inf
    lost[:] = 1.0
    if Qf.shape[0]:
        _half(Qf, which[9], p, last, 0, P)
    else:
        _half(Q, which[2], p, last, T - 1, P)
    if Q.shape[1] == 1:
        _half(Q, which[2], p, last, 0, Qs)
    for t in range(T - 1, -1, -1):
        row = space[t]
        row[:half] = P
        if t == T - 1 or not fixed:
            _prepare(which, A, B, R, N, p, last, t, Am, Bt, L, nu, least, scale)
        for j in range(m):
            _absorb(P, Bt[j], row[half + j * n : half + (j + 1) * n], row[half + m * n + j], work, rest, scale, lost)
        if t == 0:
            Qs[:] = 0.0
        elif Q.shape[1] > 1:
            _half(Q, which[2], p, last, t - 1, Qs)
        _step_back(P, Am, G, Qs, nu, N.shape[0] > 0)


@_compile
def forward(
    first: int, last: int, piece: int, width: int, horizon: int, gains: bool, which: Array, A: Array, B: Array, Q: Array,
    R: Array, h0: Array, r: Array, q: Array, c: Array, N: Array, Qf: Array, kept: Array, u: Array, h: Array,
    costate: Array, cost: Array, K: Array, k: Array, Ps: Array, slopes: Array, lost: Array,
) -> None:  # fmt: skip
    n, m, dtype = B.shape[2], B.shape[3], lost.dtype
    half, T, crossed = n * (n + 1) // 2, horizon, N.shape[0] > 0
    own = np.empty((0 if kept.shape[0] else T, half + m * n + m, width), dtype)
    P, Qs, G, Am = (np.empty((half, width), dtype), np.empty((half, width), dtype), np.empty((n, n, width), dtype),
                    np.empty((n, n, width), dtype))  # fmt: skip
    Bt, nu, L = np.empty((m, n, width), dtype), np.empty((m, n, width), dtype), np.empty((m * (m + 1) // 2, width), dtype)
    vectors, p_, known = np.empty((2 * n + 2, width), dtype), np.empty((T, n, width), dtype), np.empty((T, m, width), dtype)
    states, actions = np.empty((5, n, width), dtype), np.empty((3, m, width), dtype)
    x, lam, cs, before, hs, z, rho, none = (states[0], states[1], states[2], states[3], states[4], actions[0], actions[1],
                                            actions[2])  # fmt: skip
    f, worst, total = np.empty(width, dtype), np.empty(width, dtype), np.empty(width, dtype)
    fixed = A.shape[1] == 1 and B.shape[1] == 1 and R.shape[1] == 1 and N.shape[1] == 1
    affine = r.shape[0] > 0 or q.shape[0] > 0 or c.shape[0] > 0
    none[:] = 0.0
    for p in range(first, last, width):
        space = kept[p // width] if kept.shape[0] else own
        count = min(width, last - p)
        _descend(which, A, B, Q, R, N, Qf, p, last, space, P, Qs, G, Am, Bt, L, nu, vectors, worst)
        lost[p : p + count] = worst[:count]
        p_[:] = 0.0
        known[:] = 0.0
        before[:] = 0.0
        if affine or gains:
            if affine:
                _vector(q, which[6], p, last, T - 1, p_[T - 1])
            for t in range(T - 1, -1, -1):
                if not fixed:
                    _prepare(which, A, B, R, N, p, last, t, Am, Bt, L, nu, worst, f)
                _vector(r, which[5], p, last, t, rho)
                _whiten_vector(L, rho)
                _vector(c, which[7], p, last, t, cs)
                _linear(space[t], Am, Bt, nu, crossed, rho, cs, p_[t], known[t], x, z, lam, before, f)
                if t > 0:
                    _vector(q, which[6], p, last, t - 1, p_[t - 1])
                    for i in range(n):
                        for s in range(width):
                            p_[t - 1, i, s] += before[i, s]
                if gains:
                    _colour(L, z)
                    for s in range(count):
                        for j in range(m):
                            k[p + s, t, j] = z[j, s]
                    for i in range(n):
                        x[:] = Am[:, i]
                        _decide(space[t], Bt, none, x, z, f)
                        if crossed:
                            for j in range(m):
                                for s in range(width):
                                    z[j, s] -= nu[j, i, s]
                        _colour(L, z)
                        for s in range(count):
                            for j in range(m):
                                K[p + s, t, j, i] = z[j, s]
        if gains:
            for s in range(count):
                for i in range(n):
                    slopes[p + s, 0, i] = before[i, s]
                    for t in range(T):
                        slopes[p + s, t + 1, i] = p_[t, i, s]
                    for j in range(i + 1):
                        place = i * (i + 1) // 2 + j
                        Ps[p + s, 0, i, j] = Ps[p + s, 0, j, i] = P[place, s]
                        for t in range(T):
                            Ps[p + s, t + 1, i, j] = Ps[p + s, t + 1, j, i] = space[t, place, s]
        _vector(h0, which[4], p, last, 0, hs)
        total[:] = 0.0
        if Q.shape[1] == 1:
            _half(Q, which[2], p, last, 0, Qs)
        for s in range(count):
            for i in range(n):
                h[p + s, 0, i] = hs[i, s]
        for t in range(T):
            if not fixed:
                _prepare(which, A, B, R, N, p, last, t, Am, Bt, L, nu, worst, f)
            _vector(c, which[7], p, last, t, cs)
            _roll(space[t], Am, Bt, nu, crossed, cs, p_[t], known[t], hs, x, z, lam, f)
            _vector(r, which[5], p, last, t, rho)
            _whiten_vector(L, rho)
            for j in range(m):
                if crossed:
                    _dot(nu[j], hs, f)
                else:
                    f[:] = 0.0
                for s in range(width):
                    total[s] += z[j, s] * (z[j, s] / 2 + rho[j, s] + f[s])
            if t == 0:
                _times(Am, lam, before, True)
                if crossed:
                    for j in range(m):
                        _dot(nu[j], hs, f)
                        for s in range(width):
                            f[s] = -f[s] - rho[j, s]
                        _add(before, nu[j], f)
                for s in range(count):
                    for i in range(n):
                        costate[p + s, 0, i] = before[i, s]
            _colour(L, z)
            hs[:] = x
            if t == T - 1 and Qf.shape[0]:
                _half(Qf, which[9], p, last, 0, Qs)
            elif Q.shape[1] > 1:
                _half(Q, which[2], p, last, t, Qs)
            _symmetric_times(Qs, x, cs)
            _vector(q, which[6], p, last, t, before)
            for i in range(n):
                for s in range(width):
                    total[s] += x[i, s] * (cs[i, s] / 2 + before[i, s])
            for s in range(count):
                for j in range(m):
                    u[p + s, t, j] = z[j, s]
                for i in range(n):
                    h[p + s, t + 1, i] = x[i, s]
                    costate[p + s, t + 1, i] = lam[i, s]
        for s in range(count):
            cost[p + s] = total[s]


@_compile
def _add_outer(out: Array, a: Array, b: Array, a2: Array, b2: Array) -> None:
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] += a[i] * b[j] + a2[i] * b2[j]


@_compile
def _gather(
    store: Array, sums: Array, acc: Array, p: int, count: int, piece: int, t: int, a: Array, b: Array, a2: Array, b2: Array
) -> None:  # fmt: skip
    """a b' + a2 b2' of every problem is added to where it is wanted: to `sums` for what all problems share, to `store`
    for what every problem and step has of its own, to `acc` for what the steps of a problem share."""
    for s in range(count):
        if sums.shape[0]:
            _add_outer(sums[piece, t if sums.shape[1] > 1 else 0], a[s], b[s], a2[s], b2[s])
        elif store.shape[0] and store.shape[1] > 1:
            _add_outer(store[p + s, t], a[s], b[s], a2[s], b2[s])
        elif store.shape[0]:
            _add_outer(acc[s], a[s], b[s], a2[s], b2[s])


@_compile
def _flush(store: Array, acc: Array, p: int, count: int) -> None:
    if store.shape[0] and store.shape[1] == 1:
        store[p : p + count, 0] = acc[:count]
        acc[:] = 0.0


@_compile
def _turn(x: Array, out: Array) -> None:
    """(i, width) to (width, i)."""
    for i in range(x.shape[0]):
        for s in range(x.shape[1]):
            out[s, i] = x[i, s]


@_compile
def _saved(source: Array, p: int, last: int, t: int, out: Array) -> None:
    """What a pass has written for step t, (problems, T, i), to (width, i)."""
    for s in range(out.shape[0]):
        x = source[min(p + s, last - 1), t]
        for i in range(out.shape[1]):
            out[s, i] = x[i]


@_compile
def backward(
    first: int, last: int, piece: int, width: int, horizon: int, which: Array, own_rows: Array, A: Array, B: Array,
    Q: Array, R: Array, N: Array, Qf: Array, kept: Array, u: Array, h: Array, costate: Array, du: Array, dh: Array,
    dcostate: Array, dcost: Array, dA: Array, dB: Array, dQ: Array, dR: Array, dh0: Array, dr: Array, dq: Array,
    dc: Array, dN: Array, dQf: Array, sA: Array, sB: Array, sQ: Array, sR: Array, sh0: Array, sr: Array, sq: Array,
    sc: Array, sN: Array, sQf: Array, lost: Array,
) -> None:  # fmt: skip
    """The adjoint problem (names with a 2), and the gradients of all fields: d.. for every problem, s.. for a piece."""
    n, m, dtype = B.shape[2], B.shape[3], lost.dtype
    half, T, crossed = n * (n + 1) // 2, horizon, N.shape[0] > 0
    own = np.empty((0 if kept.shape[0] else T, half + m * n + m, width), dtype)
    P, Qs, G, Am = (np.empty((half, width), dtype), np.empty((half, width), dtype), np.empty((n, n, width), dtype),
                    np.empty((n, n, width), dtype))  # fmt: skip
    Bt, nu, L = np.empty((m, n, width), dtype), np.empty((m, n, width), dtype), np.empty((m * (m + 1) // 2, width), dtype)
    vectors, p2, known2 = np.empty((2 * n + 2, width), dtype), np.empty((T, n, width), dtype), np.empty((T, m, width), dtype)
    states, z2, rho = np.empty((5, n, width), dtype), np.empty((m, width), dtype), np.empty((m, width), dtype)
    x2, lam2, cs, before, h2 = states[0], states[1], states[2], states[3], states[4]
    f, worst = np.empty(width, dtype), np.empty(width, dtype)
    turned, turned_u = np.zeros((6, width, n), dtype), np.zeros((2, width, m), dtype)
    hT, hT2, xT, xT2, lamT, lamT2, uT, uT2 = (turned[0], turned[1], turned[2], turned[3], turned[4], turned[5],
                                              turned_u[0], turned_u[1])  # fmt: skip
    one, half_g = np.ones((width, 1), dtype), np.zeros((width, 1), dtype)
    accA, accB, accQ, accR, accN = (np.zeros((width, n, n), dtype), np.zeros((width, n, m), dtype),
                                    np.zeros((width, n, n), dtype), np.zeros((width, m, m), dtype),
                                    np.zeros((width, n, m), dtype))  # fmt: skip
    acc_r, acc_q, acc_c = np.zeros((width, m, 1), dtype), np.zeros((width, n, 1), dtype), np.zeros((width, n, 1), dtype)
    fixed = A.shape[1] == 1 and B.shape[1] == 1 and R.shape[1] == 1 and N.shape[1] == 1
    for p in range(first, last, width):
        space = kept[p // width] if kept.shape[0] else own
        count = min(width, last - p)
        if not kept.shape[0]:
            _descend(which, A, B, Q, R, N, Qf, p, last, space, P, Qs, G, Am, Bt, L, nu, vectors, worst)
        elif fixed:
            _prepare(which, A, B, R, N, p, last, 0, Am, Bt, L, nu, worst, f)
        if dcost.shape[0]:
            for s in range(width):
                half_g[s, 0] = dcost[min(p + s, last - 1)] / 2
        _vector(dh, own_rows, p, last, T, p2[T - 1])
        for t in range(T - 1, -1, -1):
            if not fixed:
                _prepare(which, A, B, R, N, p, last, t, Am, Bt, L, nu, worst, f)
            _vector(du, own_rows, p, last, t, rho)
            _whiten_vector(L, rho)
            _vector(dcostate, own_rows, p, last, t + 1, cs)
            _linear(space[t], Am, Bt, nu, crossed, rho, cs, p2[t], known2[t], x2, z2, lam2, before, f)
            if t > 0:
                _vector(dh, own_rows, p, last, t, p2[t - 1])
                for i in range(n):
                    for s in range(width):
                        p2[t - 1, i, s] += before[i, s]
        _vector(dcostate, own_rows, p, last, 0, h2)
        for t in range(T):
            if not fixed:
                _prepare(which, A, B, R, N, p, last, t, Am, Bt, L, nu, worst, f)
            _vector(dcostate, own_rows, p, last, t + 1, cs)
            _roll(space[t], Am, Bt, nu, crossed, cs, p2[t], known2[t], h2, x2, z2, lam2, f)
            _saved(h, p, last, t, hT)
            _saved(h, p, last, t + 1, xT)
            _saved(costate, p, last, t + 1, lamT)
            _saved(u, p, last, t, uT)
            if t == 0:
                _vector(du, own_rows, p, last, 0, rho)
                _whiten_vector(L, rho)
                _times(Am, lam2, before, True)
                if crossed:
                    for j in range(m):
                        _dot(nu[j], h2, f)
                        for s in range(width):
                            f[s] = -f[s] - rho[j, s]
                        _add(before, nu[j], f)
                _vector(dh, own_rows, p, last, 0, cs)
                for i in range(n):
                    for s in range(width):
                        cs[i, s] += before[i, s]
                _turn(cs, xT2)
                _saved(costate, p, last, 0, lamT2)
                for s in range(count):  # half of the cost's share here, half below, as everywhere
                    for i in range(n):
                        xT2[s, i] += half_g[s, 0] * lamT2[s, i]
                if sh0.shape[0]:
                    _gather(dh0, sh0, acc_q, p, count, piece, 0, xT2, one, lamT2, half_g)
                elif dh0.shape[0]:
                    for s in range(count):
                        for i in range(n):
                            dh0[p + s, 0, i, 0] = xT2[s, i] + half_g[s, 0] * lamT2[s, i]
            _colour(L, z2)
            _turn(h2, hT2)
            _turn(x2, xT2)
            _turn(lam2, lamT2)
            _turn(z2, uT2)
            for s in range(count):  # the cost is quadratic: half of its gradients belong to either side of a product
                g = half_g[s, 0]
                for i in range(n):
                    hT2[s, i] += g * hT[s, i]
                    xT2[s, i] += g * xT[s, i]
                    lamT2[s, i] += g * lamT[s, i]
                for j in range(m):
                    uT2[s, j] += g * uT[s, j]
            _gather(dA, sA, accA, p, count, piece, t, lamT, hT2, lamT2, hT)
            _gather(dB, sB, accB, p, count, piece, t, lamT, uT2, lamT2, uT)
            _gather(dN, sN, accN, p, count, piece, t, hT, uT2, hT2, uT)
            _gather(dr, sr, acc_r, p, count, piece, t, uT2, one, uT, half_g)
            _gather(dq, sq, acc_q, p, count, piece, t, xT2, one, xT, half_g)
            _gather(dc, sc, acc_c, p, count, piece, t, lamT2, one, lamT, half_g)
            for s in range(count):
                for j in range(m):
                    uT2[s, j] /= 2
                for i in range(n):
                    xT2[s, i] /= 2
            _gather(dR, sR, accR, p, count, piece, t, uT, uT2, uT2, uT)
            if t == T - 1 and Qf.shape[0]:
                accQf = np.zeros((width, n, n), dtype)
                _gather(dQf, sQf, accQf, p, count, piece, 0, xT, xT2, xT2, xT)
                _flush(dQf, accQf, p, count)
            else:
                _gather(dQ, sQ, accQ, p, count, piece, t, xT, xT2, xT2, xT)
            h2[:] = x2
        _flush(dA, accA, p, count)
        _flush(dB, accB, p, count)
        _flush(dN, accN, p, count)
        _flush(dr, acc_r, p, count)
        _flush(dq, acc_q, p, count)
        _flush(dc, acc_c, p, count)
        _flush(dR, accR, p, count)
        _flush(dQ, accQ, p, count)
