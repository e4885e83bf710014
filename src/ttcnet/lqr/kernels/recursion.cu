// The stable recursion behind plan(), forward and backward, for many small problems at once.
// The mathematics is that of recursion.py beside this folder; docs/kernels.md has the counts and the measurements.
//
// A problem is worked on by LANES neighbouring lanes of a warp. The value matrix P lives in registers, a lane holding
// ROWS whole rows of it. A vector is either spread over the lanes (ROWS entries each) or, after gather(), held in full
// by every lane. B and Q lie in shared memory, once for each token that a block touches, B transposed.
//
// Backward in time, the actions of a step are absorbed: with w = r_inv exp(-2 t decay_B), v = P b, s = b'v,
//     P <- P - v v' w / (1 + w s)
// where v is scaled by sqrt(w / (1 + w s)) before the product, so that P stays symmetric to the bit. Two actions go
// together, which halves the waiting between lanes.
//
// Set by the compiler: N, M (padded sizes), LANES, THREADS, BLOCKS (that a multiprocessor must hold at once), KEEP (steps
// held on chip), SHARED_B, SHARED_Q, ONE_DECAY_A, and real (float or double).

#define ROWS (N / LANES)
#define ACTIONS ((M + LANES - 1) / LANES)
#define GROUPS (THREADS / LANES)
#define MATRIX (ROWS * N)               // entries of P that a lane holds
#define TURN (ACTIONS > 1 ? ACTIONS : 2)  // actions between two passes of a loop over them
#define WIDEST (N > M ? N : M)
// Shared memory of a group, in entries, sized so that neighbouring groups do not wait for the same banks:
#define EXCHANGE ((4 * (WIDEST + 4) + KEEP + 31) / 32 * 32 + 4)  // through which its lanes tell each other vectors
#define FIRST_STEP (N * WIDEST + 16)                      // what the actions of the first step saw
#define STRETCH (N * ((KEEP + 1) * N > M ? (KEEP + 1) * N : M))  // P° of KEEP steps, and the P of the last of them
#define REFINE_ABOVE 4                    // 1 + w s from which on P° has too few digits left to be used alone

struct alignas(4 * sizeof(real)) four { real x[4]; };

struct Inputs {
    const real *a, *B, *Q, *Qf, *r_inv, *decay_A, *decay_B, *decay_Q, *h0;
};

struct Gradients {
    real *a, *B, *Q, *Qf, *r_inv, *decay_A, *decay_B, *decay_Q, *h0;
};

struct Shape {
    long long problems;
    int heads, n, m, horizon;
    int stride, inner;  // steps between the check-points of the forward pass, and between those of the backward pass
};

__device__ __forceinline__ real exponential(real x) { return sizeof(real) == 4 ? (real)expf((float)x) : (real)exp((double)x); }
// 1 + w s, or NaN unless it is positive: then the problem has no minimum
__device__ __forceinline__ real curvature(real w, real s) {
    const real d = 1 + w * s;
    return d > 0 ? d : (real)rsqrtf(-1.0f);
}

// sqrt(w / d), for w >= 0: one approximate reciprocal root, made exact by one step of Newton's
__device__ __forceinline__ real root_of_ratio(real w, real d) {
    if (sizeof(real) == 8) return (real)sqrt((double)(w / d));
    const real x = d > 0 ? max(w * d, (real)1e-37) : d, guess = (real)rsqrtf((float)x);
    return w * (guess * ((real)1.5 - (real)0.5 * x * guess * guess));
}

template <int COUNT>
__device__ __forceinline__ void load(const real *from, real (&to)[COUNT]) {
    if (COUNT % 4 == 0) {
#pragma unroll
        for (int k = 0; k < COUNT / 4; ++k) {
            four part = reinterpret_cast<const four *>(from)[k];
#pragma unroll
            for (int i = 0; i < 4; ++i) to[4 * k + i] = part.x[i];
        }
    } else {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) to[k] = from[k];
    }
}

template <int COUNT>
__device__ __forceinline__ void save(real *to, const real (&from)[COUNT]) {
    if (COUNT % 4 == 0) {
#pragma unroll
        for (int k = 0; k < COUNT / 4; ++k) {
            four part;
#pragma unroll
            for (int i = 0; i < 4; ++i) part.x[i] = from[4 * k + i];
            reinterpret_cast<four *>(to)[k] = part;
        }
    } else {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) to[k] = from[k];
    }
}

// Lanes of a group always move together; other groups of the warp may have ended.
struct Group {
    unsigned mask;
    int lane;        // within the group
    real *exchange;  // shared memory: two pairs of vectors, used in turn, so that one barrier an exchange is enough
    int turn;

    __device__ real from(real x, int source) const { return __shfl_sync(mask, x, source, LANES); }
    __device__ real sum(real x) const {
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(mask, x, step, LANES);
        return x;
    }
    // two spread vectors, COUNT entries a lane, in full
    template <int COUNT, int SIZE>
    __device__ __forceinline__ void gather(const real (&x)[COUNT], const real (&y)[COUNT], real (&full)[SIZE], real (&full2)[SIZE]) {
        real *first = exchange + turn, *second = first + WIDEST + 4;
        turn = 2 * (WIDEST + 4) - turn;
        if (lane * COUNT < SIZE) {
            save(first + lane * COUNT, x);
            save(second + lane * COUNT, y);
        }
        __syncwarp(mask);
        load(first, full);
        load(second, full2);
    }
};

// Everything a lane knows of its problem that does not change over time.
struct Problem {
    Group group;
    long long index;                            // of the problem
    const real *Bt, *Q;                         // in shared memory: B transposed, and Q as the lanes read it
    real a[ROWS], decay_A[ROWS], decay_Q[ROWS], r_inv[ACTIONS], decay_B[ACTIONS];
    bool some_free;                             // some action with r_inv = 0

    __device__ int row(int r) const { return group.lane * ROWS + r; }
    __device__ int action(int r) const { return group.lane * ACTIONS + r; }

    // row r of this lane's part of Q
    __device__ void load_Q(int r, real (&row)[N]) const {
#pragma unroll
        for (int k = 0; k < N / 4; ++k) {
            four part = reinterpret_cast<const four *>(Q)[(r * (N / 4) + k) * LANES + group.lane];
#pragma unroll
            for (int i = 0; i < 4; ++i) row[4 * k + i] = part.x[i];
        }
    }
    // what the owner of action j has in its r-th place
    __device__ real weight(const real (&w)[ACTIONS], int r, int j) const { return group.from(w[r % ACTIONS], j / ACTIONS); }

    __device__ void A_at(int t, real (&A)[ROWS]) const {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) A[r] = 1 + exponential(-t * decay_A[r]) * a[r];
    }
    __device__ void Q_fade(int t, real (&scale)[ROWS]) const {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) scale[r] = exponential(-t * decay_Q[r]);
    }
    __device__ void B_fade(int t, real (&scale)[ACTIONS]) const {
#pragma unroll
        for (int r = 0; r < ACTIONS; ++r) scale[r] = exponential(-t * decay_B[r]);
    }
};

// (..., size) spread over the lanes: `count` entries each, zero past the end
template <int COUNT>
__device__ __forceinline__ void spread(const real *from, int size, int lane, real (&to)[COUNT]) {
#pragma unroll
    for (int r = 0; r < COUNT; ++r) {
        int k = lane * COUNT + r;
        to[r] = k < size ? from[k] : 0;
    }
}

template <int COUNT>
__device__ __forceinline__ void unspread(real *to, int size, int lane, const real (&from)[COUNT]) {
#pragma unroll
    for (int r = 0; r < COUNT; ++r) {
        int k = lane * COUNT + r;
        if (k < size) to[k] = from[r];
    }
}

// Bring B and Q of all that this block works on into shared memory, and set the problem up. Every thread takes part;
// the answer is whether this thread has a problem to work on.
__device__ bool set_up(const Inputs &in, const Shape &shape, real *memory, Problem &p) {
    p.group.exchange = memory + threadIdx.x / LANES * EXCHANGE;
    p.group.turn = 0;
    memory += GROUPS * EXCHANGE;
    const long long first = (long long)blockIdx.x * GROUPS;
    const long long last = min(first + (long long)GROUPS, shape.problems) - 1;
    const long long token = first / shape.heads;
    const int tokens = (int)(last / shape.heads - token) + 1, owners = (int)(last - first) + 1;
    const int of_B = SHARED_B ? tokens : owners, of_Q = SHARED_Q ? tokens : owners;
    const int n = shape.n, m = shape.m;
    real *Bt = memory, *Q = memory + (long long)of_B * M * N;

    const real *B_from = in.B + (SHARED_B ? token : first) * n * m;
    for (int k = threadIdx.x; k < of_B * M * N; k += THREADS) {
        int i = k % N, j = k / N % M;
        Bt[k] = i < n && j < m ? B_from[(long long)(k / (M * N)) * n * m + i * m + j] : 0;
    }
    const real *Q_from = in.Q + (SHARED_Q ? token : first) * n * n;
    for (int k = threadIdx.x; k < of_Q * N * N; k += THREADS) {
        // entries k, k + 1, k + 2, k + 3 are neighbours in a row, the fours of neighbouring lanes follow each other
        const int of_four = k / 4 % (N * N / 4), at_lane = of_four % LANES, part = of_four / LANES;
        const int i = at_lane * ROWS + part / (N / 4), j = part % (N / 4) * 4 + k % 4;
        const real *matrix = Q_from + (long long)(k / (N * N)) * n * n;
        Q[k] = i < n && j < n ? (matrix[i * n + j] + matrix[j * n + i]) / 2 : 0;
    }
    __syncthreads();

    const int in_block = threadIdx.x / LANES;
    p.index = first + in_block;
    p.group.lane = threadIdx.x % LANES;
    p.group.mask = LANES == 32 ? 0xffffffffu : ((1u << LANES) - 1) << (threadIdx.x % 32 / LANES * LANES);
    if (p.index >= shape.problems) return false;
    const int own_token = (int)(p.index / shape.heads - token);
    p.Bt = Bt + (SHARED_B ? own_token : in_block) * M * N;
    p.Q = Q + (SHARED_Q ? own_token : in_block) * N * N;

    const int lane = p.group.lane;
    spread(in.a + p.index * n, n, lane, p.a);
    spread(in.decay_Q + p.index * n, n, lane, p.decay_Q);
    spread(in.r_inv + p.index * m, m, lane, p.r_inv);
    spread(in.decay_B + p.index * m, m, lane, p.decay_B);
    real zeros = 0;
#pragma unroll
    for (int r = 0; r < ACTIONS; ++r) zeros += p.action(r) < m && p.r_inv[r] == 0;
    p.some_free = p.group.sum(zeros) > 0;
    if (ONE_DECAY_A) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) p.decay_A[r] = in.decay_A[p.index];
    } else {
        spread(in.decay_A + p.index * n, n, lane, p.decay_A);
    }
    return true;
}

// The problems of a warp, to read and write their matrices together: side by side in global memory, `apart` entries
// from one to the next in shared memory.
struct Warp {
    int own, count, lanes;  // this problem's place among them, how many there are, and how many lanes they have
    unsigned mask;
    long long first;
    __device__ Warp(Problem &p, const Shape &shape) {
        own = threadIdx.x % 32 / LANES;
        first = p.index - own;
        count = (int)min((long long)(32 / LANES), shape.problems - first);
        lanes = count * LANES;
        mask = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1;
    }
};

// The symmetric part of Qf.
__device__ void load_Qf(const Inputs &in, const Shape &shape, Problem &p, real *room, int apart, real (&P)[ROWS][N]) {
    const Warp warp(p, shape);
    const int n = shape.n;
    const real *Qf = in.Qf + warp.first * n * n;
    real *rooms = room - warp.own * apart;
    __syncwarp(warp.mask);
    for (int k = threadIdx.x % 32; k < warp.count * N * N; k += warp.lanes) {
        const int i = k / N % N, j = k % N, which = k / (N * N);
        rooms[which * apart + i * N + j] = i < n && j < n ? Qf[(long long)which * n * n + i * n + j] : 0;
    }
    __syncwarp(warp.mask);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        load(room + p.row(r) * N, P[r]);
#pragma unroll
        for (int k = 0; k < N; ++k) P[r][k] = (P[r][k] + room[k * N + p.row(r)]) / 2;
    }
    __syncwarp(warp.mask);
}

// A matrix of n rows and `columns` (of COLUMNS) columns for every problem.
template <int COLUMNS>
__device__ __forceinline__ void write(real *to, const Shape &shape, int columns, Problem &p, real *room, int apart, const real (&matrix)[ROWS][COLUMNS]) {
    const Warp warp(p, shape);
    const int n = shape.n;
    real *rooms = room - warp.own * apart;
    to += warp.first * n * columns;
    __syncwarp(warp.mask);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) save(room + p.row(r) * COLUMNS, matrix[r]);
    __syncwarp(warp.mask);
    for (int k = threadIdx.x % 32; k < warp.count * N * COLUMNS; k += warp.lanes) {
        const int i = k / COLUMNS % N, j = k % COLUMNS, which = k / (N * COLUMNS);
        if (i < n && j < columns) to[((long long)which * n + i) * columns + j] = rooms[which * apart + i * COLUMNS + j];
    }
}

// A check-point: the rows of this lane in matrix `which` of this problem, in global memory.
template <typename Pointer>
__device__ __forceinline__ Pointer slot(Pointer memory, const Shape &shape, Problem &p, int which) {
    return memory + (which * shape.problems + p.index) * N * N + p.group.lane * MATRIX;
}

// A matrix in memory as it is in registers, four entries at a time, `apart` fours from one to the next.
__device__ __forceinline__ void store(real *to, int apart, const real (&P)[ROWS][N]) {
#pragma unroll
    for (int k = 0; k < MATRIX / 4; ++k) {
        four part;
#pragma unroll
        for (int i = 0; i < 4; ++i) part.x[i] = P[(4 * k + i) / N][(4 * k + i) % N];
        reinterpret_cast<four *>(to)[k * apart] = part;
    }
}

__device__ __forceinline__ void recall(const real *from, int apart, real (&P)[ROWS][N]) {
#pragma unroll
    for (int k = 0; k < MATRIX / 4; ++k) {
        four part = reinterpret_cast<const four *>(from)[k * apart];
#pragma unroll
        for (int i = 0; i < 4; ++i) P[(4 * k + i) / N][(4 * k + i) % N] = part.x[i];
    }
}

// Actions j and j + 1 absorbed into P. v and v2: what they saw, P b, the second after the first was absorbed. d and d2:
// their 1 + w s.
__device__ __forceinline__ void absorb(Problem &p, int j, real w, real w2, real (&P)[ROWS][N], real (&v)[ROWS], real (&v2)[ROWS], real &d, real &d2) {
    real b[N], b2[N], own[ROWS], own2[ROWS], full[N], full2[N];
    load(p.Bt + j * N, b);
    load(p.Bt + (j + 1) * N, b2);
    load(p.Bt + j * N + p.group.lane * ROWS, own);
    load(p.Bt + (j + 1) * N + p.group.lane * ROWS, own2);
    real s = 0, cross = 0, s2 = 0;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        real even = 0, odd = 0, even2 = 0, odd2 = 0;
#pragma unroll
        for (int k = 0; k < N; k += 2) {
            even += P[r][k] * b[k];
            even2 += P[r][k] * b2[k];
            odd += P[r][k + 1] * b[k + 1];
            odd2 += P[r][k + 1] * b2[k + 1];
        }
        v[r] = even + odd;
        v2[r] = even2 + odd2;
        s += v[r] * own[r];
        cross += v2[r] * own[r];
        s2 += v2[r] * own2[r];
    }
    p.group.gather(v, v2, full, full2);
    s = p.group.sum(s);
    cross = p.group.sum(cross);
    s2 = p.group.sum(s2);
    d = curvature(w, s);
    const real scale = root_of_ratio(w, d), k = scale * scale * cross;
    d2 = curvature(w2, s2 - k * cross);
    const real scale2 = root_of_ratio(w2, d2);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        full2[i] = fma(-k, full[i], full2[i]) * scale2;
        full[i] *= scale;
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        v2[r] = fma(-k, v[r], v2[r]);
        const real mine = v[r] * scale, mine2 = v2[r] * scale2;
#pragma unroll
        for (int i = 0; i < N; ++i) P[r][i] = fma(-mine2, full2[i], fma(-mine, full[i], P[r][i]));
    }
}

// P becomes P°: all actions of step t absorbed. Returns the largest 1 + w s: how many digits P° has lost.
__device__ __forceinline__ real absorb_all(Problem &p, int t, real (&P)[ROWS][N]) {
    real w[ACTIONS], v[ROWS], v2[ROWS], d, d2, worst = 1;
    p.B_fade(t, w);
#pragma unroll
    for (int r = 0; r < ACTIONS; ++r) w[r] = p.r_inv[r] * w[r] * w[r];
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

#define PROBLEMS                                                                                                     \
    const real *a, const real *B, const real *Q, const real *Qf, const real *r_inv, const real *decay_A,             \
    const real *decay_B, const real *decay_Q, const real *h0, long long problems, int heads, int n, int m,           \
    int horizon, int stride, int inner
#define UNPACK                                                                                                       \
    const Inputs in = {a, B, Q, Qf, r_inv, decay_A, decay_B, decay_Q, h0};                                           \
    const Shape shape = {problems, heads, n, m, horizon, stride, inner};

// u_out: the first actions. checkpoints: P at t = stride, 2 stride, ... below the horizon, or null.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) plan_forward(PROBLEMS, real *u_out, real *checkpoints) {
    UNPACK
    extern __shared__ __align__(16) real memory[];
    Problem p;
    // V: what the actions of the first step saw, to decide them in reverse order
    real *V = memory;
    if (!set_up(in, shape, memory + GROUPS * FIRST_STEP, p)) return;
    V += threadIdx.x / LANES * FIRST_STEP;

    real P[ROWS][N];
    load_Qf(in, shape, p, V, FIRST_STEP, P);
    for (int t = shape.horizon; t > 1; --t) {
        if (checkpoints && t < shape.horizon && t % shape.stride == 0) store(slot(checkpoints, shape, p, t / shape.stride - 1), 1, P);
        absorb_all(p, t, P);
        step_back(p, t, P);
    }

    // The actions of the first step: absorbed in order, what each saw kept, then decided in reverse order.
    real fade[ACTIONS], rate[ACTIONS], gain[ACTIONS], u[ACTIONS], v[ROWS], v2[ROWS], d, d2;
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
            if (p.group.lane == j / ACTIONS) gain[r % ACTIONS] = first / d;
            if (p.group.lane == (j + 1) / ACTIONS) gain[(r + 1) % ACTIONS] = second / d2;
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
            load(p.Bt + j * N + p.row(0), v2);
#pragma unroll
            for (int k = 0; k < ROWS; ++k) part += v[k] * x[k];
            const real action = -gain[r % ACTIONS] * p.group.sum(part);  // true in its owner
            if (p.group.lane == j / ACTIONS) u[r % ACTIONS] = action;
            const real push = p.group.from(action * fade[r % ACTIONS], j / ACTIONS);
#pragma unroll
            for (int k = 0; k < ROWS; ++k) x[k] += v2[k] * push;
        }
    unspread(u_out + p.index * shape.m, shape.m, p.group.lane, u);
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
        load(p.Bt + min(p.action(r), M - 1) * N, b);
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

// h += B u for the rows of this lane
__device__ __forceinline__ void push(Problem &p, const real (&u)[M], const real (&v)[M], real (&h)[ROWS], real (&k)[ROWS]) {
#pragma unroll
    for (int j = 0; j < M; ++j) {
        real b[ROWS];
        load(p.Bt + j * N + p.group.lane * ROWS, b);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            h[r] += b[r] * u[j];
            k[r] += b[r] * v[j];
        }
    }
}

// the same with a matrix that was kept
__device__ __forceinline__ void multiply(const real *kept, const real (&x)[N], const real (&y)[N], real (&Px)[ROWS], real (&Py)[ROWS]) {
    real P[ROWS][N];
    recall(kept, LANES, P);
    multiply(P, x, y, Px, Py);
}

// State and gradients of the two closed loops: the problem and its adjoint (names with a 2).
struct Loop {
    real h[ROWS], h2[ROWS], g[ACTIONS];
    real da[ROWS], dB[ROWS][M], dQ[ROWS][N], dr_inv[ACTIONS], ddecay_A[ROWS], ddecay_B[ACTIONS], ddecay_Q[ROWS];
};

// One step of both loops, given P° of the step (absorbed) and its P; gradients are added up.
__device__ void advance(Problem &p, const Shape &shape, int t, const real *absorbed, const real (&P)[ROWS][N], bool refine, Loop &s, const Gradients &out) {
    real A[ROWS], fade[ACTIONS], x[ROWS], x2[ROWS], forced[ROWS], full[N], full2[N], lam[ROWS], lam2[ROWS];
    real u[ACTIONS], u2[ACTIONS], q[ACTIONS], q2[ACTIONS], e[ACTIONS], e2[ACTIONS], actions[M], actions2[M];
    p.A_at(t, A);
    p.B_fade(t, fade);
    // the gradient of the first action pulls once
    real pull[ACTIONS];
#pragma unroll
    for (int r = 0; r < ACTIONS; ++r) {
        pull[r] = t == 1 ? s.g[r] : 0;
        e[r] = 0;
        e2[r] = -p.r_inv[r] * fade[r] * pull[r];
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        x[r] = A[r] * s.h[r];
        x2[r] = A[r] * s.h2[r];
        forced[r] = x2[r];
    }
    if (t == 1) {
        real unused[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) unused[r] = 0;
        p.group.gather(e, e2, actions, actions2);
        push(p, actions, actions2, unused, forced);
    }
    // first answer: λ = P° x, u = -R^-1 B' λ
    p.group.gather(x, forced, full, full2);
    multiply(absorbed, full, full2, lam, lam2);
    p.group.gather(lam, lam2, full, full2);
    reach(p, full, full2, q, q2);
#pragma unroll
    for (int r = 0; r < ACTIONS; ++r) {
        u[r] = -p.r_inv[r] * fade[r] * q[r];
        u2[r] = -p.r_inv[r] * (fade[r] * q2[r] + pull[r]);
    }
    real h[ROWS], h2[ROWS];
    // P° is a difference whose digits may have cancelled: then, one step of refinement against P itself
    if (refine) {
        real d[ACTIONS], d2[ACTIONS];
#pragma unroll
        for (int r = 0; r < ACTIONS; ++r) {
            e[r] = fade[r] * u[r];
            e2[r] = fade[r] * u2[r];
        }
        p.group.gather(e, e2, actions, actions2);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            h[r] = x[r];
            h2[r] = x2[r];
        }
        push(p, actions, actions2, h, h2);
        p.group.gather(h, h2, full, full2);
        multiply(P, full, full2, lam, lam2);
        p.group.gather(lam, lam2, full, full2);
        reach(p, full, full2, q, q2);
#pragma unroll
        for (int r = 0; r < ACTIONS; ++r) {
            d[r] = -p.r_inv[r] * fade[r] * q[r] - u[r];
            d2[r] = -p.r_inv[r] * (fade[r] * q2[r] + pull[r]) - u2[r];
            e[r] = fade[r] * d[r];
            e2[r] = fade[r] * d2[r];
        }
        p.group.gather(e, e2, actions, actions2);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) h[r] = h2[r] = 0;
        push(p, actions, actions2, h, h2);
        p.group.gather(h, h2, full, full2);
        multiply(absorbed, full, full2, lam, lam2);
        p.group.gather(lam, lam2, full, full2);
        reach(p, full, full2, q, q2);
#pragma unroll
        for (int r = 0; r < ACTIONS; ++r) {
            u[r] += d[r] - p.r_inv[r] * fade[r] * q[r];
            u2[r] += d2[r] - p.r_inv[r] * fade[r] * q2[r];
        }
    }
#pragma unroll
    for (int r = 0; r < ACTIONS; ++r) {
        e[r] = fade[r] * u[r];
        e2[r] = fade[r] * u2[r];
    }
    // the step itself
    p.group.gather(e, e2, actions, actions2);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        h[r] = x[r];
        h2[r] = x2[r];
    }
    push(p, actions, actions2, h, h2);
    p.group.gather(h, h2, full, full2);
    multiply(P, full, full2, lam, lam2);

    // gradients
    if (t < shape.horizon) {
        real faded[ROWS], faded2[ROWS], Q[N];
        p.Q_fade(t, faded);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            faded2[r] = faded[r] * h2[r];
            faded[r] *= h[r];
        }
        p.group.gather(faded, faded2, full, full2);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            p.load_Q(r, Q);
            const real mine = faded[r], mine2 = faded2[r];
            real through = 0;
#pragma unroll
            for (int k = 0; k < N; ++k) {
                const real more = mine * full2[k] + mine2 * full[k];
                s.dQ[r][k] += more;
                through += Q[k] * more;
            }
            s.ddecay_Q[r] -= t * through;
        }
    }
    // B' λ = -R u and B' λ2 + g = -R u2, where R is finite
    if (t == 1 || p.some_free) {
        p.group.gather(lam, lam2, full, full2);
        reach(p, full, full2, q, q2);
    }
#pragma unroll
    for (int r = 0; r < ACTIONS; ++r) {
        const bool finite = p.r_inv[r] > 0;
        const real first = finite ? -u[r] / p.r_inv[r] : fade[r] * q[r];
        const real second = finite ? -u2[r] / p.r_inv[r] : fade[r] * q2[r] + pull[r];
        s.ddecay_B[r] -= t * (first * u2[r] + (t == 1 ? fade[r] * q2[r] : second) * u[r]);
        s.dr_inv[r] -= first * second;
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const real fade_A = exponential(-t * p.decay_A[r]);
        const real through = fade_A * (lam[r] * s.h2[r] + lam2[r] * s.h[r]);
        s.da[r] += through;
        s.ddecay_A[r] -= t * p.a[r] * through;
#pragma unroll
        for (int j = 0; j < M; ++j) s.dB[r][j] += lam[r] * actions2[j] + lam2[r] * actions[j];
        if (t == 1 && p.row(r) < shape.n) out.h0[p.index * shape.n + p.row(r)] = A[r] * lam2[r];
        s.h[r] = h[r];
        s.h2[r] = h2[r];
    }
}

__device__ __forceinline__ void fetch(const Inputs &in, const Shape &shape, Problem &p, const real *from, real *room, real (&P)[ROWS][N]) {
    if (from) recall(from, 1, P);
    else load_Qf(in, shape, p, room, STRETCH, P);
}

// From P at step `end`, keep every `step`-th P down to `bottom` (both ends excluded) in the slots that begin at `base`.
__device__ __forceinline__ void keep_between(const Inputs &in, const Shape &shape, Problem &p, const real *from, int bottom, int end, int step, real *scratch, int base, real *room, real (&P)[ROWS][N]) {
    if (end - bottom <= step) return;
    fetch(in, shape, p, from, room, P);
    for (int t = end; t > bottom + step; --t) {
        absorb_all(p, t, P);
        step_back(p, t, P);
        if ((t - 1 - bottom) % step == 0) store(slot(scratch, shape, p, base + (t - 1 - bottom) / step - 1), 1, P);
    }
}

// g: the gradient of the first actions. The gradients of B and Q are written for every head.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) plan_backward(
    PROBLEMS, const real *g, const real *checkpoints, real *scratch, real *da, real *dB, real *dQ, real *dQf, real *dr_inv,
    real *ddecay_A, real *ddecay_B, real *ddecay_Q, real *dh0) {
    UNPACK
    const Gradients out = {da, dB, dQ, dQf, dr_inv, ddecay_A, ddecay_B, ddecay_Q, dh0};
    extern __shared__ __align__(16) real memory[];
    Problem p;
    // this problem's STRETCH, in which the fours of neighbouring lanes follow each other
    real *room = memory + threadIdx.x / LANES * STRETCH, *kept = room + 4 * (threadIdx.x % LANES);
    if (!set_up(in, shape, memory + GROUPS * STRETCH, p)) return;
    const int lane = p.group.lane, T = shape.horizon;
    real *lost_digits = p.group.exchange + 4 * (WIDEST + 4);  // of each step on chip: its largest 1 + w s

    Loop s;
    spread(in.h0 + p.index * shape.n, shape.n, lane, s.h);
    spread(g + p.index * shape.m, shape.m, lane, s.g);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        s.h2[r] = s.da[r] = s.ddecay_A[r] = s.ddecay_Q[r] = 0;
#pragma unroll
        for (int j = 0; j < M; ++j) s.dB[r][j] = 0;
#pragma unroll
        for (int k = 0; k < N; ++k) s.dQ[r][k] = 0;
    }
#pragma unroll
    for (int r = 0; r < ACTIONS; ++r) s.dr_inv[r] = s.ddecay_B[r] = 0;

    // Steps in forward order, recomputed from check-points: stretches of `stride` steps between those of the forward
    // pass, in them stretches of `inner` steps, in those KEEP steps at a time on chip. No check-point: P is Qf.
    real P[ROWS][N];
    const int inner_slots = shape.stride / shape.inner - 1;
    for (int bottom0 = 0; bottom0 < T; bottom0 += shape.stride) {
        const int end0 = min(bottom0 + shape.stride, T);
        const real *from0 = end0 == T ? nullptr : slot(checkpoints, shape, p, end0 / shape.stride - 1);
        keep_between(in, shape, p, from0, bottom0, end0, shape.inner, scratch, 0, room, P);
        for (int bottom1 = bottom0; bottom1 < end0; bottom1 += shape.inner) {
            const int end1 = min(bottom1 + shape.inner, end0);
            const real *from1 = end1 == end0 ? from0 : slot(scratch, shape, p, (end1 - bottom0) / shape.inner - 1);
            keep_between(in, shape, p, from1, bottom1, end1, KEEP, scratch, inner_slots, room, P);
            for (int bottom = bottom1; bottom < end1; bottom += KEEP) {
                const int top = min(bottom + KEEP, end1);
                const real *from = top == end1 ? from1 : slot(scratch, shape, p, inner_slots + (top - bottom1) / KEEP - 1);
                fetch(in, shape, p, from, room, P);
                store(kept + KEEP * N * N, LANES, P);
                for (int t = top; t > bottom; --t) {
                    const real lost = absorb_all(p, t, P);
                    if (p.group.lane == 0) lost_digits[t - bottom - 1] = lost;
                    store(kept + (t - bottom - 1) * N * N, LANES, P);
                    if (t > bottom + 1) step_back(p, t, P);
                }
                __syncwarp(p.group.mask);
                for (int t = bottom + 1; t <= top; ++t) {
                    recall(kept + (t < top ? t - bottom : KEEP) * N * N, LANES, P);
                    if (t < top) step_back(p, t + 1, P);
                    advance(p, shape, t, kept + (t - bottom - 1) * N * N, P, lost_digits[t - bottom - 1] > REFINE_ABOVE, s, out);
                }
            }
        }
    }

    unspread(out.a + p.index * n, n, lane, s.da);
    unspread(out.r_inv + p.index * m, m, lane, s.dr_inv);
    unspread(out.decay_B + p.index * m, m, lane, s.ddecay_B);
    unspread(out.decay_Q + p.index * n, n, lane, s.ddecay_Q);
    if (ONE_DECAY_A) {
        real total = 0;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) total += s.ddecay_A[r];
        total = p.group.sum(total);
        if (lane == 0) out.decay_A[p.index] = total;
    } else {
        unspread(out.decay_A + p.index * n, n, lane, s.ddecay_A);
    }
    real full[N], full2[N];
    p.group.gather(s.h, s.h2, full, full2);
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int k = 0; k < N; ++k) {
            P[r][k] = (s.h[r] * full2[k] + s.h2[r] * full[k]) / 2;
            s.dQ[r][k] /= 2;
        }
    write(out.Qf, shape, n, p, room, STRETCH, P);
    write(out.Q, shape, n, p, room, STRETCH, s.dQ);
    write(out.B, shape, m, p, room, STRETCH, s.dB);
}
