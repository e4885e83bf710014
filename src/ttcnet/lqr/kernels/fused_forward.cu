// The stable recursion backward in time: P from the end of the horizon to its beginning, and the first actions.

#include "common.cuh"
#include "fused.cuh"
#include "careful.cuh"

static_assert(!FOURS || (ROWS == 1 && LANES >= 16), "four actions need sixteen lanes of one row each");
#define TURN (ACTIONS > 1 ? ACTIONS : 2)  // actions between two passes of a loop over them

// sqrt(w / d), for w >= 0, or NaN if d < 0: then the problem has no minimum. In float, one approximate reciprocal root, made
// exact by one step of Newton's; w = 0 comes with d = 1.
__device__ __forceinline__ real root_of_ratio(real w, real d) {
    if (sizeof(real) == 8) return (real)sqrt((double)(w / d));
    const real x = fma(w, d, (real)1e-37), guess = (real)rsqrtf((float)x);
    return w * (guess * ((real)1.5 - (real)0.5 * x * guess * guess));
}

// x / d, or NaN unless d > 0
__device__ __forceinline__ real share_of(real x, real d) { return d > 0 ? x / d : (real)rsqrtf(-1.0f); }

// Actions j and j + 1 absorbed into P. v and v2: their P b, the second after the first was absorbed. d and d2: their
// 1 + w s.
__device__ __forceinline__ void absorb(Problem &p, int j, real w, real w2, real (&P)[ROWS][N], real (&v)[ROWS], real (&v2)[ROWS], real &d, real &d2) {
    real own[ROWS], own2[ROWS], odd[ROWS], odd2[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) v[r] = v2[r] = odd[r] = odd2[r] = 0;
#pragma unroll
    for (int k = 0; k < N; k += 4) {
        real b[4], b2[4];
        load(p.Bt + j * B_ROW + k, b);
        load(p.Bt + (j + 1) * B_ROW + k, b2);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                v[r] += P[r][k + i] * b[i];
                v2[r] += P[r][k + i] * b2[i];
                odd[r] += P[r][k + i + 1] * b[i + 1];
                odd2[r] += P[r][k + i + 1] * b2[i + 1];
            }
    }
    load(p.Bt + j * B_ROW + p.group.lane * ROWS, own);
    load(p.Bt + (j + 1) * B_ROW + p.group.lane * ROWS, own2);
    real s = 0, cross = 0, s2 = 0;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        v[r] += odd[r];
        v2[r] += odd2[r];
        s += v[r] * own[r];
        cross += v2[r] * own[r];
        s2 += v2[r] * own2[r];
    }
    // With one row a lane, waiting takes the time: exchange v at once, and scale it when the scales are known.
    // With more, it is the number of instructions and registers: scale first.
    real full[N], full2[N];
    if (ROWS == 1) p.group.gather(v, v2, full, full2);
    s = p.group.sum(s);
    cross = p.group.sum(cross);
    s2 = p.group.sum(s2);
    d = 1 + w * s;
    const real scale = root_of_ratio(w, d), k = scale * scale * cross;
    d2 = 1 + w2 * (s2 - k * cross);
    const real scale2 = root_of_ratio(w2, d2);
    real mine[ROWS], mine2[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        v2[r] = fma(-k, v[r], v2[r]);
        mine[r] = v[r] * scale;
        mine2[r] = v2[r] * scale2;
    }
    if (ROWS == 1) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            full2[i] = fma(-k, full[i], full2[i]) * scale2;
            full[i] *= scale;
        }
#pragma unroll
        for (int i = 0; i < N; ++i) P[0][i] = fma(-mine2[0], full2[i], fma(-mine[0], full[i], P[0][i]));
        return;
    }
    const real *told = p.group.tell(mine, mine2), *told2 = told + WIDEST + 4;
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        real part[4], part2[4];
        load(told + i, part);
        load(told2 + i, part2);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int c = 0; c < 4; ++c) P[r][i + c] = fma(-mine2[r], part2[c], fma(-mine[r], part[c], P[r][i + c]));
    }
}

// Actions j .. j + 3 absorbed into P, one row in each lane, for fewer waits: their P b, the 4 x 4 products b'P b, one for each
// lane, an elimination that every lane repeats, one update. Returns the largest 1 + w s, or `worst`.
__device__ __forceinline__ real absorb_four(Problem &p, int j, const real (&w)[4], real (&P)[ROWS][N], real worst) {
    const int lane = p.group.lane, next = WIDEST + 4;
    real *seen = p.group.fours(0), *scaled = p.group.fours(1), v[4], odd[4], s[4][4];
#pragma unroll
    for (int a = 0; a < 4; ++a) v[a] = odd[a] = 0;
#pragma unroll
    for (int k = 0; k < N; k += 4)
#pragma unroll
        for (int a = 0; a < 4; ++a) {
            real b[4];
            load(p.Bt + (j + a) * B_ROW + k, b);
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                v[a] += P[0][k + i] * b[i];
                odd[a] += P[0][k + i + 1] * b[i + 1];
            }
        }
#pragma unroll
    for (int a = 0; a < 4; ++a) seen[a * next + lane] = v[a] += odd[a];
    __syncwarp(p.group.mask);
    // lane 4 a + c: b of action a times P b of action c
    const real *own = p.Bt + (j + lane / 4 % 4) * B_ROW, *other = seen + lane % 4 * next;
    real part[4] = {0, 0, 0, 0};
#pragma unroll
    for (int k = 0; k < N; k += 4) {
        real b[4], x[4];
        load(own + k, b);
        load(other + k, x);
#pragma unroll
        for (int i = 0; i < 4; ++i) part[i] += b[i] * x[i];
    }
    const real product = (part[0] + part[1]) + (part[2] + part[3]);
#pragma unroll
    for (int a = 0; a < 4; ++a)
#pragma unroll
        for (int c = a; c < 4; ++c) s[a][c] = p.group.from(product, 4 * a + c);
#pragma unroll
    for (int a = 0; a < 4; ++a) {
        const real d = 1 + w[a] * s[a][a], scale = root_of_ratio(w[a], d);
        worst = max(worst, d);
#pragma unroll
        for (int c = a + 1; c < 4; ++c) {
            const real k = scale * scale * s[a][c];
            v[c] = fma(-k, v[a], v[c]);
#pragma unroll
            for (int e = c; e < 4; ++e) s[c][e] = fma(-k, s[a][e], s[c][e]);
        }
        v[a] *= scale;
        scaled[a * next + lane] = v[a];
    }
    __syncwarp(p.group.mask);
#pragma unroll
    for (int a = 0; a < 4; ++a)
#pragma unroll
        for (int k = 0; k < N; k += 4) {
            real x[4];
            load(scaled + a * next + k, x);
#pragma unroll
            for (int i = 0; i < 4; ++i) P[0][k + i] = fma(-v[a], x[i], P[0][k + i]);
        }
    return worst;
}

// P becomes P°: all actions of step t absorbed. Returns the largest 1 + w s, or `worst`: how many digits P° has lost.
__device__ __forceinline__ real absorb_all(Problem &p, int t, real (&P)[ROWS][N], real worst = 1) {
    real w[ACTIONS], v[ROWS], v2[ROWS], d, d2;
    p.B_fade(t, w);
#pragma unroll
    for (int r = 0; r < ACTIONS; ++r) w[r] = p.r_inv[r] * w[r] * w[r];
    if (FOURS) {
        const int of_turn = max(ACTIONS, 4);
#pragma unroll 1
        for (int turn = 0; turn < M; turn += of_turn)
#pragma unroll
            for (int r = 0; r < of_turn; r += 4) {
                real four_w[4];
#pragma unroll
                for (int a = 0; a < 4; ++a) four_w[a] = p.weight(w, r + a, turn + r + a);
                worst = absorb_four(p, turn + r, four_w, P, worst);
            }
        return worst;
    }
#pragma unroll 1
    for (int turn = 0; turn < M; turn += TURN)
#pragma unroll
        for (int r = 0; r < TURN; r += 2) {
            const int j = turn + r;
            absorb(p, j, p.weight(w, r, j), p.weight(w, r + 1, j + 1), P, v, v2, d, d2);
            worst = max(worst, max(d, d2));
        }
    return worst;
}

// P° of step t becomes P of step t - 1.
__device__ __forceinline__ void step_back(Problem &p, int t, real (&P)[ROWS][N]) {
    real A[ROWS], scale[ROWS], A_full[N], scale_full[N], Q[N];
    p.A_at(t, A);
    p.Q_fade(t - 1, scale);
    p.group.gather(A, scale, A_full, scale_full);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        p.load_Q(r, Q);
#pragma unroll
        for (int k = 0; k < N; ++k) P[r][k] = A[r] * A_full[k] * P[r][k] + scale[r] * scale_full[k] * Q[k];
    }
}

// The actions of the first step: absorbed in order, P b of each kept in V, then decided in reverse order. P becomes P°. Returns
// the largest 1 + w s.
__device__ real decide(const Inputs &in, const Shape &shape, Problem &p, real *V, real (&P)[ROWS][N], real *u_out) {
    real fade[ACTIONS], rate[ACTIONS], gain[ACTIONS], u[ACTIONS], v[ROWS], v2[ROWS], d, d2, worst = 1;
    p.B_fade(1, fade);
#pragma unroll
    for (int r = 0; r < ACTIONS; ++r) rate[r] = p.r_inv[r] * fade[r];
#pragma unroll 1
    for (int turn = 0; turn < M; turn += TURN)
#pragma unroll
        for (int r = 0; r < TURN; r += 2) {
            const int j = turn + r;
            const real first = p.weight(rate, r, j), second = p.weight(rate, r + 1, j + 1);
            absorb(p, j, first * p.weight(fade, r, j), second * p.weight(fade, r + 1, j + 1), P, v, v2, d, d2);
            worst = max(worst, max(d, d2));
            if (p.group.lane == j / ACTIONS) gain[r % ACTIONS] = share_of(first, d);
            if (p.group.lane == (j + 1) / ACTIONS) gain[(r + 1) % ACTIONS] = share_of(second, d2);
            save(V + j * N + p.row(0), v);
            save(V + (j + 1) * N + p.row(0), v2);
        }
    real x[ROWS], A[ROWS];
    spread(in.h0 + p.index * shape.n, shape.n, p.group.lane, x);
    p.A_at(1, A);
#pragma unroll
    for (int k = 0; k < ROWS; ++k) x[k] *= A[k];
#pragma unroll 1
    for (int turn = M - TURN; turn >= 0; turn -= TURN)
#pragma unroll
        for (int r = TURN - 1; r >= 0; --r) {
            const int j = turn + r;
            real part = 0;
            load(V + j * N + p.row(0), v);
            load(p.Bt + j * B_ROW + p.row(0), v2);
#pragma unroll
            for (int k = 0; k < ROWS; ++k) part += v[k] * x[k];
            const real action = -gain[r % ACTIONS] * p.group.sum(part);  // true in its owner
            if (p.group.lane == j / ACTIONS) u[r % ACTIONS] = action;
            const real push = p.group.from(action * fade[r % ACTIONS], j / ACTIONS);
#pragma unroll
            for (int k = 0; k < ROWS; ++k) x[k] += v2[k] * push;
        }
    unspread(u_out + p.index * shape.m, shape.m, p.group.lane, u);
    return worst;
}

// Backward in time through steps top .. bottom + 1.
// end: P at step top; null is Qf. points: where to keep every `every`-th P in between (P at bottom + every is the first),
// or null. kept: where to keep P° of every step, and lost its largest 1 + w s (below 0 says otherwise: see careful.cuh), or null.
// u_out: the first actions, or null; wanted if bottom is 0. marks: a P that an earlier pass over all steps kept, or null. It
// shows whether that pass went carefully through this problem; then this one does too.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) fused_forward(
    PROBLEMS, int bottom, int top, const real *end, int every, real *points, real *kept, real *lost, real *u_out,
    const real *marks) {
    UNPACK
    extern __shared__ __align__(16) real memory[];
    Problem p;
    real *room = memory + threadIdx.x / LANES * ROOM;
    if (!set_up(in, shape, memory + GROUPS * ROOM, p)) return;

    real P[ROWS][N], worst = 1, worst_of_all = 1;
    if (!end) Warp(p.index, shape).read<N>(in.Qf, n, n, room);
    fetch(end, room, shape, p, P);
    __syncwarp(p.group.mask);
    const int lowest = u_out || kept ? bottom + 1 : bottom + every;
    for (int t = top; t > lowest; --t) {
        worst = absorb_all(p, t, P, kept ? 1 : worst);
        if (kept) {
            worst_of_all = max(worst_of_all, worst);
            store(kept, t - bottom - 1, shape, p, P);
            if (p.group.lane == 0) lost[(t - bottom - 1) * problems + p.index] = worst;
        }
        step_back(p, t, P);
        if (points && (t - 1 - bottom) % every == 0) {
            store(points, SLOTS * ((t - 1 - bottom) / every - 1), shape, p, P);
            mark(points, (t - 1 - bottom) / every - 1, shape, p, 0);
        }
    }
    worst_of_all = max(worst_of_all, worst);
    if (!marks) worst_of_all = max(worst_of_all, faintest(p, shape, lowest, P));
    if (u_out) worst = decide(in, shape, p, room, P, u_out);
    else if (kept) worst = absorb_all(p, bottom + 1, P);
    if (kept) {
        store(kept, 0, shape, p, P);
        if (p.group.lane == 0) lost[p.index] = worst;
    }
    if (u_out || kept) worst_of_all = max(worst_of_all, worst);
    const int level = marks ? level_of(marks, 0, shape, p) : 0;
    if (marks ? level > 0 : worst_of_all > CAREFUL_ABOVE)
        forward_carefully(in, shape, p, level, bottom, top, end, every, points, kept, lost, u_out);
}
