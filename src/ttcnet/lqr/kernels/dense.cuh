// A dense problem as the lanes that share it see it, and a step of dynamic programming: the arithmetic of
// dense_cpu_steps.py, whose head explains it. Matrices of the current step lie in shared memory; kept numbers (P, and v and
// d of every action) in global memory.
//
// Set by the compiler: N and M (states and actions), LANES (that share a problem: up to a warp, or a whole block), THREADS
// (of a block), real (float or double, for computing) and given (the type of stored fields).

#define LD (N | 1)                 // entries from one row to the next: odd, so that columns lie in different banks
#define LDM (M | 1)
#define WIDE (N > M ? N : M)
#define HALF (N * (N + 1) / 2)     // entries of half a symmetric matrix
#define ENTRIES (HALF + M * N + M) // that a step keeps
#define VECTORS (9 * N + 3 * M)
#define SHARED ((2 * N + WIDE + 2 * M) * LD + M * LDM + VECTORS)  // that a problem has; the launcher computes the same
#define REFINED 4                  // above this d, P is refined
#define HIDDEN 8                   // hidden digits count as many times as those that are lost to d
static_assert(LANES >= N, "a lane has more than one state");
#define EACH(e, size) _Pragma("unroll 1") for (int e = p.lane; e < (size); e += LANES)

enum Field { A_, B_, Q_, R_, H0_, R1_, Q1_, C_, CROSS_, QF_ };  // bits of `timed`, rows of `rows`

// Half a symmetric matrix, diagonal after diagonal, so that neighbouring lanes have neighbouring rows: entry e is (i, k).
__device__ __forceinline__ void half_place(int e, int &i, int &k) {
    i = e % N;
    k = i + e / N;
    k = k < N ? k : k - N;
}

__device__ __forceinline__ real square_root(real x) { return sizeof(real) == 4 ? (real)sqrtf((float)x) : (real)sqrt((double)x); }

// NaN unless x > 0
__device__ __forceinline__ real positive_root(real x) { return square_root(x > 0 ? x : (real)-1); }

// x y, rounded: a compiler may not add to it before
__device__ __forceinline__ real product(real x, real y) {
    return sizeof(real) == 4 ? (real)__fmul_rn((float)x, (float)y) : (real)__dmul_rn((double)x, (double)y);
}

__device__ __forceinline__ real size_of(real x) { return x < 0 ? -x : x; }

__device__ __forceinline__ real larger(real x, real y) { return y > x ? y : x; }

// left / size; below the smallest size, numbers have fewer digits
__device__ __forceinline__ real part_of(real left, real size) {
    return size_of(left) / larger(sizeof(real) == 4 ? (real)1e-31 : (real)1e-292, size);
}

template <int SIZE>
__device__ __forceinline__ real inner(const real *x, const real *y) {
    real even = 0, odd = 0;
#pragma unroll 8
    for (int i = 0; i + 1 < SIZE; i += 2) {
        even += x[i] * y[i];
        odd += x[i + 1] * y[i + 1];
    }
    return SIZE % 2 ? even + odd + x[SIZE - 1] * y[SIZE - 1] : even + odd;
}

struct Problem {
    int lane, horizon, timed;
    unsigned mask;
    bool crossed, fixed;  // whether there is a cross term, and whether all steps have the same matrices but Q
    const given *A, *B, *Q, *R, *h0, *r, *q, *c, *cross, *Qf;
    real *P, *F, *G, *Bt, *nu, *L;                    // F: A without the cross term; G: room; Bt, nu: rows for actions
    real *v, *work, *rest, *x, *lam, *ahead, *before, *h, *drift;  // vectors of N
    real *z, *rho, *known;                            // vectors of M

    __device__ __forceinline__ void sync() const {
        if (LANES > 32) __syncthreads();
        else __syncwarp(mask);
    }
    __device__ __forceinline__ const given *of(Field field, const given *data, int t, int size) const {
        return data + (timed >> field & 1 ? (long long)t * size : 0);
    }
};

// The part of a field that belongs to a problem: `steps` matrices of `size` entries each.
__device__ __forceinline__ const given *own_part(
    Field field, const given *data, const long long *rows, int own, int timed, long long problems, long long index, int steps, int size
) {
    if (!data || !(own >> field & 1)) return data;
    const long long row = rows ? rows[field * problems + index] : index;
    return data + row * (timed >> field & 1 ? steps : 1) * size;
}

// Sets the problem up; false for lanes without one.
#define FIELDS \
    const given *A, const given *B, const given *Q, const given *R, const given *h0, const given *r, const given *q, \
        const given *c, const given *cross, const given *Qf, const long long *rows, int own, int timed, \
        long long problems, long long first, long long last, int horizon
#define FIELDS_GIVEN A, B, Q, R, h0, r, q, c, cross, Qf, rows, own, timed, problems, first, last, horizon

__device__ bool set_up(FIELDS, real *memory, Problem &p, long long &index) {
    const int group = threadIdx.x / LANES, T = horizon;
    index = first + (long long)blockIdx.x * (THREADS / LANES) + group;
    if (index >= last) return false;
    p.lane = threadIdx.x % LANES;
    p.mask = LANES >= 32 ? 0xffffffffu : ((1u << LANES % 32) - 1) << (threadIdx.x % 32 / LANES * LANES);
    p.horizon = T;
    p.timed = timed;
    p.crossed = cross != nullptr;
    p.fixed = !(timed & (1 << A_ | 1 << B_ | 1 << R_ | 1 << CROSS_));
    p.A = own_part(A_, A, rows, own, timed, problems, index, T, N * N);
    p.B = own_part(B_, B, rows, own, timed, problems, index, T, N * M);
    p.Q = own_part(Q_, Q, rows, own, timed, problems, index, Qf ? T - 1 : T, N * N);
    p.R = own_part(R_, R, rows, own, timed, problems, index, T, M * M);
    p.h0 = own_part(H0_, h0, rows, own, timed, problems, index, 1, N);
    p.r = own_part(R1_, r, rows, own, timed, problems, index, T, M);
    p.q = own_part(Q1_, q, rows, own, timed, problems, index, T, N);
    p.c = own_part(C_, c, rows, own, timed, problems, index, T, N);
    p.cross = own_part(CROSS_, cross, rows, own, timed, problems, index, T, N * M);
    p.Qf = own_part(QF_, Qf, rows, own, timed, problems, index, 1, N * N);
    real *room = memory + group * SHARED;
    real **matrices[] = {&p.P, &p.F, &p.G, &p.Bt, &p.nu};
    const int heights[] = {N, N, WIDE, M, M};
#pragma unroll
    for (int k = 0; k < 5; ++k) {
        *matrices[k] = room;
        room += heights[k] * LD;
    }
    p.L = room;
    room += M * LDM;
    real **vectors[] = {&p.v, &p.work, &p.rest, &p.x, &p.lam, &p.ahead, &p.before, &p.h, &p.drift};
#pragma unroll
    for (int k = 0; k < 9; ++k) *vectors[k] = room + k * N;
    p.z = room + 9 * N;
    p.rho = p.z + M;
    p.known = p.rho + M;
    return true;
}

// to <- from, or zero if there is none
__device__ __forceinline__ void read_vector(const Problem &p, const given *from, int size, real *to) {
    EACH(i, size) to[i] = from ? (real)from[i] : 0;
}

// R = L L', in place, below the diagonal
__device__ void cholesky(const Problem &p) {
    for (int j = 0; j < M; ++j) {
        const real pivot = positive_root(p.L[j * LDM + j]);
        p.sync();
        EACH(i, M) if (i >= j) p.L[i * LDM + j] = i == j ? pivot : p.L[i * LDM + j] / pivot;
        p.sync();
        EACH(e, M * M) {
            const int i = e / M, k = e % M;
            if (i >= k && k > j) p.L[i * LDM + k] -= p.L[i * LDM + j] * p.L[k * LDM + j];
        }
        p.sync();
    }
}

// Rows x_j of a matrix X' become those of (X L^-T)'. Each lane has columns of its own.
__device__ void whiten(const Problem &p, real *X) {
    EACH(i, N)
        for (int j = 0; j < M; ++j) {
            real x = X[j * LD + i];
            for (int k = 0; k < j; ++k) x -= p.L[j * LDM + k] * X[k * LD + i];
            X[j * LD + i] = x / p.L[j * LDM + j];
        }
}

// x becomes L^-1 x, or L^-T x: actions in units of their cost, or in their own again
template <bool TURNED>
__device__ void divide(const Problem &p, real *x) {
    for (int turn = 0; turn < M; ++turn) {
        const int j = TURNED ? M - 1 - turn : turn;
        const real whole = x[j] / p.L[j * LDM + j];
        p.sync();
        EACH(k, M) {
            if (k == j) x[k] = whole;
            else if (TURNED ? k < j : k > j) x[k] -= (TURNED ? p.L[j * LDM + k] : p.L[k * LDM + j]) * whole;
        }
        p.sync();
    }
}

// The matrices of step t, actions in units of their cost, without a cross term
__device__ void prepare(const Problem &p, int t) {
    const given *A = p.of(A_, p.A, t, N * N), *B = p.of(B_, p.B, t, N * M), *R = p.of(R_, p.R, t, M * M);
    p.sync();
    EACH(e, N * N) p.F[e / N * LD + e % N] = A[e];
    EACH(e, N * M) p.Bt[e % M * LD + e / M] = B[e];
    EACH(e, M * M) {
        const int i = e / M, k = e % M;
        if (k <= i) p.L[i * LDM + k] = ((real)R[i * M + k] + (real)R[k * M + i]) / 2;
    }
    if (p.crossed) {
        const given *cross = p.of(CROSS_, p.cross, t, N * M);
        EACH(e, N * M) p.nu[e % M * LD + e / M] = cross[e];
    }
    p.sync();
    cholesky(p);
    whiten(p, p.Bt);
    if (p.crossed) whiten(p, p.nu);
    p.sync();
    if (p.crossed) {
        EACH(e, N * N) {
            const int i = e / N, k = e % N;
            real entry = p.F[i * LD + k];
            for (int j = 0; j < M; ++j) entry -= p.Bt[j * LD + i] * p.nu[j * LD + k];
            p.F[i * LD + k] = entry;
        }
        p.sync();
    }
}

// to <- X' x, or X' x + more; rows of X lie LD apart. For P, which is symmetric, that is P x.
__device__ __forceinline__ void times_turned(const Problem &p, const real *X, const real *x, real *to, const real *more = nullptr) {
    EACH(i, N) {
        real sum = 0;
#pragma unroll 8
        for (int k = 0; k < N; ++k) sum += X[k * LD + i] * x[k];
        to[i] = more ? sum + more[i] : sum;
    }
}

// The smallest symmetric change of P after which P b = k, k = v / d, once more. See dense_cpu_steps.restore.
__device__ void restore(const Problem &p, const real *b, real d) {
    EACH(i, N) {
        real seen = 0;
        for (int k = 0; k < N; ++k) seen += p.P[k * LD + i] * b[k];
        const real wanted = p.v[i] / d;
        p.rest[i] = wanted - seen;
        p.work[i] = wanted * d / (d - 1);
    }
    p.sync();
    const real left = inner<N>(b, p.rest);
    p.sync();
    EACH(i, N) p.rest[i] -= p.work[i] * left / 2;
    p.sync();
    EACH(e, HALF) {
        int i, k;
        half_place(e, i, k);
        const real entry = p.P[i * LD + k] + (p.work[i] * p.rest[k] + p.rest[i] * p.work[k]);
        p.P[i * LD + k] = p.P[k * LD + i] = entry;
    }
    p.sync();
}

// An action absorbed into P: v <- P b, kept, P <- P - v v' / d. Returns d. `hidden`, of float, becomes the largest
// b_i² P_ii / d so far, for the state i of this lane: see dense_cpu_steps.py.
__device__ real absorb(const Problem &p, const real *b, real *kept, real &hidden) {
    times_turned(p, p.P, b, p.v);
    p.sync();
    real d = 1 + inner<N>(b, p.v);
    const real root = positive_root(d), scale = 1 / root;
    d = root > 0 ? d : root;  // NaN: no minimum, in this problem alone, or too few digits
    EACH(i, N) {
        kept[i] = p.v[i];
        if (sizeof(real) == 4) {  // P_ii is written below by the same lane
            const real part = b[i] * scale;
            hidden = larger(hidden, part * part * p.P[i * LD + i]);
        }
    }
    EACH(e, HALF) {
        int i, k;
        half_place(e, i, k);
        const real entry = p.P[i * LD + k] - p.v[i] * scale * (p.v[k] * scale);
        p.P[i * LD + k] = p.P[k * LD + i] = entry;
    }
    p.sync();
    if (d > REFINED) restore(p, b, d);
    return d;
}

// P <- Q + F' P F - nu nu', Q of the state before step t, or zero for h_0
__device__ void step_back(const Problem &p, int t) {
    EACH(e, N * N) {
        const int i = e / N, k = e % N;
        real sum = 0;
#pragma unroll 8
        for (int j = 0; j < N; ++j) sum += p.P[i * LD + j] * p.F[j * LD + k];
        p.G[i * LD + k] = sum;
    }
    p.sync();
    const given *Q = t > 0 ? p.of(Q_, p.Q, t - 1, N * N) : nullptr;
    EACH(e, N * N) p.P[e / N * LD + e % N] = Q ? (real)Q[e] : 0;
    p.sync();
    EACH(e, HALF) {
        int i, k;
        half_place(e, i, k);
        real sum = (p.P[i * LD + k] + p.P[k * LD + i]) / 2;
#pragma unroll 8
        for (int j = 0; j < N; ++j) sum += p.F[j * LD + i] * p.G[j * LD + k];
        if (p.crossed)
            for (int j = 0; j < M; ++j) sum -= p.nu[j * LD + i] * p.nu[j * LD + k];
        p.P[i * LD + k] = p.P[k * LD + i] = sum;
    }
    p.sync();
}

// P, v and d of every step into `kept`, and P before the first step, without a cost of that state, into P. Returns the
// largest d, or in float, if that is more, HIDDEN times the hidden digits.
__device__ real descend(const Problem &p, real *kept) {
    const given *last = p.Qf ? p.Qf : p.of(Q_, p.Q, p.horizon - 1, N * N);
    EACH(e, HALF) {
        int i, k;
        half_place(e, i, k);
        p.P[i * LD + k] = p.P[k * LD + i] = ((real)last[i * N + k] + (real)last[k * N + i]) / 2;
    }
    p.sync();
    real largest = 1, hidden = 0;
    for (int t = p.horizon - 1; t >= 0; --t) {
        real *row = kept + (long long)t * ENTRIES;
        EACH(e, HALF) {
            int i, k;
            half_place(e, i, k);
            row[e] = p.P[i * LD + k];
        }
        if (t == p.horizon - 1 || !p.fixed) prepare(p, t);
        for (int j = 0; j < M; ++j) {
            const real d = absorb(p, p.Bt + j * LD, row + HALF + j * N, hidden);
            if (p.lane == 0) row[HALF + M * N + j] = d;
            largest = d <= largest ? largest : d;  // NaN, too, is larger than any
        }
        step_back(p, t);
    }
    if (sizeof(real) == 4) {
        EACH(i, N) p.work[i] = hidden;
        p.sync();
        real total = 0;
        for (int i = 0; i < N; ++i) total += p.work[i];
        p.sync();
        largest = HIDDEN * total > largest ? HIDDEN * total : largest;  // NaN stays
    }
    return largest;
}

// Kept numbers of step t: P, v of every action into G; d stays in place
__device__ const real *recall(const Problem &p, const real *kept, int t) {
    const real *row = kept + (long long)t * ENTRIES;
    p.sync();
    EACH(e, HALF) {
        int i, k;
        half_place(e, i, k);
        p.P[i * LD + k] = p.P[k * LD + i] = row[e];
    }
    EACH(e, M * N) p.G[e / N * LD + e % N] = row[HALF + e];
    p.sync();
    return row + HALF + M * N;
}

// The actions z of a step whose drift is x, which becomes the state after it
__device__ void decide(const Problem &p, const real *d) {
    for (int j = M - 1; j >= 0; --j) {
        const real z = -(inner<N>(p.G + j * LD, p.x) + p.known[j]) / d[j];
        p.sync();
        if (p.lane == 0) p.z[j] = z;
        EACH(i, N) p.x[i] += p.Bt[j * LD + i] * z;
        p.sync();
    }
}

// The linear terms of a problem: its own, or the gradients of a loss over u, λ_1.. and h_1.., and whether there are steps
struct Right {
    const given *r, *c, *q;
    bool timed_r, timed_c, timed_q;
    __device__ const given *r_at(int t) const { return r ? r + (timed_r ? (long long)t * M : 0) : nullptr; }
    __device__ const given *c_at(int t) const { return c ? c + (timed_c ? (long long)t * N : 0) : nullptr; }
    __device__ const given *q_at(int t) const { return q ? q + (timed_q ? (long long)t * N : 0) : nullptr; }
};

// A step of the recursion for the slopes: from `ahead`, p behind the step, to `before`, the slope before it, without the
// linear cost of that state. z becomes the actions from h = 0, known the effect of p on them.
__device__ void slope(const Problem &p, const Right &right, const real *d, int t) {
    read_vector(p, right.r_at(t), M, p.rho);
    EACH(i, N) p.x[i] = p.ahead[i];
    p.sync();
    if (right.r) divide<false>(p, p.rho);
    for (int j = 0; j < M; ++j) {
        const real known = inner<N>(p.Bt + j * LD, p.x) + p.rho[j];
        p.sync();
        if (p.lane == 0) p.known[j] = known;
        EACH(i, N) p.x[i] -= p.G[j * LD + i] * (known / d[j]);
        p.sync();
    }
    read_vector(p, right.c_at(t), N, p.x);
    p.sync();
    decide(p, d);
    times_turned(p, p.P, p.x, p.lam, p.ahead);
    p.sync();
    times_turned(p, p.F, p.lam, p.before);
    if (p.crossed)
        EACH(i, N)
            for (int j = 0; j < M; ++j) p.before[i] -= p.rho[j] * p.nu[j * LD + i];
    p.sync();
}

// A step forward from h: x becomes the next state, lam its co-state, z the actions in units of their cost, rho the linear
// cost of these. `slopes` has p and its effect on the actions, for every step, if there are any.
__device__ void roll(const Problem &p, const Right &right, const real *slopes, const real *d, int t) {
    const real *row = slopes ? slopes + (long long)t * (N + M) : nullptr;
    EACH(i, N) p.ahead[i] = row ? row[i] : 0;
    EACH(j, M) p.known[j] = row ? row[N + j] : 0;
    read_vector(p, right.r_at(t), M, p.rho);
    const given *c = right.c_at(t);
    EACH(i, N) {
        const real sum = inner<N>(p.F + i * LD, p.h);
        p.x[i] = c ? sum + (real)c[i] : sum;
    }
    p.sync();
    if (right.r) divide<false>(p, p.rho);
    decide(p, d);
    times_turned(p, p.P, p.x, p.lam, p.ahead);
    if (p.crossed) EACH(j, M) p.z[j] -= inner<N>(p.nu + j * LD, p.h);
    p.sync();
}

// λ_0 without a linear cost of h_0, into `before`, after `roll` of the first step
__device__ void first_costate(const Problem &p) {
    times_turned(p, p.F, p.lam, p.before);
    if (p.crossed)
        for (int j = 0; j < M; ++j) {
            const real pull = inner<N>(p.nu + j * LD, p.h) + p.rho[j];
            EACH(i, N) p.before[i] -= pull * p.nu[j * LD + i];
        }
    p.sync();
}

// How far action j, of cost 1/2 z² + linear z, is from having no slope left, over the largest term of that
__device__ __forceinline__ real action_unmet(const Problem &p, int j, real linear) {
    real left = p.z[j] + linear, size = size_of(p.z[j]) + size_of(linear);
    for (int i = 0; i < N; ++i) {
        const real term = p.Bt[j * LD + i] * p.lam[i];
        left += term;
        size += size_of(term);
    }
    return part_of(left, size);
}

// The violation of a co-state's equation in this lane's entries, over the largest term of all entries. A co-state is the
// slope of its own state's cost plus the share of the next co-state (null for nothing)
__device__ __forceinline__ real costate_unmet(const Problem &p, const real *lam, const real *own, const real *back) {
    real left = 0, size = 0;
    EACH(i, N) left = larger(left, size_of(lam[i] - own[i] - (back ? back[i] : 0)));
    for (int i = 0; i < N; ++i) size = larger(larger(size, size_of(lam[i])), larger(size_of(own[i]), back ? size_of(back[i]) : 0));
    return part_of(left, size);
}
