"""A step of dynamic programming for dense problems, for dense_cpu_loops.py.

As in fused_cpu_loops.py, problems are solved side by side: every work array has them as its last dimension, and of
symmetric matrices the lower half is kept, row by row. With R = L L', actions are measured in units of their cost,
z = L' u, so that every action costs 1/2 z² and is absorbed into P one by one:

    v = P b        d = 1 + b' v        P <- P - v v' / d

That is a difference. If d is large it is refined: P b must then be v / d, and the smallest symmetric change of P makes
it so. A step keeps P, and v and d of each action; the actions are decided in reverse order, each from its own v. A
cross term is eliminated first: with ν = N L^-T, the actions z + ν' h have none, and act on A - B ν' with the state cost
Q - ν ν'.

Digits can be lost where no d is large. If nothing is added to P between two steps that push in the same directions, as
without a state cost, P is small along b and large elsewhere: b' P b is a sum of large terms that cancel. Along one
state alone it would be b_i² P_ii. The largest of these over d, of each state, are summed: about 1 for every state if P
is diagonal, and many times that if `hidden` digits are lost. Neither depends on the units of states and actions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ttcnet.machine.compile_cache import jit

Array = Any
REFINED = 4.0  # above this d, P is refined
HIDDEN = 8.0  # hidden digits count as many times as those that are lost to d
_compile = jit(nogil=True, fastmath={"contract", "nsz"}, error_model="numpy")


@_compile
def matrix(source: Array, at: Array, p: int, last: int, t: int, out: Array, turned: bool) -> None:
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
def lower_half(source: Array, at: Array, p: int, last: int, t: int, out: Array) -> None:
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
def vector(source: Array, at: Array, p: int, last: int, t: int, out: Array) -> None:
    """A copy of the source, or zero if there is none."""
    if source.shape[0] == 0:
        out[:] = 0.0
        return
    step = t if source.shape[1] > 1 else 0
    for s in range(out.shape[-1]):
        x = source[at[min(p + s, last - 1)], step]
        for i in range(x.shape[0]):
            out[i, s] = x[i]


@_compile
def cholesky(L: Array, m: int, least: Array) -> None:
    """Replace the lower halves by their Cholesky factors; NaN where there is none. `least` becomes the smallest pivot,
    or stays if it is smaller."""
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
def whiten(L: Array, rows: Array) -> None:
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
def whiten_vector(L: Array, x: Array) -> None:
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
def colour(L: Array, x: Array) -> None:
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
def symmetric_times(P: Array, x: Array, out: Array) -> None:
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
def absorb(
    P: Array, b: Array, v: Array, d: Array, work: Array, rest: Array, scale: Array, largest: Array, hidden: Array,
) -> None:  # fmt: skip
    """One action absorbed into P. v becomes P b before, d becomes 1 + b' v, largest the largest d so far, and `hidden`,
    of float32, the largest b_i² P_ii / d so far."""
    n, width = b.shape
    symmetric_times(P, b, v)
    d[:] = 1.0
    for i in range(n):
        bi, vi = b[i], v[i]
        for s in range(width):
            d[s] += bi[s] * vi[s]
    refine = False
    for s in range(width):
        d[s] = d[s] if d[s] > 0 else np.nan  # no minimum, in this problem alone, or too few digits
        scale[s] = 1 / math.sqrt(d[s])
        refine = refine or d[s] > REFINED
    for s in range(width):
        largest[s] = largest[s] if d[s] <= largest[s] else d[s]  # NaN, too, is larger than any
    for i in range(n):
        vi, wi = v[i], work[i]
        for s in range(width):
            wi[s] = vi[s] * scale[s]
    if P.itemsize == 4:
        for i in range(n):
            bi, own, most = b[i], P[i * (i + 3) // 2], hidden[i]
            for s in range(width):
                part = bi[s] * scale[s]
                part *= part * own[s]
                most[s] = part if part > most[s] else most[s]
    place = 0
    for i in range(n):
        wi = work[i]
        for k in range(i + 1):
            entry, wk = P[place], work[k]
            for s in range(width):
                entry[s] -= wi[s] * wk[s]
            place += 1
    if refine:
        restore(P, b, v, d, work, rest, scale)


@_compile
def restore(P: Array, b: Array, v: Array, d: Array, work: Array, rest: Array, scale: Array) -> None:
    """The smallest symmetric change of P after which P b = k, k = v / d, once more: with e = k - P b and κ = b' k, it
    is (e k' + k e') / κ - k k' (b' e) / κ²."""
    n, width = b.shape
    symmetric_times(P, b, rest)
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
def step_back(P: Array, A: Array, G: Array, Q: Array, nu: Array, crossed: bool) -> None:
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
def dot(x: Array, y: Array, out: Array) -> None:
    """out becomes x' y."""
    out[:] = 0.0
    for i in range(x.shape[0]):
        a, b = x[i], y[i]
        for s in range(len(out)):
            out[s] += a[s] * b[s]


@_compile
def add(out: Array, x: Array, factor: Array) -> None:
    """out becomes out + x factor."""
    for i in range(x.shape[0]):
        a, b = out[i], x[i]
        for s in range(len(factor)):
            a[s] += b[s] * factor[s]


@_compile
def times(A: Array, x: Array, out: Array, turned: bool) -> None:
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
def decide(row: Array, Bt: Array, known: Array, x: Array, z: Array, f: Array) -> None:
    """The actions z of a step whose drift is x, which becomes the state after it."""
    m, n, width = Bt.shape
    half = n * (n + 1) // 2
    for j in range(m - 1, -1, -1):
        dot(row[half + j * n : half + (j + 1) * n], x, f)
        zj, kj, dj = z[j], known[j], row[half + m * n + j]
        for s in range(width):
            zj[s] = -(f[s] + kj[s]) / dj[s]
        add(x, Bt[j], zj)


@_compile
def linear(
    row: Array, A: Array, Bt: Array, nu: Array, crossed: bool, rho: Array, c: Array, p: Array, known: Array, x: Array,
    z: Array, lam: Array, before: Array, f: Array,
) -> None:  # fmt: skip
    """A step of the recursion for the slopes: from p after a step to its effect on the actions, and to the slope
    `before` the step, without the linear cost of that state. z becomes the actions from h = 0."""
    m, n, width = Bt.shape
    half = n * (n + 1) // 2
    x[:] = p
    for j in range(m):
        kj, dj = known[j], row[half + m * n + j]
        dot(Bt[j], x, kj)
        rj = rho[j]
        for s in range(width):
            kj[s] += rj[s]
            f[s] = -kj[s] / dj[s]
        add(x, row[half + j * n : half + (j + 1) * n], f)
    x[:] = c
    decide(row, Bt, known, x, z, f)
    symmetric_times(row[:half], x, lam)
    for i in range(n):
        li, pi = lam[i], p[i]
        for s in range(width):
            li[s] += pi[s]
    times(A, lam, before, True)
    if crossed:
        for j in range(m):
            rj = rho[j]
            for s in range(width):
                f[s] = -rj[s]
            add(before, nu[j], f)


@_compile
def roll(
    row: Array, A: Array, Bt: Array, nu: Array, crossed: bool, c: Array, p: Array, known: Array, h: Array, x: Array,
    z: Array, lam: Array, f: Array,
) -> None:  # fmt: skip
    """A step forward from h: x becomes the next state, lam its co-state, z the actions in units of their cost."""
    n, width = h.shape
    half = n * (n + 1) // 2
    times(A, h, x, False)
    for i in range(n):
        xi, ci = x[i], c[i]
        for s in range(width):
            xi[s] += ci[s]
    decide(row, Bt, known, x, z, f)
    symmetric_times(row[:half], x, lam)
    for i in range(n):
        li, pi = lam[i], p[i]
        for s in range(width):
            li[s] += pi[s]
    if crossed:
        for j in range(len(z)):
            dot(nu[j], h, f)
            zj = z[j]
            for s in range(width):
                zj[s] -= f[s]


@_compile
def note(left: Array, size: Array, worst: Array) -> None:
    """worst becomes at least left / size; below `smallest`, numbers have fewer digits."""
    smallest = 1e-31 if left.itemsize == 4 else 1e-292
    for s in range(len(worst)):
        found = left[s] / max(size[s], smallest)
        worst[s] = found if found > worst[s] else worst[s]


@_compile
def check_costate(lam: Array, own: Array, back: Array, left: Array, size: Array, worst: Array) -> None:
    """A co-state is the slope of its own state's cost plus the share of the next co-state. worst becomes the largest
    violation, over the largest term, of this condition and of all that were checked before."""
    n, width = lam.shape
    left[:] = 0.0
    size[:] = 0.0
    for i in range(n):
        a, b, c = lam[i], own[i], back[i]
        for s in range(width):
            gap = abs(a[s] - b[s] - c[s])
            left[s] = gap if gap > left[s] else left[s]
            most = max(abs(a[s]), abs(b[s]), abs(c[s]))
            size[s] = most if most > size[s] else size[s]
    note(left, size, worst)


@_compile
def check_action(b: Array, lam: Array, z: Array, given: Array, left: Array, size: Array, worst: Array) -> None:
    """An action of cost 1/2 z² + given z has no slope left: z + given + b' λ = 0. worst as in check_costate."""
    n, width = lam.shape
    for s in range(width):
        left[s] = z[s] + given[s]
        size[s] = abs(z[s]) + abs(given[s])
    for i in range(n):
        x, y = b[i], lam[i]
        for s in range(width):
            term = x[s] * y[s]
            left[s] += term
            size[s] += abs(term)
    for s in range(width):
        left[s] = abs(left[s])
    note(left, size, worst)


@_compile
def prepare(
    which: Array, A: Array, B: Array, R: Array, N: Array, p: int, last: int, t: int, Am: Array, Bt: Array, L: Array,
    nu: Array, least: Array, f: Array,
) -> None:  # fmt: skip
    """The matrices of step t, actions in units of their cost, without a cross term."""
    m = Bt.shape[0]
    matrix(A, which[0], p, last, t, Am, False)
    matrix(B, which[1], p, last, t, Bt, True)
    lower_half(R, which[3], p, last, t, L)
    cholesky(L, m, least)
    whiten(L, Bt)
    if N.shape[0]:
        matrix(N, which[8], p, last, t, nu, True)
        whiten(L, nu)
        for j in range(m):
            for k in range(nu.shape[1]):
                for s in range(len(f)):
                    f[s] = -nu[j, k, s]
                add(Am[:, k], Bt[j], f)


@_compile
def descend(
    which: Array, A: Array, B: Array, Q: Array, R: Array, N: Array, Qf: Array, p: int, last: int, space: Array,
    P: Array, Qs: Array, G: Array, Am: Array, Bt: Array, L: Array, nu: Array, vectors: Array, lost: Array,
) -> None:  # fmt: skip
    """P, v and d of every step into `space`, and P before the first step, without a cost of that state, into P. `lost`
    becomes the largest d, or in float32, if that is more, HIDDEN times the hidden digits."""
    T, n, m = len(space), Am.shape[0], Bt.shape[0]
    half = n * (n + 1) // 2
    fixed = A.shape[1] == 1 and B.shape[1] == 1 and R.shape[1] == 1 and N.shape[1] == 1
    work, rest, hidden = vectors[:n], vectors[n : 2 * n], vectors[2 * n : 3 * n]
    scale, least = vectors[3 * n], vectors[3 * n + 1]
    least[:] = np.inf
    lost[:] = 1.0
    hidden[:] = 0.0
    if Qf.shape[0]:
        lower_half(Qf, which[9], p, last, 0, P)
    else:
        lower_half(Q, which[2], p, last, T - 1, P)
    if Q.shape[1] == 1:
        lower_half(Q, which[2], p, last, 0, Qs)
    for t in range(T - 1, -1, -1):
        row = space[t]
        row[:half] = P
        if t == T - 1 or not fixed:
            prepare(which, A, B, R, N, p, last, t, Am, Bt, L, nu, least, scale)
        for j in range(m):
            v, d = row[half + j * n : half + (j + 1) * n], row[half + m * n + j]
            absorb(P, Bt[j], v, d, work, rest, scale, lost, hidden)
        if t == 0:
            Qs[:] = 0.0
        elif Q.shape[1] > 1:
            lower_half(Q, which[2], p, last, t - 1, Qs)
        step_back(P, Am, G, Qs, nu, N.shape[0] > 0)
    for s in range(len(lost)):
        total = 0.0
        for i in range(n):
            total += hidden[i, s]
        lost[s] = HIDDEN * total if HIDDEN * total > lost[s] else lost[s]  # NaN stays
