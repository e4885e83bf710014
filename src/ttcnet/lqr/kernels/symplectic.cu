// The paper's symplectic iteration behind plan(backend="symplectic"), forward (Algorithm 4) and backward (Algorithm 5),
// for many small problems at once. It loses digits by nature: see symplectic.py beside this folder, which has the
// mathematics for general problems. The stable recursion is in fused_forward.cu and
// fused_backward.cu.
//
// Forward. From [Y1 Y2] = [I Qf], for t = T..1, each row separately:
//     Y3 = Y2 B_t R^-1        Y1 <- (Y1 + Y3 B_t') A_t^-1        Y2 <- Y2 A_t + Y1 Q_{t-1}        (Q_0 = 0)
// and all three are divided by the larger of the row's norms |Y1|_1 and |Y2|_1. Then
//     λ_0 = Y1^-1 Y2 h_0        u_1 = -R^-1 B_1' A_1^-1 λ_0.
// Y1 is eliminated on chip, with partial pivoting and [Y2 h_0, Y3] of the first step as right-hand sides. Where the
// paper keeps Y3 and the factors of Y1 between the passes, this keeps λ_0 and K = Y1^-1 Y3 R exp(decay_B): half of the
// memory, and nothing left to solve.
//
// Backward, given the gradient g of u_1: the problem and its adjoint (names with a 2) roll forward together from
// h = h_0, λ = λ_0 and h2 = 0, λ2 = -Y1^-1 Y3 g. For t = 1..T, with g added at t = 1 only:
//     λ <- A_t^-1 (λ - Q_{t-1} h)        u = -R^-1 (B_t' λ + [adjoint] g)        h <- A_t h + B_t u
// All gradients are added up on chip. Nothing of the horizon's size is written in either pass.
//
// Slips of the paper that are mended: Algorithm 4 omits A_1^-1 and the sign of u_1; Algorithm 5 starts h2 at h_0.
// A zero in A_t divides by zero, so that the whole problem becomes NaN. A problem without a minimum goes unnoticed: the
// iteration finds its stationary point.
//
// LANES neighbouring lanes of a warp share a problem, each with ROWS whole rows of Y1 and Y2 in registers. As rows do
// not meet before the elimination, the lanes only tell each other the vectors of a step, through shared memory, where B
// and Q lie as well.
//
// Set by the compiler: N, M (padded sizes), LANES, THREADS, BLOCKS (that a multiprocessor must hold at once), SHARED_B,
// SHARED_Q, ONE_DECAY_A, and real (float or double).

#include "common.cuh"
#include "symplectic.cuh"

// The factors of all rows in step t, in shared memory: A_t, its inverse, the decay of Q_{t-1}, and R^-1 exp(-2 t decay_B),
// with which B needs no decay.
struct Step {
    real *A, *A_inv, *Q_fade, *weight;
    __device__ Step(Problem &p, int t) {
        A = p.exchange + p.turn;
        A_inv = A + N;
        Q_fade = A_inv + N;
        weight = Q_fade + N;
        p.turn = TURN - p.turn;
        real own[ROWS], inverse[ROWS], fade[ROWS], w[ACTIONS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            own[r] = 1 + exponential(-t * p.decay_A[r]) * p.a[r];
            inverse[r] = 1 / own[r];
            fade[r] = exponential(-(t - 1) * p.decay_Q[r]);
        }
#pragma unroll
        for (int r = 0; r < ACTIONS; ++r) {
            const real B_fade = exponential(-t * p.decay_B[r]);
            w[r] = p.r_inv[r] * B_fade * B_fade;
        }
        save(A + p.lane * ROWS, own);
        save(A_inv + p.lane * ROWS, inverse);
        save(Q_fade + p.lane * ROWS, fade);
        if (p.lane * ACTIONS < M) save(weight + p.lane * ACTIONS, w);
        __syncwarp(p.mask);
    }
};

constexpr int TURNS_AT_ONCE = N > 16 ? 1 : N / 4;

// The rows of this lane, [Y1 Y2], taken through a step, and the factors that keep their size. The first step leaves the
// unscaled Y2 B from before the step in the room.
template <bool FIRST>
__device__ __forceinline__ void multiply(Problem &p, const Step &step, real (&Y1)[ROWS][N], real (&Y2)[ROWS][N], real (&scale)[ROWS]) {
#pragma unroll 2
    for (int j = 0; j < M; ++j) {
        real b[N];
        load(p.Bt + j * N, b);
        const real w = step.weight[j];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const real reach = dot(Y2[r], b), push = reach * w;
            if (FIRST) p.room[p.row(r) * M + j] = reach;
#pragma unroll
            for (int k = 0; k < N; ++k) Y1[r][k] += push * b[k];
        }
    }
    real fade[N];
    load(step.Q_fade, fade);
#pragma unroll
    for (int k = 0; k < N; k += 4) {
        real inverse[4];
        load(step.A_inv + k, inverse);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int i = 0; i < 4; ++i) Y1[r][k + i] *= inverse[i];
    }
    // Four columns of Y2 at a time are taken from its front and appended to its end. For small N all turns are written
    // out and nothing moves; for large N that would be too much code.
#pragma unroll (TURNS_AT_ONCE)
    for (int i = 0; i < N; i += 4) {
        real A[4], next[ROWS][4];
        load(step.A + i, A);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            real q[N];
            const real faded = step.Q_fade[i + c];
            if (!FIRST) {
                load(p.Q + (i + c) * N, q);
#pragma unroll
                for (int k = 0; k < N; ++k) q[k] *= fade[k];
            }
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                next[r][c] = A[c] * Y2[r][c];
                if (!FIRST) next[r][c] += faded * dot(Y1[r], q);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
#pragma unroll
            for (int k = 0; k < N - 4; ++k) Y2[r][k] = Y2[r][k + 4];
#pragma unroll
            for (int c = 0; c < 4; ++c) Y2[r][N - 4 + c] = next[r][c];
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        real size1 = 0, size2 = 0;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            size1 += Y1[r][k] < 0 ? -Y1[r][k] : Y1[r][k];
            size2 += Y2[r][k] < 0 ? -Y2[r][k] : Y2[r][k];
        }
        scale[r] = 1 / max(size1, size2);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            Y1[r][k] *= scale[r];
            Y2[r][k] *= scale[r];
        }
    }
}

// The right-hand sides x, and X if KEEP: those of the row that is subtracted from the others lie in shared memory.
template <bool KEEP>
__device__ __forceinline__ void save_sides(real *sides, real x, const real (&X)[M]) {
    sides[M] = x;
    if (KEEP) save(sides, X);
}

template <bool KEEP>
__device__ __forceinline__ void subtract_sides(const real *sides, const real (&times)[ROWS], real (&x)[ROWS], real (&X)[ROWS][M]) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) x[r] -= times[r] * sides[M];
#pragma unroll
    for (int j = 0; KEEP && j < M; j += 4) {
        real part[4];
        load(sides + j, part);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int c = 0; c < 4; ++c) X[r][j + c] -= times[r] * part[c];
    }
}

// Y^-1 x, and Y^-1 X if KEEP, by elimination with partial pivoting. (Gauss-Jordan would need no substitution, but it
// leaves a larger residual, which the roll-out of the backward pass amplifies.) Rows stay with their lanes; the r-th of
// this lane ends up with row `solved[r]` of the answer. Columns of Y move to the left as they are eliminated, so that
// the next is always the first and the loop stays a loop. The room takes the upper triangle, each row from its diagonal
// on.
template <bool KEEP>
__device__ __forceinline__ void eliminate(Problem &p, real (&Y)[ROWS][N], real (&x)[ROWS], real (&X)[ROWS][M], int (&solved)[ROWS]) {
    real inverse[ROWS], times[ROWS];  // of the pivot, if a row has been one; the multiple of the pivot's row to subtract
#pragma unroll
    for (int r = 0; r < ROWS; ++r) solved[r] = -1;
#pragma unroll 1
    for (int k = 0; k < N; ++k) {
        // the pivot: the largest entry of the column in a row that has not been one yet; NaN counts as largest
        real largest = -1, pivot = 0;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const real size = Y[r][0] < 0 ? -Y[r][0] : Y[r][0] == Y[r][0] ? Y[r][0] : (real)1e30;
            if (solved[r] < 0 && size > largest) {
                largest = size;
                pivot = p.row(r);
            }
        }
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2) {
            const real other = __shfl_xor_sync(p.mask, largest, step, LANES);
            const real its_row = __shfl_xor_sync(p.mask, pivot, step, LANES);
            if (other > largest || (other == largest && its_row < pivot)) {
                largest = other;
                pivot = its_row;
            }
        }
        real *front = p.room + k * N, *sides = p.exchange + k % 2 * (M + 4);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (p.row(r) == (int)pivot) {
                solved[r] = k;
                save(front, Y[r]);
                save_sides<KEEP>(sides, x[r], X[r]);
            }
        __syncwarp(p.mask);
        const real of_pivot = 1 / front[0];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            times[r] = solved[r] < 0 ? Y[r][0] * of_pivot : 0;
            if (solved[r] == k) inverse[r] = of_pivot;
        }
        subtract_sides<KEEP>(sides, times, x, X);
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            real part[4];
            load(front + i, part);
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int c = i ? 0 : 1; c < 4; ++c) Y[r][i + c - 1] = Y[r][i + c] - times[r] * part[c];
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) Y[r][N - 1] = 0;
    }
    // substitution, from the last row of the triangle to the first
    __syncwarp(p.mask);
#pragma unroll 1
    for (int k = N - 1; k > 0; --k) {
        real *sides = p.exchange + k % 2 * (M + 4);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (solved[r] == k) {
                save_sides<KEEP>(sides, x[r], X[r]);
                sides[M + 1] = inverse[r];
            }
        __syncwarp(p.mask);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            times[r] = solved[r] < k ? p.room[solved[r] * N + k - solved[r]] * sides[M + 1] : 0;
        subtract_sides<KEEP>(sides, times, x, X);
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        x[r] *= inverse[r];
#pragma unroll
        for (int j = 0; KEEP && j < M; ++j) X[r][j] *= inverse[r];
    }
    __syncwarp(p.mask);
}

#define PROBLEMS                                                                                                     \
    const real *a, const real *B, const real *Q, const real *Qf, const real *r_inv, const real *decay_A,             \
    const real *decay_B, const real *decay_Q, const real *h0, long long problems, int heads, int n, int m, int horizon
#define UNPACK                                                                                                       \
    const Inputs in = {a, B, Q, Qf, r_inv, decay_A, decay_B, decay_Q, h0};                                           \
    const Shape shape = {problems, heads, n, m, horizon};

// u_out: the first actions. kept: K of all problems, n x m, then λ_0 of all problems; or null.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) symplectic_forward(PROBLEMS, real *u_out, real *kept) {
    UNPACK
    extern __shared__ __align__(16) real memory[];
    Problem p;
    if (!set_up<false>(in, shape, memory, p)) return;
    const Warp warp(p.index, shape);

    real Y1[ROWS][N], Y2[ROWS][N], scale[ROWS];
    warp.read<N>(in.Qf, n, n, p.room);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        load(p.room + p.row(r) * N, Y2[r]);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            Y1[r][k] = k == p.row(r) ? 1 : 0;
            Y2[r][k] = (Y2[r][k] + p.room[k * N + p.row(r)]) / 2;
        }
    }
#pragma unroll 1
    for (int t = horizon; t > 1; --t) multiply<false>(p, Step(p, t), Y1, Y2, scale);
    multiply<true>(p, Step(p, 1), Y1, Y2, scale);

    // Y1 [λ_0 K] = [Y2 h_0, Y2 B before the step]
    real x[ROWS], X[ROWS][M], full[N], full2[N];
    int solved[ROWS];
    spread(in.h0 + p.index * n, n, p.lane, x);
    p.gather(x, x, full, full2);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) x[r] = dot(Y2[r], full);
    if (kept) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            load(p.room + p.row(r) * M, X[r]);
#pragma unroll
            for (int j = 0; j < M; ++j) X[r][j] *= scale[r];
        }
        __syncwarp(p.mask);
        eliminate<true>(p, Y1, x, X, solved);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) save(p.room + solved[r] * M, X[r]);
        warp.write<M>(kept, n, m, p.room);
    } else {
        __syncwarp(p.mask);
        eliminate<false>(p, Y1, x, X, solved);
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) p.room[solved[r]] = x[r];
    __syncwarp(p.mask);
    load(p.room + p.lane * ROWS, x);
    if (kept) unspread(kept + problems * n * m + p.index * n, n, p.lane, x);

    // λ_1 = A_1^-1 λ_0
#pragma unroll
    for (int r = 0; r < ROWS; ++r) x[r] *= 1 / (1 + exponential(-p.decay_A[r]) * p.a[r]);
    p.gather(x, x, full, full2);
    real u[ACTIONS];
#pragma unroll
    for (int r = 0; r < ACTIONS; ++r) {
        load(p.Bt + (p.lane * ACTIONS + r) * N, full2);
        u[r] = -p.r_inv[r] * exponential(-p.decay_B[r]) * dot(full2, full);
    }
    unspread(u_out + p.index * m, m, p.lane, u);
}

// g: the gradient of the first actions. The gradients of B and Q are written for every head.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) symplectic_backward(
    PROBLEMS, const real *g, const real *kept, real *da, real *dB, real *dQ, real *dQf, real *dr_inv, real *ddecay_A,
    real *ddecay_B, real *ddecay_Q, real *dh0) {
    UNPACK
    extern __shared__ __align__(16) real memory[];
    Problem p;
    if (!set_up<true>(in, shape, memory, p)) return;
    const Warp warp(p.index, shape);
    const int lane = p.lane;

    real h[ROWS], h2[ROWS], costate[ROWS], costate2[ROWS], full[N], full2[N], pull[ACTIONS], e[ACTIONS], e2[ACTIONS];
    real actions[M], actions2[M], sum_B[ROWS][M], sum_Q[ROWS][N];
    real sum_a[ROWS], sum_decay_A[ROWS], sum_decay_Q[ROWS], sum_r_inv[ACTIONS], sum_decay_B[ACTIONS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        h2[r] = sum_a[r] = sum_decay_A[r] = sum_decay_Q[r] = 0;
#pragma unroll
        for (int j = 0; j < M; ++j) sum_B[r][j] = 0;
#pragma unroll
        for (int k = 0; k < N; ++k) sum_Q[r][k] = 0;
    }

    // λ_0, and λ2_0 = -K R^-1 exp(-decay_B) g
    spread(in.h0 + p.index * n, n, lane, h);
    spread(g + p.index * m, m, lane, pull);
    spread(kept + problems * n * m + p.index * n, n, lane, costate);
#pragma unroll
    for (int r = 0; r < ACTIONS; ++r) {
        sum_r_inv[r] = sum_decay_B[r] = 0;
        e[r] = -p.r_inv[r] * exponential(-p.decay_B[r]) * pull[r];
    }
    p.gather(e, e, actions, actions2);
    warp.read<M>(kept, n, m, p.room);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        load(p.room + p.row(r) * M, actions2);
        costate2[r] = dot(actions2, actions);
    }
    unspread(dh0 + p.index * n, n, lane, costate2);

#pragma unroll 1
    for (int t = 1; t <= horizon; ++t) {
        // the co-states; Q_{t-1} h has been subtracted at the end of the step before
        real A[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const real fade = exponential(-t * p.decay_A[r]);
            A[r] = 1 + fade * p.a[r];
            const real inverse = 1 / A[r];
            costate[r] *= inverse;
            costate2[r] *= inverse;
            const real through = fade * (costate[r] * h2[r] + costate2[r] * h[r]);
            sum_a[r] += through;
            sum_decay_A[r] -= t * p.a[r] * through;
        }
        // the actions
        p.gather(costate, costate2, full, full2);
#pragma unroll
        for (int r = 0; r < ACTIONS; ++r) {
            real b[N];
            load_own(p.Bt, lane, r, b);
            const real fade = exponential(-t * p.decay_B[r]);
            const real reach = fade * dot(b, full), reach2 = fade * dot(b, full2);
            const real forced = reach2 + pull[r], u = -p.r_inv[r] * reach, u2 = -p.r_inv[r] * forced;
            sum_r_inv[r] -= reach * forced;
            sum_decay_B[r] -= t * (reach * u2 + reach2 * u);
            e[r] = fade * u;
            e2[r] = fade * u2;
            pull[r] = 0;
        }
        // the states
        p.gather(e, e2, actions, actions2);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            real b[M];
            load_own(p.B, lane, r, b);
            h[r] = A[r] * h[r] + dot(b, actions);
            h2[r] = A[r] * h2[r] + dot(b, actions2);
#pragma unroll
            for (int j = 0; j < M; ++j) sum_B[r][j] += costate[r] * actions2[j] + costate2[r] * actions[j];
        }
        if (t == horizon) break;
        // the running cost; the gradient of Q is made symmetric at the end
        real fade[ROWS], x[ROWS], x2[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            fade[r] = exponential(-t * p.decay_Q[r]);
            x[r] = fade[r] * h[r];
            x2[r] = fade[r] * h2[r];
        }
        p.gather(x, x2, full, full2);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            real q[N];
            load_own(p.Q, lane, r, q);
            const real cost = dot(q, full), cost2 = dot(q, full2);
            costate[r] -= fade[r] * cost;
            costate2[r] -= fade[r] * cost2;
            sum_decay_Q[r] -= t * (x[r] * cost2 + x2[r] * cost);
#pragma unroll
            for (int k = 0; k < N; ++k) sum_Q[r][k] += x[r] * full2[k];
        }
    }

    unspread(da + p.index * n, n, lane, sum_a);
    unspread(dr_inv + p.index * m, m, lane, sum_r_inv);
    unspread(ddecay_B + p.index * m, m, lane, sum_decay_B);
    unspread(ddecay_Q + p.index * n, n, lane, sum_decay_Q);
    if (ONE_DECAY_A) {
        real total = 0;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) total += sum_decay_A[r];
        total = p.sum(total);
        if (lane == 0) ddecay_A[p.index] = total;
    } else {
        unspread(ddecay_A + p.index * n, n, lane, sum_decay_A);
    }
    // each write ends with a barrier, so that the room is free again
    __syncwarp(warp.mask);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) save(p.room + p.row(r) * M, sum_B[r]);
    warp.write<M>(dB, n, m, p.room);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) save(p.room + p.row(r) * N, sum_Q[r]);
    warp.write<N, true>(dQ, n, n, p.room);
    p.gather(h, h2, full, full2);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int k = 0; k < N; ++k) full[k] = h[r] * full2[k];
        save(p.room + p.row(r) * N, full);
    }
    warp.write<N, true>(dQf, n, n, p.room);
}
