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
// Set by the compiler: N, M (padded sizes), LANES, THREADS, BLOCKS (that a multiprocessor must hold at once), SHARED_B,
// SHARED_Q, ONE_DECAY_A, SUMMED (neighbouring heads whose gradients of a shared B or Q are added up here, 1 or all of a
// block), and real (float or double).

#define ROWS (N / LANES)
#define ACTIONS ((M + LANES - 1) / LANES)
#define GROUPS (THREADS / LANES)
#define TURN (ACTIONS > 1 ? ACTIONS : 2)  // actions between two passes of a loop over them
#define WIDEST (N > M ? N : M)
// Shared memory of a group, in entries, sized so that neighbouring groups do not wait for the same banks:
#define EXCHANGE ((6 * (WIDEST + 4) + 31) / 32 * 32 + 4)  // through which its lanes tell each other vectors
#define ROOM (N * WIDEST + 16)                            // for one matrix
#define REFINE_ABOVE 4                    // 1 + w s from which on P° has too few digits left to be used alone

struct alignas(4 * sizeof(real)) four { real x[4]; };

struct Inputs {
    const real *a, *B, *Q, *Qf, *r_inv, *decay_A, *decay_B, *decay_Q, *h0;
};

struct Shape {
    long long problems;
    int heads, n, m, horizon;
};

__device__ __forceinline__ real exponential(real x) { return sizeof(real) == 4 ? (real)expf((float)x) : (real)exp((double)x); }
// sqrt(w / d), for w >= 0, or NaN if d < 0: then the problem has no minimum. In float, one approximate reciprocal root, made
// exact by one step of Newton's; w = 0 comes with d = 1.
__device__ __forceinline__ real root_of_ratio(real w, real d) {
    if (sizeof(real) == 8) return (real)sqrt((double)(w / d));
    const real x = fma(w, d, (real)1e-37), guess = (real)rsqrtf((float)x);
    return w * (guess * ((real)1.5 - (real)0.5 * x * guess * guess));
}

// x / d, or NaN unless d > 0
__device__ __forceinline__ real share_of(real x, real d) { return d > 0 ? x / d : (real)rsqrtf(-1.0f); }

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
    real *exchange;  // shared memory: two pairs of vectors, used in turn, so that one barrier an exchange is enough, and a
                     // third pair that stays
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
    // two spread vectors of actions, for all lanes to read from `actions()` until others are shared
    __device__ __forceinline__ void share(const real (&x)[ACTIONS], const real (&y)[ACTIONS]) const {
        if (lane * ACTIONS < M) {
            save(actions() + lane * ACTIONS, x);
            save(actions() + WIDEST + 4 + lane * ACTIONS, y);
        }
        __syncwarp(mask);
    }
    __device__ real *actions() const { return exchange + 4 * (WIDEST + 4); }
};

// Everything a lane knows of its problem that does not change over time.
struct Problem {
    Group group;
    long long index;                            // of the problem
    const real *Bt, *Q;                         // in shared memory: B transposed, and Q as the lanes read it
    real a[ROWS], decay_A[ROWS], decay_Q[ROWS], r_inv[ACTIONS], decay_B[ACTIONS];

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

    __device__ void A_fade(int t, real (&scale)[ROWS]) const {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) scale[r] = exponential(-t * decay_A[r]);
    }
    __device__ void A_at(int t, real (&A)[ROWS]) const {
        A_fade(t, A);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) A[r] = 1 + A[r] * a[r];
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
    if (ONE_DECAY_A) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) p.decay_A[r] = in.decay_A[p.index];
    } else {
        spread(in.decay_A + p.index * n, n, lane, p.decay_A);
    }
    return true;
}

// The problems of a warp, to read and write their matrices together: side by side in global memory, ROOM entries from one
// to the next in shared memory.
struct Warp {
    int own, count, lanes;  // this problem's place among them, how many there are, and how many lanes they have
    unsigned mask;
    long long first;
    __device__ Warp(const Problem &p, const Shape &shape) {
        own = threadIdx.x % 32 / LANES;
        first = p.index - own;
        count = (int)min((long long)(32 / LANES), shape.problems - first);
        lanes = count * LANES;
        mask = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1;
    }
};

// Bring Qf of the problems of this warp into their rooms.
__device__ void bring_Qf(const Inputs &in, const Shape &shape, const Problem &p, real *room) {
    const Warp warp(p, shape);
    const int n = shape.n;
    const real *Qf = in.Qf + warp.first * n * n;
    real *rooms = room - warp.own * ROOM;
    __syncwarp(warp.mask);
    for (int k = threadIdx.x % 32; k < warp.count * N * N; k += warp.lanes) {
        const int i = k / N % N, j = k % N, which = k / (N * N);
        rooms[which * ROOM + i * N + j] = i < n && j < n ? Qf[(long long)which * n * n + i * n + j] : 0;
    }
    __syncwarp(warp.mask);
}

// The symmetric part of a matrix in the room.
__device__ __forceinline__ void symmetric_part(const Problem &p, const real *room, real (&P)[ROWS][N]) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        load(room + p.row(r) * N, P[r]);
#pragma unroll
        for (int k = 0; k < N; ++k) P[r][k] = (P[r][k] + room[k * N + p.row(r)]) / 2;
    }
}

// Gradients come in pieces, one for each stretch of the horizon: the first is written, later ones are added.
__device__ __forceinline__ void put(real *to, bool first, real value) { *to = first ? value : *to + value; }

// A matrix of n rows and `columns` (of COLUMNS) columns for every problem, or, if SUM > 1, its sum over the problems of a
// block, which are heads of one token.
template <int SUM, int COLUMNS>
__device__ __forceinline__ void write(real *to, bool first, const Shape &shape, int columns, const Problem &p, real *room, const real (&matrix)[ROWS][COLUMNS]) {
    const Warp warp(p, shape);
    const int n = shape.n;
    __syncwarp(warp.mask);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) save(room + p.row(r) * COLUMNS, matrix[r]);
    if (SUM > 1) {
        __syncthreads();
        const real *rooms = room - threadIdx.x / LANES * ROOM;
        to += (long long)blockIdx.x * n * columns;
        for (int k = threadIdx.x; k < N * COLUMNS; k += THREADS) {
            const int i = k / COLUMNS, j = k % COLUMNS;
            real total = 0;
#pragma unroll
            for (int which = 0; which < SUM; ++which) total += rooms[which * ROOM + k];
            if (i < n && j < columns) put(to + i * columns + j, first, total);
        }
        __syncthreads();
    } else {
        __syncwarp(warp.mask);
        const real *rooms = room - warp.own * ROOM;
        to += warp.first * n * columns;
        for (int k = threadIdx.x % 32; k < warp.count * N * COLUMNS; k += warp.lanes) {
            const int i = k / COLUMNS % N, j = k % COLUMNS, which = k / (N * COLUMNS);
            if (i < n && j < columns) put(to + ((long long)which * n + i) * columns + j, first, rooms[which * ROOM + i * COLUMNS + j]);
        }
    }
}

// Matrices that are kept in global memory, N * N entries each, `which` by `which`, then problem by problem. Rows are cut
// into fours, in an order that suits any number of lanes: neighbouring lanes find neighbouring fours.
__device__ __forceinline__ int place(int row, int four_of_row) { return four_of_row * N + row % 4 * (N / 4) + row / 4; }

__device__ __forceinline__ void store(real *memory, int which, const Shape &shape, const Problem &p, const real (&P)[ROWS][N]) {
    four *to = reinterpret_cast<four *>(memory + (which * shape.problems + p.index) * N * N);
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int k = 0; k < N / 4; ++k) {
            four part;
#pragma unroll
            for (int i = 0; i < 4; ++i) part.x[i] = P[r][4 * k + i];
            to[place(p.row(r), k)] = part;
        }
}

__device__ __forceinline__ void recall(const real *memory, int which, const Shape &shape, const Problem &p, real (&P)[ROWS][N]) {
    const four *from = reinterpret_cast<const four *>(memory + (which * shape.problems + p.index) * N * N);
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int k = 0; k < N / 4; ++k) {
            const four part = from[place(p.row(r), k)];
#pragma unroll
            for (int i = 0; i < 4; ++i) P[r][4 * k + i] = part.x[i];
        }
}

// A value matrix P that was kept, or Qf, which was brought into the room.
__device__ __forceinline__ void fetch(const real *kept, const real *room, const Shape &shape, const Problem &p, real (&P)[ROWS][N]) {
    if (kept) recall(kept, 0, shape, p, P);
    else symmetric_part(p, room, P);
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
    d = 1 + w * s;
    const real scale = root_of_ratio(w, d), k = scale * scale * cross;
    d2 = 1 + w2 * (s2 - k * cross);
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

// The actions of the first step: absorbed in order, what each saw kept in V, then decided in reverse order. P becomes P°,
// and the answer is the largest 1 + w s.
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
    return worst;
}

#define PROBLEMS                                                                                                     \
    const real *a, const real *B, const real *Q, const real *Qf, const real *r_inv, const real *decay_A,             \
    const real *decay_B, const real *decay_Q, const real *h0, long long problems, int heads, int n, int m, int horizon
#define UNPACK                                                                                                       \
    const Inputs in = {a, B, Q, Qf, r_inv, decay_A, decay_B, decay_Q, h0};                                           \
    const Shape shape = {problems, heads, n, m, horizon};

// Backward in time through steps top .. bottom + 1.
// end: P at step top; null is Qf. points: where to keep every `every`-th P in between (P at bottom + every is the first),
// or null. kept: where to keep P° of every step, and lost its largest 1 + w s, or null. u_out: the first actions, or null;
// wanted if bottom is 0.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) plan_forward(
    PROBLEMS, int bottom, int top, const real *end, int every, real *points, real *kept, real *lost, real *u_out) {
    UNPACK
    extern __shared__ __align__(16) real memory[];
    Problem p;
    real *room = memory + threadIdx.x / LANES * ROOM;
    if (!set_up(in, shape, memory + GROUPS * ROOM, p)) return;

    real P[ROWS][N], worst;
    if (!end) bring_Qf(in, shape, p, room);
    fetch(end, room, shape, p, P);
    __syncwarp(p.group.mask);
    const int lowest = u_out || kept ? bottom + 1 : bottom + every;
    for (int t = top; t > lowest; --t) {
        worst = absorb_all(p, t, P);
        if (kept) {
            store(kept, t - bottom - 1, shape, p, P);
            if (p.group.lane == 0) lost[(t - bottom - 1) * problems + p.index] = worst;
        }
        step_back(p, t, P);
        if (points && (t - 1 - bottom) % every == 0) store(points, (t - 1 - bottom) / every - 1, shape, p, P);
    }
    if (u_out) worst = decide(in, shape, p, room, P, u_out);
    else if (kept) worst = absorb_all(p, bottom + 1, P);
    if (kept) {
        store(kept, 0, shape, p, P);
        if (p.group.lane == 0) lost[p.index] = worst;
    }
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

// h += B e for the rows of this lane, where e is what was shared
__device__ __forceinline__ void push(const Problem &p, real (&h)[ROWS], real (&h2)[ROWS]) {
#pragma unroll
    for (int j = 0; j < M; j += 4) {
        real e[4], e2[4];
        load(p.group.actions() + j, e);
        load(p.group.actions() + WIDEST + 4 + j, e2);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            real b[ROWS];
            load(p.Bt + (j + k) * N + p.group.lane * ROWS, b);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                h[r] += b[r] * e[k];
                h2[r] += b[r] * e2[k];
            }
        }
    }
}

// Forward in time through steps bottom + 1 .. top of two closed loops, the problem and its adjoint (names with a 2); adds up
// gradients. kept, lost: P° of each of these steps and its largest 1 + w s. end: P at step top; null is Qf. g: the gradient
// of the first actions. state: h and h2 at step bottom, and then at step top.
//
// With λ = P° x at every step, x = A h and y = u / r_inv:  y = -B' λ,  h = x + B u,  and P h, the co-state that the gradients
// want, is A λ' + Q h where λ' = P°' A h is what the next step begins with.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) plan_backward(
    PROBLEMS, int bottom, int top, const real *end, const real *kept, const real *lost, const real *g, real *state, real *da,
    real *dB, real *dQ, real *dQf, real *dr_inv, real *ddecay_A, real *ddecay_B, real *ddecay_Q, real *dh0) {
    UNPACK
    extern __shared__ __align__(16) real memory[];
    Problem p;
    real *room = memory + threadIdx.x / LANES * ROOM;
    if (!set_up(in, shape, memory + GROUPS * ROOM, p)) return;
    if (!end) bring_Qf(in, shape, p, room);
    const int lane = p.group.lane;
    real *h_kept = state + p.index * 2 * N, *h2_kept = h_kept + N;

    real P[ROWS][N], full[N], full2[N];
    real h[ROWS], h2[ROWS], x[ROWS], x2[ROWS], lam[ROWS], lam2[ROWS], fade_A[ROWS], pull[ACTIONS];
    real of_a[ROWS], of_B[ROWS][M], of_Q[ROWS][N], of_r_inv[ACTIONS], of_decay_A[ROWS], of_decay_B[ACTIONS], of_decay_Q[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        of_a[r] = of_decay_A[r] = of_decay_Q[r] = 0;
#pragma unroll
        for (int j = 0; j < M; ++j) of_B[r][j] = 0;
#pragma unroll
        for (int k = 0; k < N; ++k) of_Q[r][k] = 0;
    }
#pragma unroll
    for (int r = 0; r < ACTIONS; ++r) of_r_inv[r] = of_decay_B[r] = pull[r] = 0;

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
    real forced[ROWS];
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
        const bool last = t == top;
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
        for (int pass = lost[(t - bottom - 1) * problems + p.index] > REFINE_ABOVE ? 0 : 1; pass < 2; ++pass) {
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
                        of_decay_Q[r] -= t * (faded[r] * Qh2 + faded2[r] * Qh);
#pragma unroll
                        for (int k = 0; k < N; ++k) of_Q[r][k] += faded[r] * full2[k] + faded2[r] * full[k];
                    }
                }
            }
            if (pass == 1) break;

            // what y misses by, and what that moves
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
            of_r_inv[r] -= y[r] * y2[r];
            of_decay_B[r] += t * p.r_inv[r] * (y[r] * y2[r] + (t == 1 ? -fade[r] * q2[r] : y2[r]) * y[r]);
            pull[r] = 0;
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            real u[4], u2[4];
            const real through = fade_A[r] * (lam[r] * h2[r] + lam2[r] * h[r]);
            of_a[r] += through;
            of_decay_A[r] -= t * p.a[r] * through;
#pragma unroll
            for (int j = 0; j < M; j += 4) {
                load(p.group.actions() + j, u);
                load(p.group.actions() + WIDEST + 4 + j, u2);
#pragma unroll
                for (int k = 0; k < 4; ++k) of_B[r][j + k] += lam[r] * u2[k] + lam2[r] * u[k];
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

    const bool first = bottom == 0;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
        if (p.row(r) < n) {
            const long long k = p.index * n + p.row(r);
            put(da + k, first, of_a[r]);
            put(ddecay_Q + k, first, of_decay_Q[r]);
            if (!ONE_DECAY_A) put(ddecay_A + k, first, of_decay_A[r]);
        }
#pragma unroll
    for (int r = 0; r < ACTIONS; ++r)
        if (p.action(r) < m) {
            put(dr_inv + p.index * m + p.action(r), first, of_r_inv[r]);
            put(ddecay_B + p.index * m + p.action(r), first, of_decay_B[r]);
        }
    if (ONE_DECAY_A) {
        real total = 0;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) total += of_decay_A[r];
        total = p.group.sum(total);
        if (lane == 0) put(ddecay_A + p.index, first, total);
    }
    if (top < horizon) {
        unspread(h_kept, N, lane, h);
        unspread(h2_kept, N, lane, h2);
    } else {
        p.group.gather(h, h2, full, full2);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int k = 0; k < N; ++k) P[r][k] = (h[r] * full2[k] + h2[r] * full[k]) / 2;
        write<1>(dQf, true, shape, n, p, room, P);
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int k = 0; k < N; ++k) of_Q[r][k] /= 2;
    write<SHARED_Q ? SUMMED : 1>(dQ, first, shape, n, p, room, of_Q);
    write<SHARED_B ? SUMMED : 1>(dB, first, shape, m, p, room, of_B);
}
