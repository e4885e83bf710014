// Dense problems, each by the lanes of a group: the passes of dense_cpu_loops.py. See dense.cuh for a step and for the layout
// of fields. Unwanted outputs are null. Problems first..last-1 are solved; kept numbers and slopes begin with the first.

#include "dense.cuh"

// p and its effect on the actions, for all steps, (T, N + M)
__device__ void all_slopes(
    const Problem &p, const Right &right, const real *kept, real *slopes, real *K, real *k, bool gains
) {
    read_vector(p, right.q_at(p.horizon - 1), N, p.ahead);
    for (int t = p.horizon - 1; t >= 0; --t) {
        if (!p.fixed) prepare(p, t);
        const real *d = recall(p, kept, t);
        slope(p, right, d, t);
        real *row = slopes + (long long)t * (N + M);
        EACH(i, N) row[i] = p.ahead[i];
        EACH(j, M) row[N + j] = p.known[j];
        if (gains) {
            divide<true>(p, p.z);
            EACH(j, M) k[(long long)t * M + j] = p.z[j];
            // a column of F is the drift of a unit state: each lane decides its own columns
            real *target = K + (long long)t * M * N;
            EACH(i, N) {
                real *column = target + i;
                for (int j = M - 1; j >= 0; --j) {
                    real seen = 0;
                    for (int l = 0; l < N; ++l) {
                        real drift = p.F[l * LD + i];
                        for (int a = M - 1; a > j; --a) drift += p.Bt[a * LD + l] * column[a * N];
                        seen += p.G[j * LD + l] * drift;
                    }
                    column[j * N] = -seen / d[j];
                }
                for (int j = M - 1; j >= 0; --j) {
                    real whole = p.crossed ? column[j * N] - p.nu[j * LD + i] : column[j * N];
                    for (int a = j + 1; a < M; ++a) whole -= p.L[a * LDM + j] * column[a * N];
                    column[j * N] = whole / p.L[j * LDM + j];
                }
            }
        }
        p.sync();
        const given *q = t > 0 ? right.q_at(t - 1) : nullptr;
        EACH(i, N) p.ahead[i] = q ? p.before[i] + (real)q[i] : p.before[i];
        p.sync();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) dense_forward(
    FIELDS, real *kept, real *slopes, real *u, real *h, real *costate, real *cost, real *K, real *k, real *values,
    real *linear, real *lost, real *unmet
) {
    extern __shared__ __align__(16) real memory[];
    Problem p;
    long long index;
    if (!set_up(FIELDS_GIVEN, memory, p, index)) return;
    const int T = horizon;
    kept += (index - first) * T * ENTRIES;
    u += index * T * M;
    h += index * (T + 1) * N;
    costate += index * (T + 1) * N;
    const real largest = descend(p, kept);
    if (p.lane == 0) lost[index] = largest;
    if (values) {
        values += index * (T + 1) * N * N;
        EACH(e, N * N) values[e] = p.P[e / N * LD + e % N];
        for (int t = 0; t < T; ++t)
            EACH(e, HALF) {
                int i, j;
                half_place(e, i, j);
                real *target = values + (long long)(t + 1) * N * N;
                target[i * N + j] = target[j * N + i] = kept[(long long)t * ENTRIES + e];
            }
    }
    const Right right = {p.r, p.c, p.q, (timed >> R1_ & 1) != 0, (timed >> C_ & 1) != 0, (timed >> Q1_ & 1) != 0};
    if (slopes) {
        slopes += (index - first) * T * (N + M);
        const bool gains = K != nullptr;
        all_slopes(p, right, kept, slopes, gains ? K + index * T * M * N : nullptr, gains ? k + index * T * M : nullptr, gains);
        if (linear) {
            linear += index * (T + 1) * N;
            EACH(i, N) linear[i] = p.ahead[i];
            for (int t = 0; t < T; ++t) EACH(i, N) linear[(t + 1) * N + i] = slopes[(long long)t * (N + M) + i];
        }
    }
    read_vector(p, p.h0, N, p.h);
    p.sync();
    EACH(i, N) h[i] = p.h[i];
    real total = 0, worst = 0;  // this lane's share, and the largest violation that it saw
    for (int t = 0; t < T; ++t) {
        if (!p.fixed) prepare(p, t);
        roll(p, right, slopes, recall(p, kept, t), t);
        EACH(j, M) {
            const real linear = p.crossed ? p.rho[j] + inner<N>(p.nu + j * LD, p.h) : p.rho[j];
            total += p.z[j] * (p.z[j] / 2 + linear);
            worst = larger(worst, action_unmet(p, j, linear));
        }
        first_costate(p);
        if (t == 0) {
            EACH(i, N) costate[i] = p.before[i];
        }
        if (t > 0) worst = larger(worst, costate_unmet(p, p.v, p.rest, p.before));
        p.sync();
        divide<true>(p, p.z);
        const given *Q = p.Qf && t == T - 1 ? p.Qf : p.of(Q_, p.Q, t, N * N), *q = right.q_at(t);
        EACH(i, N) {
            real pull = 0;
            for (int k = 0; k < N; ++k) pull += ((real)Q[i * N + k] + (real)Q[k * N + i]) / 2 * p.x[k];
            const real linear = q ? (real)q[i] : 0;
            total += p.x[i] * (pull / 2 + linear);
            p.rest[i] = pull + linear;
            p.v[i] = p.lam[i];
            p.h[i] = h[(t + 1) * N + i] = p.x[i];
            costate[(t + 1) * N + i] = p.lam[i];
        }
        EACH(j, M) u[t * M + j] = p.z[j];
        p.sync();
    }
    worst = larger(worst, costate_unmet(p, p.v, p.rest, nullptr));
    p.sync();
    EACH(i, N) p.work[i] = p.rest[i] = 0;
    p.sync();
    for (int turn = 0; turn < LANES; turn += N) {  // N shares at a time
        if (p.lane >= turn && p.lane < turn + N) {
            p.work[p.lane - turn] += total;
            p.rest[p.lane - turn] = larger(p.rest[p.lane - turn], worst);
        }
        p.sync();
    }
    if (p.lane == 0) {
        real sum = 0, most = 0;
        for (int i = 0; i < N; ++i) {
            sum += p.work[i];
            most = larger(most, p.rest[i]);
        }
        cost[index] = sum;
        unmet[index] = most;
    }
}

// A step of a gradient: written for a step of its own, or added to the sum of earlier steps
struct Target {
    real *to;
    bool add;
    __device__ void put(int place, real value) const { to[place] = add ? to[place] + value : value; }
};

// Where step t of a problem's gradient goes; `steps` has a bit for each field that has gradients of its steps.
__device__ __forceinline__ Target target_of(Field field, real *all, int steps, long long index, int T, int t, int size) {
    const bool own = steps >> field & 1;
    return {all ? all + (own ? index * T + t : index) * size : nullptr, !own && t > 0};
}

// x y' + x2 y2'; COLUMNS of y
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void put_outer(const Problem &p, Target target, const real *x, const real *y, const real *x2, const real *y2) {
    if (target.to) EACH(e, ROWS * COLUMNS) target.put(e, x[e / COLUMNS] * y[e % COLUMNS] + x2[e / COLUMNS] * y2[e % COLUMNS]);
}

// (x y' + y x') / 2, symmetric to the bit
template <int SIZE>
__device__ __forceinline__ void put_even(const Problem &p, Target target, const real *x, const real *y) {
    if (target.to)
        EACH(e, SIZE * SIZE) {
            const int i = e / SIZE, k = e % SIZE;
            target.put(e, (product(x[i], y[k]) + product(x[k], y[i])) / 2);
        }
}

// x + y factor
__device__ __forceinline__ void put_sum(const Problem &p, Target target, int size, const real *x, const real *y, real factor) {
    if (target.to) EACH(i, size) target.put(i, x[i] + y[i] * factor);
}

// The adjoint problem: the same matrices, and for linear terms the gradients du, dh, dcostate of a loss; its solution is
// z, x, lam of p. The cost, with the gradient dcost, is quadratic: half of it is added to the solution of the adjoint, half
// to products with it. Gradients are written unless their pointer is null, and the solution with that half to u2, h2, lam2.
// `steps`: which gradients have steps of their own. If `again`, kept numbers are recomputed.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) dense_backward(
    FIELDS, real *kept, int again, real *slopes, const given *u, const given *h, const given *costate, const given *du,
    const given *dh, const given *dcostate, const given *dcost, int steps, real *dA, real *dB, real *dQ, real *dR,
    real *dh0, real *dr, real *dq, real *dc, real *dcross, real *dQf, real *u2, real *h2, real *lam2
) {
    extern __shared__ __align__(16) real memory[];
    Problem p;
    long long index;
    if (!set_up(FIELDS_GIVEN, memory, p, index)) return;
    const int T = horizon;
    kept += (index - first) * T * ENTRIES;
    slopes += (index - first) * T * (N + M);
    u += index * T * M;
    h += index * (T + 1) * N;
    costate += index * (T + 1) * N;
    du = du ? du + index * T * M : nullptr;
    dh = dh ? dh + index * (T + 1) * N : nullptr;
    dcostate = dcostate ? dcostate + index * (T + 1) * N : nullptr;
    if (again) descend(p, kept);
    else if (p.fixed) prepare(p, 0);
    const Right right = {du, dcostate ? dcostate + N : nullptr, dh ? dh + N : nullptr, true, true, true};
    all_slopes(p, right, kept, slopes, nullptr, nullptr, false);
    const real g = dcost ? (real)dcost[index] / 2 : 0;
    read_vector(p, dcostate, N, p.h);
    p.sync();
    for (int t = 0; t < T; ++t) {
        if (!p.fixed) prepare(p, t);
        roll(p, right, slopes, recall(p, kept, t), t);
        // the solution: h_t, h_{t+1}, λ_{t+1}, u_{t+1}
        real *here = p.v, *there = p.work, *lam = p.rest, *action = p.known, *dual = p.drift;
        if (t == 0) {
            first_costate(p);
            EACH(i, N) {
                const real first_lam = (real)costate[i];
                const real whole = p.before[i] + (dh ? (real)dh[i] : 0) + 2 * g * first_lam;
                if (dh0) dh0[index * N + i] = whole;
            }
        }
        p.sync();
        divide<true>(p, p.z);
        EACH(i, N) {
            here[i] = h[t * N + i];
            there[i] = h[(t + 1) * N + i];
            lam[i] = costate[(t + 1) * N + i];
            dual[i] = p.h[i] + g * here[i];
            p.ahead[i] = p.x[i] + g * there[i];  // of the state after; x does not change
            p.lam[i] += g * lam[i];
        }
        EACH(j, M) {
            action[j] = u[t * M + j];
            p.z[j] += g * action[j];
        }
        p.sync();
        put_outer<N, N>(p, target_of(A_, dA, steps, index, T, t, N * N), lam, dual, p.lam, here);
        put_outer<N, M>(p, target_of(B_, dB, steps, index, T, t, N * M), lam, p.z, p.lam, action);
        put_outer<N, M>(p, target_of(CROSS_, dcross, steps, index, T, t, N * M), here, p.z, dual, action);
        put_even<M>(p, target_of(R_, dR, steps, index, T, t, M * M), action, p.z);
        if (p.Qf && t == T - 1) put_even<N>(p, {dQf ? dQf + index * N * N : nullptr, false}, there, p.ahead);
        else put_even<N>(p, target_of(Q_, dQ, steps, index, p.Qf ? T - 1 : T, t, N * N), there, p.ahead);
        put_sum(p, target_of(R1_, dr, steps, index, T, t, M), M, p.z, action, g);
        put_sum(p, target_of(Q1_, dq, steps, index, T, t, N), N, p.ahead, there, g);
        put_sum(p, target_of(C_, dc, steps, index, T, t, N), N, p.lam, lam, g);
        if (u2) EACH(j, M) u2[(index * T + t) * M + j] = p.z[j];
        if (h2)
            EACH(i, N) {
                if (t == 0) h2[index * (T + 1) * N + i] = dual[i];
                h2[(index * (T + 1) + t + 1) * N + i] = p.ahead[i];
            }
        if (lam2) EACH(i, N) lam2[(index * T + t) * N + i] = p.lam[i];
        p.sync();
        EACH(i, N) p.h[i] = p.x[i];
        p.sync();
    }
}
