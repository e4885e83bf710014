// The stable recursion forward in time: the closed loops of the problem and of its adjoint, and all gradients.

#include "common.cuh"
#include "fused.cuh"
#include "careful.cuh"

#define REFINE_ABOVE 4                    // above this 1 + w s, P° has too few digits left to be used alone

// A matrix of n rows and `columns` (of COLUMNS) columns for every problem, or, if SUM > 1, its sum over the problems of a
// block, which are heads of one token.
template <int SUM, bool SYMMETRIC, int COLUMNS>
__device__ __forceinline__ void write(real *to, bool first_part, const Shape &shape, int columns, const Problem &p, real *room, const real (&matrix)[ROWS][COLUMNS]) {
    const Warp warp(p.index, shape);
    const int n = shape.n;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) save(room + p.row(r) * COLUMNS, matrix[r]);
    if (SUM == 1) return warp.write<COLUMNS, SYMMETRIC>(to, n, columns, room, first_part);
    __syncthreads();
    const real *rooms = room - threadIdx.x / LANES * ROOM;
    to += (long long)blockIdx.x * n * columns;
    for (int k = threadIdx.x; k < N * COLUMNS; k += THREADS) {
        const int i = k / COLUMNS, j = k % COLUMNS;
        real total = 0;
#pragma unroll
        for (int which = 0; which < SUM; ++which) total += entry<COLUMNS, SYMMETRIC>(rooms + which * ROOM, i, j);
        if (i < n && j < columns) put(to + i * columns + j, first_part, total);
    }
    __syncthreads();
}

// matrix * vector, for both problems at once
__device__ __forceinline__ void multiply(const real (&P)[ROWS][N], const real (&x)[N], const real (&y)[N], real (&Px)[ROWS], real (&Py)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        real even = 0, odd = 0, even2 = 0, odd2 = 0;
#pragma unroll
        for (int k = 0; k < N; k += 2) {
            even += P[r][k] * x[k];
            even2 += P[r][k] * y[k];
            odd += P[r][k + 1] * x[k + 1];
            odd2 += P[r][k + 1] * y[k + 1];
        }
        Px[r] = even + odd;
        Py[r] = even2 + odd2;
    }
}

// B' x for the actions of this lane
__device__ __forceinline__ void reach(Problem &p, const real (&x)[N], const real (&y)[N], real (&Bx)[ACTIONS], real (&By)[ACTIONS]) {
#pragma unroll
    for (int r = 0; r < ACTIONS; ++r) {
        real b[N], even = 0, odd = 0, even2 = 0, odd2 = 0;
        load(p.Bt + min(p.action(r), M - 1) * B_ROW, b);
#pragma unroll
        for (int k = 0; k < N; k += 2) {
            even += b[k] * x[k];
            even2 += b[k] * y[k];
            odd += b[k + 1] * x[k + 1];
            odd2 += b[k + 1] * y[k + 1];
        }
        Bx[r] = even + odd;
        By[r] = even2 + odd2;
    }
}

// h += B e for the rows of this lane; e was shared before
__device__ __forceinline__ void push(const Problem &p, real (&h)[ROWS], real (&h2)[ROWS]) {
#pragma unroll
    for (int j = 0; j < M; j += 4) {
        real e[4], e2[4];
        load(p.group.actions() + j, e);
        load(p.group.actions() + WIDEST + 4 + j, e2);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            real b[ROWS];
            load(p.Bt + (j + k) * B_ROW + p.group.lane * ROWS, b);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                h[r] += b[r] * e[k];
                h2[r] += b[r] * e2[k];
            }
        }
    }
}

struct Outputs {
    real *state, *da, *dB, *dQ, *dQf, *dr_inv, *ddecay_A, *ddecay_B, *ddecay_Q, *dh0;
};

// The results of a kernel. fused_backward writes, and adds to earlier stretches; after it, fused_backward_carefully (`careful`)
// only adds. h, h2: the states at step top, kept for the next stretch if the problem is `mine`.
__device__ __forceinline__ void finish(
    const Outputs &out, const Shape &shape, Problem &p, real *room, int bottom, int top, bool careful, bool mine, Gradients<real> &of,
    const real (&h)[ROWS], const real (&h2)[ROWS], real (&matrix)[ROWS][N]) {
    const int n = shape.n, m = shape.m, lane = p.group.lane;
    const bool first = bottom == 0 && !careful;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
        if (p.row(r) < n) {
            const long long k = p.index * n + p.row(r);
            put(out.da + k, first, of.a[r]);
            put(out.ddecay_Q + k, first, of.decay_Q[r]);
            if (!ONE_DECAY_A) put(out.ddecay_A + k, first, of.decay_A[r]);
        }
#pragma unroll
    for (int r = 0; r < ACTIONS; ++r)
        if (p.action(r) < m) {
            put(out.dr_inv + p.index * m + p.action(r), first, of.r_inv[r]);
            put(out.ddecay_B + p.index * m + p.action(r), first, of.decay_B[r]);
        }
    if (ONE_DECAY_A) {
        real total = 0;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) total += of.decay_A[r];
        total = p.group.sum(total);
        if (lane == 0) put(out.ddecay_A + p.index, first, total);
    }
    if (top < shape.horizon) {
        real *h_kept = out.state + p.index * 4 * N;
        if (mine) {
            unspread(h_kept, N, lane, h);
            unspread(h_kept + N, N, lane, h2);
        }
    } else {
        real full[N], full2[N];
        p.group.gather(h, h2, full, full2);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int k = 0; k < N; ++k) matrix[r][k] = (h[r] * full2[k] + h2[r] * full[k]) / 2;
        write<1, true>(out.dQf, !careful, shape, n, p, room, matrix);
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int k = 0; k < N; ++k) of.Q[r][k] /= 2;
    write<SHARED_Q ? SUMMED : 1, true>(out.dQ, first, shape, n, p, room, of.Q);
    write<SHARED_B ? SUMMED : 1, false>(out.dB, first, shape, m, p, room, of.B);
}

#define STRETCH                                                                                                          \
    PROBLEMS, int bottom, int top, const real *end, const real *kept, const real *lost, const real *g, real *state,      \
    real *da, real *dB, real *dQ, real *dQf, real *dr_inv, real *ddecay_A, real *ddecay_B, real *ddecay_Q, real *dh0
#define OUTPUTS const Outputs out = {state, da, dB, dQ, dQf, dr_inv, ddecay_A, ddecay_B, ddecay_Q, dh0};

__device__ __forceinline__ void nothing_yet(Gradients<real> &of, real (&h)[ROWS], real (&h2)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        of.a[r] = of.decay_A[r] = of.decay_Q[r] = h[r] = h2[r] = 0;
#pragma unroll
        for (int j = 0; j < M; ++j) of.B[r][j] = 0;
#pragma unroll
        for (int k = 0; k < N; ++k) of.Q[r][k] = 0;
    }
#pragma unroll
    for (int r = 0; r < ACTIONS; ++r) of.r_inv[r] = of.decay_B[r] = 0;
}

// Forward in time through steps bottom + 1 .. top of two closed loops, the problem and its adjoint (names with a 2); adds up
// gradients. kept, lost: P° of each of these steps and its largest 1 + w s; below 0 it leaves a problem to fused_backward_carefully. end: P at
// step top; null is Qf. g: the gradient of the first actions. state: h and h2 at step bottom, and then at step top; and, if
// numbers are wide, the errors of their rounding.
//
// With λ = P° x at every step, x = A h and y = u / r_inv:  y = -B' λ,  h = x + B u,  and P h, the co-state that the gradients
// need, is A λ' + Q h; the next step begins with λ' = P°' A h.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) fused_backward(STRETCH) {
    UNPACK
    OUTPUTS
    extern __shared__ __align__(16) real memory[];
    Problem p;
    real *room = memory + threadIdx.x / LANES * ROOM;
    if (!set_up(in, shape, memory + GROUPS * ROOM, p)) return;
    if (!end) Warp(p.index, shape).read<N>(in.Qf, n, n, room);
    const int lane = p.group.lane;
    real *h_kept = state + p.index * 4 * N, *h2_kept = h_kept + N;

    Gradients<real> of;
    real P[ROWS][N], full[N], full2[N];
    real h[ROWS], h2[ROWS], x[ROWS], x2[ROWS], lam[ROWS], lam2[ROWS], fade_A[ROWS], pull[ACTIONS];
    nothing_yet(of, h, h2);
#pragma unroll
    for (int r = 0; r < ACTIONS; ++r) pull[r] = 0;

    real lost_digits = lost[p.index];
    const bool mine = !(lost_digits < 0);
    if (mine) {
        p.A_fade(bottom + 1, fade_A);
        recall(kept, 0, shape, p, P);
        if (bottom) {
            spread(h_kept, N, lane, h);
            spread(h2_kept, N, lane, h2);
        } else {
            spread(in.h0 + p.index * n, n, lane, h);
            spread(g + p.index * m, m, lane, pull);  // the gradient pulls at the first action, and at no other
#pragma unroll
            for (int r = 0; r < ROWS; ++r) h2[r] = 0;
        }
        real forced[ROWS], price = 0;  // price: h' Q h2, over the steps, for a single action
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            x[r] = (1 + fade_A[r] * p.a[r]) * h[r];
            forced[r] = x2[r] = (1 + fade_A[r] * p.a[r]) * h2[r];
        }
        if (!bottom) {
            real e[ACTIONS], e2[ACTIONS], unused[ROWS];
            p.B_fade(1, e2);
#pragma unroll
            for (int r = 0; r < ACTIONS; ++r) {
                e[r] = 0;
                e2[r] *= -p.r_inv[r] * pull[r];
            }
#pragma unroll
            for (int r = 0; r < ROWS; ++r) unused[r] = 0;
            p.group.share(e, e2);
            push(p, unused, forced);
        }
        p.group.gather(x, forced, full, full2);
        multiply(P, full, full2, lam, lam2);

#pragma unroll 1
        for (int t = bottom + 1; t <= top; ++t) {
            const bool last = t == top, refine = lost_digits > REFINE_ABOVE;
            // loaded while this step is computed
            if (!last) lost_digits = lost[(t - bottom) * problems + p.index];
            if (t + 1 < top) prefetch(kept, t - bottom + 1, shape, p);
            real fade[ACTIONS], fade_Q[ROWS], y[ACTIONS], y2[ACTIONS], q[ACTIONS], q2[ACTIONS], e[ACTIONS], e2[ACTIONS];
            real next[ROWS], next2[ROWS], ahead[ROWS], ahead2[ROWS], A[ROWS], fade_A_next[ROWS];
            p.B_fade(t, fade);
            p.Q_fade(t, fade_Q);
            p.A_fade(t + 1, fade_A_next);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) A[r] = last ? 1 : 1 + fade_A_next[r] * p.a[r];
            if (last) fetch(end, room, shape, p, P);
            else recall(kept, t - bottom, shape, p, P);

            p.group.gather(lam, lam2, full, full2);
            reach(p, full, full2, q, q2);
#pragma unroll
            for (int r = 0; r < ACTIONS; ++r) {
                y[r] = -fade[r] * q[r];
                y2[r] = -fade[r] * q2[r] - pull[r];
            }
            // P° is a difference whose digits may have cancelled: then, one pass of refinement before the one that counts
#pragma unroll 1
            for (int pass = refine ? 0 : 1; pass < 2; ++pass) {
#pragma unroll
                for (int r = 0; r < ACTIONS; ++r) {
                    e[r] = fade[r] * p.r_inv[r] * y[r];
                    e2[r] = fade[r] * p.r_inv[r] * y2[r];
                }
                p.group.share(e, e2);
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    next[r] = x[r];
                    next2[r] = x2[r];
                }
                push(p, next, next2);
                // λ = P h
                real onward[ROWS], onward2[ROWS];
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    onward[r] = A[r] * next[r];
                    onward2[r] = A[r] * next2[r];
                }
                p.group.gather(onward, onward2, full, full2);
                multiply(P, full, full2, ahead, ahead2);
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    lam[r] = A[r] * ahead[r];
                    lam2[r] = A[r] * ahead2[r];
                }
                if (t < horizon) {
                    real faded[ROWS], faded2[ROWS];
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) {
                        faded[r] = fade_Q[r] * next[r];
                        faded2[r] = fade_Q[r] * next2[r];
                    }
                    p.group.gather(faded, faded2, full, full2);
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) {
                        real Q[N], Qh = 0, Qh2 = 0;
                        p.load_Q(r, Q);
#pragma unroll
                        for (int k = 0; k < N; ++k) {
                            Qh += Q[k] * full[k];
                            Qh2 += Q[k] * full2[k];
                        }
                        if (!last) {
                            lam[r] += fade_Q[r] * Qh;
                            lam2[r] += fade_Q[r] * Qh2;
                        }
                        if (pass == 1) {
                            if (M == 4) price += faded[r] * Qh2;
                            of.decay_Q[r] -= t * (faded[r] * Qh2 + faded2[r] * Qh);
#pragma unroll
                            for (int k = 0; k < N; ++k) of.Q[r][k] += faded[r] * full2[k] + faded2[r] * full[k];
                        }
                    }
                }
                if (pass == 1) break;

                // the residual of y, and its effect
                p.group.gather(lam, lam2, full, full2);
                reach(p, full, full2, q, q2);
                real d[ACTIONS], d2[ACTIONS];
#pragma unroll
                for (int r = 0; r < ACTIONS; ++r) {
                    d[r] = -fade[r] * q[r] - y[r];
                    d2[r] = -fade[r] * q2[r] - pull[r] - y2[r];
                    e[r] = fade[r] * p.r_inv[r] * d[r];
                    e2[r] = fade[r] * p.r_inv[r] * d2[r];
                }
                p.group.share(e, e2);
#pragma unroll
                for (int r = 0; r < ROWS; ++r) next[r] = next2[r] = 0;
                push(p, next, next2);
                p.group.gather(next, next2, full, full2);
                recall(kept, t - bottom - 1, shape, p, P);
                multiply(P, full, full2, lam, lam2);
                p.group.gather(lam, lam2, full, full2);
                reach(p, full, full2, q, q2);
#pragma unroll
                for (int r = 0; r < ACTIONS; ++r) {
                    y[r] += d[r] - fade[r] * q[r];
                    y2[r] += d2[r] - fade[r] * q2[r];
                }
                if (last) fetch(end, room, shape, p, P);
                else recall(kept, t - bottom, shape, p, P);
            }

            // B' λ = -y, and B' λ2 = -y2 but for the pull at the first action
            if (t == 1) {
                p.group.gather(lam, lam2, full, full2);
                reach(p, full, full2, q, q2);
            }
#pragma unroll
            for (int r = 0; r < ACTIONS; ++r) {
                of.r_inv[r] -= y[r] * y2[r];
                of.decay_B[r] += t * p.r_inv[r] * (y[r] * y2[r] + (t == 1 ? -fade[r] * q2[r] : y2[r]) * y[r]);
                pull[r] = 0;
            }
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                real u[4], u2[4];
                const real through = fade_A[r] * (lam[r] * h2[r] + lam2[r] * h[r]);
                of.a[r] += through;
                of.decay_A[r] -= t * p.a[r] * through;
#pragma unroll
                for (int j = 0; j < M; j += 4) {
                    load(p.group.actions() + j, u);
                    load(p.group.actions() + WIDEST + 4 + j, u2);
#pragma unroll
                    for (int k = 0; k < 4; ++k) of.B[r][j + k] += lam[r] * u2[k] + lam2[r] * u[k];
                }
                if (t == 1 && p.row(r) < n) dh0[p.index * n + p.row(r)] = (1 + fade_A[r] * p.a[r]) * lam2[r];
                h[r] = next[r];
                h2[r] = next2[r];
                x[r] = A[r] * next[r];
                x2[r] = A[r] * next2[r];
                lam[r] = ahead[r];
                lam2[r] = ahead2[r];
                fade_A[r] = fade_A_next[r];
            }
        }
        if (top < horizon)
            for (int k = lane; k < 2 * N; k += LANES) h_kept[2 * N + k] = 0;
        // One action: if it is the only one that can hold an unstable state, u hardly depends on its price, and the terms of dr_inv
        // cancel. Those of Q do not: a cost that is scaled as a whole has the same minimum: r_inv dr_inv = <Q, dQ> + <Qf, dQf>.
        if (M == 4 && m == 1) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
                if (top == horizon) price += h2[r] * lam[r];
            price = p.group.sum(price);
            if (lane == 0) of.r_inv[0] = price / p.r_inv[0];
        }
    }
    finish(out, shape, p, room, bottom, top, false, mine, of, h, h2, P);
}

// The same for the problems that fused_forward went through carefully, after fused_backward, which wrote zeros for them. A separate
// kernel, because with a call of this size the other kernel would run out of registers. Blocks without such a problem end at once.
extern "C" __global__ void __launch_bounds__(THREADS, 1) fused_backward_carefully(STRETCH) {
    const long long before = (long long)blockIdx.x * GROUPS;
    bool any = false;
    for (int k = 0; k < GROUPS; ++k)
        if (before + k < problems) any |= lost[before + k] < 0;
    if (!any) return;
    UNPACK
    OUTPUTS
    extern __shared__ __align__(16) real memory[];
    Problem p;
    real *room = memory + threadIdx.x / LANES * ROOM;
    if (!set_up(in, shape, memory + GROUPS * ROOM, p)) return;
    Gradients<real> of;
    real h[ROWS], h2[ROWS], matrix[ROWS][N];
    nothing_yet(of, h, h2);
    const bool mine = lost[p.index] < 0;
    if (sizeof(real) == 4 && lost[p.index] == -1)
        backward_carefully<double>(in, shape, p, bottom, top, end, kept, g, state, dh0, of, h, h2);
    else if (mine) backward_carefully<Two>(in, shape, p, bottom, top, end, kept, g, state, dh0, of, h, h2);
    __syncwarp(p.group.mask);  // all lanes have read the exchanged vectors
    finish(out, shape, p, room, bottom, top, true, mine, of, h, h2, matrix);
}
