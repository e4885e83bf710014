// The stable recursion in numbers of more digits, for problems whose actions are so cheap that digits cancel.
//
// P° = P - v v' w / (1 + w s) is a difference. With d = 1 + w s, P° is smaller than P by a factor of up to d along b, and
// loses as many digits. Many small steps lose digits too: then P is smaller along b than elsewhere, and w |b|^2 max(P) is
// large; this is checked once, at the earliest step. Up to CAREFUL_ABOVE the kernels can afford the loss. A problem beyond it
// is solved again by the functions below: the same recursion, with all numbers `wide`. In float, these are doubles (level 1),
// and if the loss is beyond PAIRS_ABOVE even for doubles, as with one action for eight unstable states, pairs of doubles
// (level 2). In double, they are pairs at once. The functions are slow and simple: one action at a time, and every lane
// decides all actions.
//
// In memory a wide P takes the room of SLOTS others: the entries on and below its diagonal, each as a sum of two or three
// numbers. So only one in SLOTS of the steps that fused_forward keeps is kept for such a problem, its P and not its P°; the
// others are recomputed from the step after them.

#ifndef CAREFUL_ABOVE  // set by the compiler when tests look at the fast path alone
#define CAREFUL_ABOVE (4 * max(16, shape.n))
#endif
#ifndef PAIRS_ABOVE
#define PAIRS_ABOVE 1e6
#endif
#define SLOTS (sizeof(real) == 4 && HALVES ? 3 : 2)
#define SUMMANDS (sizeof(real) == 4 ? 3 : 2)  // of an entry of a wide P

// How much smaller P may be along some action than elsewhere, w |b|^2 max(P) / 32: it counts all digits that were ever lost.
// A single action is not divided by 32. If Q is next to nothing, it is multiplied by 4, because nothing restores the digits.
// A Q of rank one restores them in one direction only, and λ = P h cancels where a large h costs little: then it is at least
// w |b|^2 max(Q). Not max(P): where P is much larger than Q, actions are not cheap enough to cancel as much.
// The largest number if P is NaN: a minimum was missing at a later step, or the digits to find it.
__device__ __forceinline__ real faintest(const Problem &p, const Shape &shape, int t, const real (&P)[ROWS][N]) {
    real largest = 0, of_Q = 0, trace = 0, squares = 0, cheapest = 0, fade[ACTIONS], fade_Q[ROWS];
    p.Q_fade(t, fade_Q);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {  // the largest numbers of P and Q are on their diagonals
        real total = 0;
#pragma unroll
        for (int k = 0; k < N; ++k) {  // and not P[r][p.row(r)], which would move P from registers to memory
            largest = max(largest, P[r][k]);
            total += P[r][k];
        }
        if (total != total) largest = (real)1e30;
        real Q[N];
        p.load_Q(r, Q);
        squares += dot(Q, Q);
        const real diagonal = p.diagonal_of_Q(r);
        trace += diagonal;
        of_Q = max(of_Q, fade_Q[r] * fade_Q[r] * diagonal);
    }
    p.B_fade(t, fade);
#pragma unroll
    for (int r = 0; r < ACTIONS; ++r) {
        real b[N];
        load(p.Bt + min(p.action(r), M - 1) * B_ROW, b);
        cheapest = max(cheapest, p.r_inv[r] * fade[r] * fade[r] * dot(b, b));
    }
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        largest = max(largest, __shfl_xor_sync(p.group.mask, largest, step, LANES));
        of_Q = max(of_Q, __shfl_xor_sync(p.group.mask, of_Q, step, LANES));
        cheapest = max(cheapest, __shfl_xor_sync(p.group.mask, cheapest, step, LANES));
    }
    trace = p.group.sum(trace);
    // its second eigenvalue is less than about a thousandth of the first
    const bool rank_one = 500 * (trace * trace - p.group.sum(squares)) < trace * trace;
    const real found = largest * (1000 * of_Q < largest ? (real)4 : (real)(shape.m > 1 ? 0.03125 : 1));
    return cheapest * (rank_one ? max(found, of_Q) : found);
}

// the sum of two doubles; the second is the rounding error of the first
struct Two {
    double hi, lo;
    __device__ Two() : hi(0), lo(0) {}
    __device__ Two(double x) : hi(x), lo(0) {}
    __device__ Two(double hi, double lo) : hi(hi), lo(lo) {}
};

// Rounded one by one, never contracted into a fused multiply-add, because these functions compute the rounding errors.
__device__ __forceinline__ double added(double x, double y) { return __dadd_rn(x, y); }
__device__ __forceinline__ double multiplied(double x, double y) { return __dmul_rn(x, y); }
__device__ __forceinline__ Two normal(double hi, double lo) {
    const double sum = added(hi, lo);
    return Two(sum, added(lo, -added(sum, -hi)));
}
__device__ __forceinline__ Two operator+(Two x, Two y) {
    const double sum = added(x.hi, y.hi), part = added(sum, -x.hi);
    const double error = added(added(x.hi, -added(sum, -part)), added(y.hi, -part));
    return normal(sum, added(error, added(x.lo, y.lo)));
}
__device__ __forceinline__ Two operator-(Two x) { return Two(-x.hi, -x.lo); }
__device__ __forceinline__ Two operator-(Two x, Two y) { return x + -y; }
__device__ __forceinline__ Two operator*(Two x, Two y) {
    const double product = multiplied(x.hi, y.hi);
    const double cross = added(multiplied(x.hi, y.lo), multiplied(x.lo, y.hi));  // the same if x and y change places
    return normal(product, added(fma(x.hi, y.hi, -product), cross));
}
__device__ __forceinline__ Two operator/(Two x, Two y) {
    const double first = x.hi / y.hi;
    const Two rest = x - y * Two(first);
    return normal(first, rest.hi / y.hi);
}

__device__ __forceinline__ double first_of(double x) { return x; }
__device__ __forceinline__ double first_of(Two x) { return x.hi; }
__device__ __forceinline__ double second_of(double x) { return 0; }
__device__ __forceinline__ double second_of(Two x) { return x.lo; }

template <typename wide> __device__ __forceinline__ real narrow(wide x) { return (real)first_of(x); }
template <typename wide> __device__ __forceinline__ double rest(wide x) { return (first_of(x) - (double)narrow(x)) + second_of(x); }
template <typename wide> __device__ __forceinline__ wide wide_fade(int t, real rate) { return wide(exp(-(double)t * (double)rate)); }

// a spread vector in full; as Group::tell, but of wide numbers, one vector at a time
__device__ __forceinline__ void gather_wide(Group &group, const double (&x)[ROWS], double (&full)[N]) {
    double *first = reinterpret_cast<double *>(group.exchange + group.turn);
    group.turn = 2 * (WIDEST + 4) - group.turn;
    for (int r = 0; r < ROWS; ++r) first[group.lane * ROWS + r] = x[r];
    __syncwarp(group.mask);
    for (int k = 0; k < N; ++k) full[k] = first[k];
}
__device__ __forceinline__ void gather_wide(Group &group, const Two (&x)[ROWS], Two (&full)[N]) {
    double part[ROWS], all[N];
    for (int r = 0; r < ROWS; ++r) part[r] = x[r].hi;
    gather_wide(group, part, all);
    for (int k = 0; k < N; ++k) full[k].hi = all[k];
    for (int r = 0; r < ROWS; ++r) part[r] = x[r].lo;
    gather_wide(group, part, all);
    for (int k = 0; k < N; ++k) full[k].lo = all[k];
}

template <typename wide>
__device__ __forceinline__ wide wide_dot(const real *x, const wide (&y)[N]) {
    wide total = wide(0);
    for (int k = 0; k < N; ++k) total = total + wide(x[k]) * y[k];
    return total;
}

// Memory of a wide P: entry (i, k) is at SUMMANDS times the place of (i, k) in the lower half, row by row, and the last place
// has its level, 0 for a P that was never wide.
__device__ __forceinline__ real *place_wide(real *memory, int which, const Shape &shape, const Problem &p, int at) {
    return memory + ((SLOTS * which + at / KEPT_SIZE) * shape.problems + p.index) * KEPT_SIZE + at % KEPT_SIZE;
}
static_assert(SUMMANDS * N * (N + 1) / 2 < SLOTS * KEPT_SIZE, "a wide P and its level have no room");

__device__ __forceinline__ void mark(real *memory, int which, const Shape &shape, const Problem &p, int level) {
    if (p.group.lane == 0) *place_wide(memory, which, shape, p, SLOTS * KEPT_SIZE - 1) = level;
}

__device__ __forceinline__ int level_of(const real *memory, int which, const Shape &shape, const Problem &p) {
    return (int)*place_wide(const_cast<real *>(memory), which, shape, p, SLOTS * KEPT_SIZE - 1);
}

template <typename wide>
__device__ __forceinline__ void store_wide(real *memory, int which, const Shape &shape, const Problem &p, const wide (&P)[ROWS][N]) {
    for (int r = 0; r < ROWS; ++r)
        for (int k = 0; k <= p.row(r); ++k) {
            real part = narrow(P[r][k]);
            double left = rest(P[r][k]);
            for (int i = 0; i < SUMMANDS; ++i) {
                *place_wide(memory, which, shape, p, SUMMANDS * (p.row(r) * (p.row(r) + 1) / 2 + k) + i) = part;
                part = (real)left;
                left -= (double)part;
            }
        }
    mark(memory, which, shape, p, sizeof(wide) / sizeof(double));
}

template <typename wide>
__device__ __forceinline__ void recall_wide(const real *memory, int which, const Shape &shape, const Problem &p, wide (&P)[ROWS][N]) {
    for (int r = 0; r < ROWS; ++r)
        for (int k = 0; k < N; ++k) {
            const int i = max(p.row(r), k), j = min(p.row(r), k);
            P[r][k] = wide(0);
            for (int part = SUMMANDS - 1; part >= 0; --part)
                P[r][k] = P[r][k] + wide(*place_wide(const_cast<real *>(memory), which, shape, p, SUMMANDS * (i * (i + 1) / 2 + j) + part));
        }
}

// P at step top: kept, or, if that is null, Qf
template <typename wide>
__device__ __forceinline__ void fetch_wide(const Inputs &in, const real *end, const Shape &shape, const Problem &p, wide (&P)[ROWS][N]) {
    if (end) return recall_wide(end, 0, shape, p, P);
    const int n = shape.n;
    const real *Qf = in.Qf + p.index * n * n;
    for (int r = 0; r < ROWS; ++r)
        for (int k = 0; k < N; ++k) {
            const int i = p.row(r);
            P[r][k] = i < n && k < n ? (wide(Qf[i * n + k]) + wide(Qf[k * n + i])) * wide(0.5) : wide(0);
        }
}

// P becomes P°: all actions of step t absorbed, one by one. Returns the largest 1 + w s, or `worst`.
template <typename wide>
__device__ __forceinline__ real absorb_wide(const Inputs &in, const Shape &shape, Problem &p, int t, wide (&P)[ROWS][N], real worst = 1) {
    for (int j = 0; j < shape.m; ++j) {
        const long long at = p.index * shape.m + j;
        const wide fade = wide_fade<wide>(t, in.decay_B[at]), w = wide(in.r_inv[at]) * fade * fade;
        const real *b = p.Bt + j * B_ROW;
        wide v[ROWS], full[N];
        for (int r = 0; r < ROWS; ++r) v[r] = wide_dot(b, P[r]);
        gather_wide(p.group, v, full);
        const wide d = wide(1) + w * wide_dot(b, full);
        worst = first_of(d) > 0 ? max(worst, narrow(d)) : (real)1e30;  // no minimum, or no digits left to find it
        const wide share = first_of(d) > 0 ? w / d : wide(rsqrtf(-1.0f));
        for (int r = 0; r < ROWS; ++r)
            for (int k = 0; k < N; ++k) P[r][k] = P[r][k] - v[r] * full[k] * share;
    }
    return worst;
}

template <typename wide>
__device__ __forceinline__ void A_wide(const Problem &p, int t, wide (&A)[ROWS]) {
    for (int r = 0; r < ROWS; ++r) A[r] = wide(1) + wide_fade<wide>(t, p.decay_A[r]) * wide(p.a[r]);
}

// P of step t becomes P of step t - 1.
template <typename wide>
__device__ __forceinline__ real back_wide(const Inputs &in, const Shape &shape, Problem &p, int t, wide (&P)[ROWS][N], real worst = 1) {
    wide A[ROWS], fade[ROWS], A_full[N], fade_full[N];
    worst = absorb_wide(in, shape, p, t, P, worst);
    A_wide(p, t, A);
    for (int r = 0; r < ROWS; ++r) fade[r] = wide_fade<wide>(t - 1, p.decay_Q[r]);
    gather_wide(p.group, A, A_full);
    gather_wide(p.group, fade, fade_full);
    for (int r = 0; r < ROWS; ++r) {
        real Q[N];
        p.load_Q(r, Q);
        for (int k = 0; k < N; ++k) P[r][k] = A[r] * A_full[k] * P[r][k] + fade[r] * fade_full[k] * wide(Q[k]);
    }
    return worst;
}

// P x for the rows of this lane
template <typename wide>
__device__ __forceinline__ void multiply_wide(Group &group, const wide (&P)[ROWS][N], const wide (&x)[ROWS], wide (&Px)[ROWS]) {
    wide full[N];
    gather_wide(group, x, full);
    for (int r = 0; r < ROWS; ++r) {
        Px[r] = wide(0);
        for (int k = 0; k < N; ++k) Px[r] = Px[r] + P[r][k] * full[k];
    }
}

// y = -(B_t' λ + pull) for every action, which is u / r_inv, and e = exp(-t decay_B) u
template <typename wide>
__device__ __forceinline__ void decide_wide(const Inputs &in, const Shape &shape, Problem &p, int t, const wide (&lam)[ROWS], const real *pull, wide (&y)[M], wide (&e)[M]) {
    wide full[N];
    gather_wide(p.group, lam, full);
    for (int j = 0; j < M; ++j) {
        const long long at = p.index * shape.m + j;
        const bool there = j < shape.m;
        const wide fade = wide_fade<wide>(t, there ? in.decay_B[at] : 0);
        y[j] = -(fade * wide_dot(p.Bt + j * B_ROW, full)) - wide(there && pull ? pull[at] : 0);
        e[j] = fade * wide(there ? in.r_inv[at] : 0) * y[j];
    }
}

// x += B e for the rows of this lane
template <typename wide>
__device__ __forceinline__ void push_wide(const Problem &p, const wide (&e)[M], wide (&x)[ROWS]) {
    for (int j = 0; j < M; ++j)
        for (int r = 0; r < ROWS; ++r) x[r] = x[r] + wide(p.Bt[j * B_ROW + p.row(r)]) * e[j];
}

// x = A h becomes the next state, x + B e, and lam its co-state, P x. Before that, y and e are refined once, by the residual
// of y = -B' λ - pull.
template <typename wide>
__device__ __forceinline__ void refine_wide(
    const Inputs &in, const Shape &shape, Problem &p, int t, const wide (&absorbed)[ROWS][N], const wide (&P)[ROWS][N],
    wide (&x)[ROWS], const real *pull, wide (&y)[M], wide (&e)[M], wide (&lam)[ROWS]) {
    wide next[ROWS], y_met[M], e_met[M];
    for (int r = 0; r < ROWS; ++r) next[r] = x[r];
    push_wide(p, e, next);
    multiply_wide(p.group, P, next, lam);
    decide_wide(in, shape, p, t, lam, pull, y_met, e_met);
    for (int j = 0; j < M; ++j) {
        y_met[j] = y_met[j] - y[j];
        e_met[j] = e_met[j] - e[j];
        y[j] = y[j] + y_met[j];
        e[j] = e[j] + e_met[j];
    }
    for (int r = 0; r < ROWS; ++r) next[r] = wide(0);
    push_wide(p, e_met, next);
    multiply_wide(p.group, absorbed, next, lam);
    decide_wide(in, shape, p, t, lam, nullptr, y_met, e_met);
    for (int j = 0; j < M; ++j) {
        y[j] = y[j] + y_met[j];
        e[j] = e[j] + e_met[j];
    }
    push_wide(p, e, x);
    multiply_wide(p.group, P, x, lam);
}

// As fused_forward's loop over the steps. For kept steps it writes minus the level as the number of lost digits, and P of one
// in SLOTS steps below top. Returns how many digits were lost; `lowest` is the step where P is compared with the actions.
template <typename wide>
__device__ __noinline__ real forward_widely(
    const Inputs in, const Shape shape, Problem p, int bottom, int top, const real *end, int every, real *points, real *kept,
    real *lost, real *u_out) {
    wide P[ROWS][N];
    real part[ROWS][N], worst = 1;
    fetch_wide(in, end, shape, p, P);
    if (kept && p.group.lane == 0) lost[p.index] = -(real)(sizeof(wide) / sizeof(double));
    const int lowest = u_out || kept ? bottom + 1 : bottom + every;
    for (int t = top; t > lowest; --t) {
        worst = back_wide(in, shape, p, t, P, worst);
        const int below = top - t + 1;
        if (kept && below % SLOTS == 0) store_wide(kept, below / SLOTS - 1, shape, p, P);
        if (points && (t - 1 - bottom) % every == 0) store_wide(points, (t - 1 - bottom) / every - 1, shape, p, P);
    }
    for (int r = 0; r < ROWS; ++r)
        for (int k = 0; k < N; ++k) part[r][k] = narrow(P[r][k]);
    worst = max(worst, faintest(p, shape, lowest, part));
    if (!u_out) return worst;
    worst = absorb_wide(in, shape, p, 1, P, worst);
    wide x[ROWS], lam[ROWS], y[M], e[M];
    A_wide(p, 1, x);
    for (int r = 0; r < ROWS; ++r) x[r] = x[r] * wide(p.row(r) < shape.n ? in.h0[p.index * shape.n + p.row(r)] : 0);
    multiply_wide(p.group, P, x, lam);
    decide_wide(in, shape, p, 1, lam, nullptr, y, e);
    for (int j = p.group.lane; j < shape.m; j += LANES)
        u_out[p.index * shape.m + j] = narrow(wide(in.r_inv[p.index * shape.m + j]) * y[j]);
    return worst;
}

// With numbers of `level`, or if that is 0 with as few digits as are enough. A call of its own: inlined, it would take
// registers from the loop that calls it.
__device__ __noinline__ void forward_carefully(
    const Inputs in, const Shape shape, Problem p, int level, int bottom, int top, const real *end, int every, real *points,
    real *kept, real *lost, real *u_out) {
    if (sizeof(real) == 4 && level < 2) {
        const real worst = forward_widely<double>(in, shape, p, bottom, top, end, every, points, kept, lost, u_out);
        if (level || worst <= (real)PAIRS_ABOVE) return;
    }
    forward_widely<Two>(in, shape, p, bottom, top, end, every, points, kept, lost, u_out);
}

// A lane's part of the gradients of its problem.
template <typename number>
struct Gradients {
    number a[ROWS], B[ROWS][M], Q[ROWS][N], r_inv[ACTIONS], decay_A[ROWS], decay_B[ACTIONS], decay_Q[ROWS];
};

template <typename wide, int COUNT>
__device__ __forceinline__ void narrow_all(const wide (&from)[COUNT], real (&to)[COUNT]) {
    for (int k = 0; k < COUNT; ++k) to[k] = narrow(from[k]);
}

// As fused_backward's loop over the steps, for a problem that fused_forward went through carefully. h_out and h2_out: the states at step top.
template <typename wide>
__device__ __noinline__ void backward_carefully(
    const Inputs in, const Shape shape, Problem p, int bottom, int top, const real *end, const real *kept, const real *g,
    real *state, real *dh0, Gradients<real> &found, real (&h_out)[ROWS], real (&h2_out)[ROWS]) {
    Gradients<wide> of = {};
    real *before = state + p.index * 4 * N;
    wide h[ROWS], h2[ROWS], price[ROWS];
    for (int r = 0; r < ROWS; ++r) {
        const int i = p.row(r);
        price[r] = wide(0);
        h[r] = bottom ? wide(before[i]) + wide(before[2 * N + i]) : wide(i < shape.n ? in.h0[p.index * shape.n + i] : 0);
        h2[r] = bottom ? wide(before[N + i]) + wide(before[3 * N + i]) : wide(0);
    }
    for (int t = bottom + 1; t <= top; ++t) {
        const real *pull = t == 1 ? g : nullptr;  // the gradient pulls at the first action, and at no other
        wide P[ROWS][N], value[ROWS][N], A[ROWS], x[ROWS], x2[ROWS], forced[ROWS], lam[ROWS], lam2[ROWS], y[M], y2[M], e[M], e2[M];
        A_wide(p, t, A);
        for (int r = 0; r < ROWS; ++r) {
            x[r] = A[r] * h[r];
            forced[r] = x2[r] = A[r] * h2[r];
        }
        if (pull) {
            for (int j = 0; j < M; ++j) {
                const long long at = p.index * shape.m + j;
                e[j] = j < shape.m ? -(wide_fade<wide>(1, in.decay_B[at]) * wide(in.r_inv[at]) * wide(pull[at])) : wide(0);
            }
            push_wide(p, e, forced);
        }
        const int from = t + (top - t) % SLOTS;
        if (from == top) fetch_wide(in, end, shape, p, value);
        else recall_wide(kept, (top - from) / SLOTS - 1, shape, p, value);
        for (int later = from; later > t; --later) back_wide(in, shape, p, later, value);
        for (int r = 0; r < ROWS; ++r)
            for (int k = 0; k < N; ++k) P[r][k] = value[r][k];
        absorb_wide(in, shape, p, t, P);
        multiply_wide(p.group, P, x, lam);
        multiply_wide(p.group, P, forced, lam2);
        decide_wide(in, shape, p, t, lam, nullptr, y, e);
        decide_wide(in, shape, p, t, lam2, pull, y2, e2);
        refine_wide(in, shape, p, t, P, value, x, nullptr, y, e, lam);
        refine_wide(in, shape, p, t, P, value, x2, pull, y2, e2, lam2);

        for (int r = 0; r < ACTIONS; ++r) {
            const int j = p.action(r);
            if (j >= shape.m) continue;
            const wide forced_by = pull ? y2[j] + wide(pull[p.index * shape.m + j]) : y2[j];  // -B_t' λ2
            of.r_inv[r] = of.r_inv[r] - y[j] * y2[j];
            of.decay_B[r] = of.decay_B[r] + wide(t) * wide(p.r_inv[r]) * (y[j] * y2[j] + forced_by * y[j]);
        }
        wide faded[ROWS], faded2[ROWS], full[N], full2[N];
        for (int r = 0; r < ROWS; ++r) {
            const wide through = wide_fade<wide>(t, p.decay_A[r]) * (lam[r] * h2[r] + lam2[r] * h[r]);
            of.a[r] = of.a[r] + through;
            of.decay_A[r] = of.decay_A[r] - wide(t) * wide(p.a[r]) * through;
            for (int j = 0; j < M; ++j) of.B[r][j] = of.B[r][j] + lam[r] * e2[j] + lam2[r] * e[j];
            if (t == 1 && p.row(r) < shape.n) dh0[p.index * shape.n + p.row(r)] = narrow(A[r] * lam2[r]);
            h[r] = x[r];
            h2[r] = x2[r];
            faded[r] = wide_fade<wide>(t, p.decay_Q[r]) * x[r];
            faded2[r] = wide_fade<wide>(t, p.decay_Q[r]) * x2[r];
            if (t == shape.horizon) price[r] = price[r] + x2[r] * lam[r];
        }
        if (t == shape.horizon) break;
        gather_wide(p.group, faded, full);
        gather_wide(p.group, faded2, full2);
        for (int r = 0; r < ROWS; ++r) {
            real Q[N];
            p.load_Q(r, Q);
            const wide Qh2 = wide_dot(Q, full2);
            price[r] = price[r] + faded[r] * Qh2;
            of.decay_Q[r] = of.decay_Q[r] - wide(t) * (faded[r] * Qh2 + faded2[r] * wide_dot(Q, full));
            for (int k = 0; k < N; ++k) of.Q[r][k] = of.Q[r][k] + faded[r] * full2[k] + faded2[r] * full[k];
        }
    }
    if (shape.m == 1) {  // see fused_backward
        wide full[N], total = wide(0);
        gather_wide(p.group, price, full);
        for (int k = 0; k < N; ++k) total = total + full[k];
        of.r_inv[0] = total / wide(p.r_inv[0]);
    }
    if (ONE_DECAY_A) {  // states that share a decay may pull it in opposite directions
        wide full[N], total = wide(0);
        gather_wide(p.group, of.decay_A, full);
        for (int k = 0; k < N; ++k) total = total + full[k];
        for (int r = 0; r < ROWS; ++r) of.decay_A[r] = p.row(r) == 0 ? total : wide(0);
    }
    for (int r = 0; r < ROWS && top < shape.horizon; ++r) {
        before[2 * N + p.row(r)] = (real)rest(h[r]);
        before[3 * N + p.row(r)] = (real)rest(h2[r]);
    }
    narrow_all(of.a, found.a);
    narrow_all(of.r_inv, found.r_inv);
    narrow_all(of.decay_A, found.decay_A);
    narrow_all(of.decay_B, found.decay_B);
    narrow_all(of.decay_Q, found.decay_Q);
    narrow_all(h, h_out);
    narrow_all(h2, h2_out);
    for (int r = 0; r < ROWS; ++r) {
        narrow_all(of.B[r], found.B[r]);
        narrow_all(of.Q[r], found.Q[r]);
    }
}
