"""The passes of dense_cpu.py, compiled by numba at first use and kept on disk; dense_cpu_steps.py has a step of each.

numba compares the date of this file alone with that of its cache: after a change over there, change this file as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ttcnet.machine.compile_cache import jit

from .dense_cpu_steps import (
    add,
    check_action,
    check_costate,
    colour,
    decide,
    descend,
    dot,
    linear,
    lower_half,
    prepare,
    roll,
    symmetric_times,
    times,
    vector,
    whiten_vector,
)

Array = Any
_compile = jit(nogil=True, fastmath={"contract", "nsz"}, error_model="numpy")


@_compile
def forward(
    first: int, last: int, piece: int, width: int, horizon: int, gains: bool, which: Array, A: Array, B: Array,
    Q: Array, R: Array, h0: Array, r: Array, q: Array, c: Array, N: Array, Qf: Array, kept: Array, u: Array, h: Array,
    costate: Array, cost: Array, K: Array, k: Array, Ps: Array, slopes: Array, lost: Array, unmet: Array,
) -> None:  # fmt: skip
    n, m, dtype = B.shape[2], B.shape[3], lost.dtype
    half, T, crossed = n * (n + 1) // 2, horizon, N.shape[0] > 0
    own = np.empty((0 if kept.shape[0] else T, half + m * n + m, width), dtype)
    P, Qs, G, Am = (np.empty((half, width), dtype), np.empty((half, width), dtype), np.empty((n, n, width), dtype),
                    np.empty((n, n, width), dtype))  # fmt: skip
    Bt, nu, L = (
        np.empty((m, n, width), dtype),
        np.empty((m, n, width), dtype),
        np.empty((m * (m + 1) // 2, width), dtype),
    )
    vectors, p_, known = (
        np.empty((3 * n + 2, width), dtype),
        np.empty((T, n, width), dtype),
        np.empty((T, m, width), dtype),
    )
    states, actions, numbers = (
        np.empty((8, n, width), dtype),
        np.empty((3, m, width), dtype),
        np.empty((6, width), dtype),
    )
    x, lam, cs, before, hs = states[0], states[1], states[2], states[3], states[4]
    seen, own_cost, back = states[5], states[6], states[7]
    z, rho, none = actions[0], actions[1], actions[2]
    f, worst, total, left, size, broken = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]
    fixed = A.shape[1] == 1 and B.shape[1] == 1 and R.shape[1] == 1 and N.shape[1] == 1
    affine = r.shape[0] > 0 or q.shape[0] > 0 or c.shape[0] > 0
    none[:] = 0.0
    for p in range(first, last, width):
        space = kept[p // width] if kept.shape[0] else own
        count = min(width, last - p)
        descend(which, A, B, Q, R, N, Qf, p, last, space, P, Qs, G, Am, Bt, L, nu, vectors, worst)
        lost[p : p + count] = worst[:count]
        p_[:] = 0.0
        known[:] = 0.0
        before[:] = 0.0
        if affine or gains:
            if affine:
                vector(q, which[6], p, last, T - 1, p_[T - 1])
            for t in range(T - 1, -1, -1):
                if not fixed:
                    prepare(which, A, B, R, N, p, last, t, Am, Bt, L, nu, worst, f)
                vector(r, which[5], p, last, t, rho)
                whiten_vector(L, rho)
                vector(c, which[7], p, last, t, cs)
                linear(space[t], Am, Bt, nu, crossed, rho, cs, p_[t], known[t], x, z, lam, before, f)
                if t > 0:
                    vector(q, which[6], p, last, t - 1, p_[t - 1])
                    for i in range(n):
                        for s in range(width):
                            p_[t - 1, i, s] += before[i, s]
                if gains:
                    colour(L, z)
                    for s in range(count):
                        for j in range(m):
                            k[p + s, t, j] = z[j, s]
                    for i in range(n):
                        x[:] = Am[:, i]
                        decide(space[t], Bt, none, x, z, f)
                        if crossed:
                            for j in range(m):
                                for s in range(width):
                                    z[j, s] -= nu[j, i, s]
                        colour(L, z)
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
        vector(h0, which[4], p, last, 0, hs)
        total[:] = 0.0
        broken[:] = 0.0
        if Q.shape[1] == 1:
            lower_half(Q, which[2], p, last, 0, Qs)
        for s in range(count):
            for i in range(n):
                h[p + s, 0, i] = hs[i, s]
        for t in range(T):
            if not fixed:
                prepare(which, A, B, R, N, p, last, t, Am, Bt, L, nu, worst, f)
            vector(c, which[7], p, last, t, cs)
            roll(space[t], Am, Bt, nu, crossed, cs, p_[t], known[t], hs, x, z, lam, f)
            vector(r, which[5], p, last, t, rho)
            whiten_vector(L, rho)
            times(Am, lam, back, True)
            for j in range(m):
                if crossed:
                    dot(nu[j], hs, f)
                else:
                    f[:] = 0.0
                for s in range(width):
                    f[s] += rho[j, s]
                    total[s] += z[j, s] * (z[j, s] / 2 + f[s])
                check_action(Bt[j], lam, z[j], f, left, size, broken)
                if crossed:
                    for s in range(width):
                        f[s] = -f[s]
                    add(back, nu[j], f)
            if t == 0:
                for s in range(count):
                    for i in range(n):
                        costate[p + s, 0, i] = back[i, s]
            else:
                check_costate(seen, own_cost, back, left, size, broken)
            colour(L, z)
            hs[:] = x
            if t == T - 1 and Qf.shape[0]:
                lower_half(Qf, which[9], p, last, 0, Qs)
            elif Q.shape[1] > 1:
                lower_half(Q, which[2], p, last, t, Qs)
            symmetric_times(Qs, x, cs)
            vector(q, which[6], p, last, t, before)
            for i in range(n):
                for s in range(width):
                    total[s] += x[i, s] * (cs[i, s] / 2 + before[i, s])
                    own_cost[i, s] = cs[i, s] + before[i, s]
            seen[:] = lam
            for s in range(count):
                for j in range(m):
                    u[p + s, t, j] = z[j, s]
                for i in range(n):
                    h[p + s, t + 1, i] = x[i, s]
                    costate[p + s, t + 1, i] = lam[i, s]
        back[:] = 0.0
        check_costate(seen, own_cost, back, left, size, broken)
        for s in range(count):
            cost[p + s] = total[s]
            unmet[p + s] = broken[s]


@_compile
def _add_outer(out: Array, a: Array, b: Array, a2: Array, b2: Array, even: bool) -> None:
    """Add a b' + a2 b2' to out. If `even`, the sum is symmetric, and made symmetric to the bit."""
    for i in range(out.shape[0]):
        for j in range(i + 1 if even else out.shape[1]):
            out[i, j] += a[i] * b[j] + a2[i] * b2[j]
            if even:
                out[j, i] = out[i, j]


@_compile
def _gather(
    store: Array, sums: Array, acc: Array, p: int, count: int, piece: int, t: int, a: Array, b: Array, a2: Array,
    b2: Array, even: bool,
) -> None:  # fmt: skip
    """Adds a b' + a2 b2' of every problem: to `sums` for a field that all problems share, to `store` for a field of
    every problem and step, to `acc` for one that the steps of a problem share."""
    for s in range(count):
        if sums.shape[0]:
            _add_outer(sums[piece, t if sums.shape[1] > 1 else 0], a[s], b[s], a2[s], b2[s], even)
        elif store.shape[0] and store.shape[1] > 1:
            _add_outer(store[p + s, t], a[s], b[s], a2[s], b2[s], even)
        elif store.shape[0]:
            _add_outer(acc[s], a[s], b[s], a2[s], b2[s], even)


@_compile
def _flush(store: Array, acc: Array, p: int, count: int) -> None:
    if store.shape[0] and store.shape[1] == 1:
        store[p : p + count, 0] = acc[:count]
        acc[:] = 0.0


@_compile
def _turn(x: Array, out: Array) -> None:
    """Transpose (i, width) into (width, i)."""
    for i in range(x.shape[0]):
        for s in range(x.shape[1]):
            out[s, i] = x[i, s]


@_compile
def _saved(source: Array, p: int, last: int, t: int, out: Array) -> None:
    """Read the output of a pass for step t, (problems, T, i), into (width, i)."""
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
    Bt, nu, L = (
        np.empty((m, n, width), dtype),
        np.empty((m, n, width), dtype),
        np.empty((m * (m + 1) // 2, width), dtype),
    )
    vectors, p2, known2 = (
        np.empty((3 * n + 2, width), dtype),
        np.empty((T, n, width), dtype),
        np.empty((T, m, width), dtype),
    )
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
            descend(which, A, B, Q, R, N, Qf, p, last, space, P, Qs, G, Am, Bt, L, nu, vectors, worst)
        elif fixed:
            prepare(which, A, B, R, N, p, last, 0, Am, Bt, L, nu, worst, f)
        if dcost.shape[0]:
            for s in range(width):
                half_g[s, 0] = dcost[min(p + s, last - 1)] / 2
        vector(dh, own_rows, p, last, T, p2[T - 1])
        for t in range(T - 1, -1, -1):
            if not fixed:
                prepare(which, A, B, R, N, p, last, t, Am, Bt, L, nu, worst, f)
            vector(du, own_rows, p, last, t, rho)
            whiten_vector(L, rho)
            vector(dcostate, own_rows, p, last, t + 1, cs)
            linear(space[t], Am, Bt, nu, crossed, rho, cs, p2[t], known2[t], x2, z2, lam2, before, f)
            if t > 0:
                vector(dh, own_rows, p, last, t, p2[t - 1])
                for i in range(n):
                    for s in range(width):
                        p2[t - 1, i, s] += before[i, s]
        vector(dcostate, own_rows, p, last, 0, h2)
        for t in range(T):
            if not fixed:
                prepare(which, A, B, R, N, p, last, t, Am, Bt, L, nu, worst, f)
            vector(dcostate, own_rows, p, last, t + 1, cs)
            roll(space[t], Am, Bt, nu, crossed, cs, p2[t], known2[t], h2, x2, z2, lam2, f)
            _saved(h, p, last, t, hT)
            _saved(h, p, last, t + 1, xT)
            _saved(costate, p, last, t + 1, lamT)
            _saved(u, p, last, t, uT)
            if t == 0:
                vector(du, own_rows, p, last, 0, rho)
                whiten_vector(L, rho)
                times(Am, lam2, before, True)
                if crossed:
                    for j in range(m):
                        dot(nu[j], h2, f)
                        for s in range(width):
                            f[s] = -f[s] - rho[j, s]
                        add(before, nu[j], f)
                vector(dh, own_rows, p, last, 0, cs)
                for i in range(n):
                    for s in range(width):
                        cs[i, s] += before[i, s]
                _turn(cs, xT2)
                _saved(costate, p, last, 0, lamT2)
                for s in range(count):  # half of the cost's share here, half below, as everywhere
                    for i in range(n):
                        xT2[s, i] += half_g[s, 0] * lamT2[s, i]
                if sh0.shape[0]:
                    _gather(dh0, sh0, acc_q, p, count, piece, 0, xT2, one, lamT2, half_g, False)
                elif dh0.shape[0]:
                    for s in range(count):
                        for i in range(n):
                            dh0[p + s, 0, i, 0] = xT2[s, i] + half_g[s, 0] * lamT2[s, i]
            colour(L, z2)
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
            _gather(dA, sA, accA, p, count, piece, t, lamT, hT2, lamT2, hT, False)
            _gather(dB, sB, accB, p, count, piece, t, lamT, uT2, lamT2, uT, False)
            _gather(dN, sN, accN, p, count, piece, t, hT, uT2, hT2, uT, False)
            _gather(dr, sr, acc_r, p, count, piece, t, uT2, one, uT, half_g, False)
            _gather(dq, sq, acc_q, p, count, piece, t, xT2, one, xT, half_g, False)
            _gather(dc, sc, acc_c, p, count, piece, t, lamT2, one, lamT, half_g, False)
            for s in range(count):
                for j in range(m):
                    uT2[s, j] /= 2
                for i in range(n):
                    xT2[s, i] /= 2
            _gather(dR, sR, accR, p, count, piece, t, uT, uT2, uT2, uT, True)
            if t == T - 1 and Qf.shape[0]:
                accQf = np.zeros((width, n, n), dtype)
                _gather(dQf, sQf, accQf, p, count, piece, 0, xT, xT2, xT2, xT, True)
                _flush(dQf, accQf, p, count)
            else:
                _gather(dQ, sQ, accQ, p, count, piece, t, xT, xT2, xT2, xT, True)
            h2[:] = x2
        _flush(dA, accA, p, count)
        _flush(dB, accB, p, count)
        _flush(dN, accN, p, count)
        _flush(dr, acc_r, p, count)
        _flush(dq, acc_q, p, count)
        _flush(dc, acc_c, p, count)
        _flush(dR, accR, p, count)
        _flush(dQ, accQ, p, count)
