// What kernels over many small problems have in common: problems that neighbouring lanes of a warp share, vectors
// spread over those lanes, matrices that the lanes of a warp read and write together, and B and Q in shared memory, once
// for each token that a block touches.
//
// Set by the compiler: N, M (padded sizes), LANES (that share a problem), THREADS, SHARED_B, SHARED_Q, ONE_DECAY_A, and
// real (float or double).

#define ROWS (N / LANES)                   // states of a lane
#define ACTIONS ((M + LANES - 1) / LANES)  // actions of a lane
#define GROUPS (THREADS / LANES)
#define WIDEST (N > M ? N : M)
#define ACTION_ROWS (LANES * ACTIONS)      // rows of B transposed, if every lane has as many
// Shared memory, in entries, sized so that neighbouring groups do not wait for the same banks. The launcher computes
// the same.
#define TURN (3 * N + M > 2 * WIDEST ? 3 * N + M : 2 * WIDEST)  // vectors of one exchange
#define EXCHANGE ((2 * TURN + 31) / 32 * 32 + 4)                // of a group: two of those
#define ROOM (N * WIDEST + 4)                                   // of a group: a matrix
#define B_SIZE (N * M + 4)                                      // of a token
#define BT_SIZE (ACTION_ROWS * N + 4)
#define Q_SIZE (N * N + 4)

struct alignas(4 * sizeof(real)) four { real x[4]; };

struct Inputs {
    const real *a, *B, *Q, *Qf, *r_inv, *decay_A, *decay_B, *decay_Q, *h0;
};

struct Shape {
    long long problems;
    int heads, n, m, horizon;
};

__device__ __forceinline__ real exponential(real x) { return sizeof(real) == 4 ? (real)expf((float)x) : (real)exp((double)x); }

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

template <int SIZE>
__device__ __forceinline__ real dot(const real (&x)[SIZE], const real (&y)[SIZE]) {
    real even = 0, odd = 0;
#pragma unroll
    for (int k = 0; k < SIZE; k += 2) {
        even += x[k] * y[k];
        odd += x[k + 1] * y[k + 1];
    }
    return even + odd;
}

// (..., size) spread over the lanes, COUNT entries each, zero past the end
template <int COUNT>
__device__ __forceinline__ void spread(const real *from, int size, int lane, real (&to)[COUNT]) {
#pragma unroll
    for (int r = 0; r < COUNT; ++r) {
        const int k = lane * COUNT + r;
        to[r] = k < size ? from[k] : 0;
    }
}

template <int COUNT>
__device__ __forceinline__ void unspread(real *to, int size, int lane, const real (&from)[COUNT]) {
#pragma unroll
    for (int r = 0; r < COUNT; ++r) {
        const int k = lane * COUNT + r;
        if (k < size) to[k] = from[r];
    }
}

// The problems of a warp, whose matrices its lanes read and write together: side by side in global memory, `apart`
// entries from one to the next in shared memory. Problems past the end take no part.
struct Warp {
    int own, count, lanes;  // this problem's place among them, how many there are, and how many lanes they have
    unsigned mask;
    long long first;
    __device__ Warp(long long index, const Shape &shape) {
        own = threadIdx.x % 32 / LANES;
        first = index - own;
        count = (int)min((long long)(32 / LANES), shape.problems - first);
        lanes = count * LANES;
        mask = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1;
    }

    // an n x columns matrix of every problem into its room, N x COLUMNS, zero past the end
    template <int COLUMNS>
    __device__ __forceinline__ void read(const real *from, int n, int columns, real *room, int apart) const {
        real *rooms = room - own * apart;
        from += first * n * columns;
        __syncwarp(mask);
        for (int k = threadIdx.x % 32; k < count * N * COLUMNS; k += lanes) {
            const int i = k / COLUMNS % N, j = k % COLUMNS, which = k / (N * COLUMNS);
            const bool inside = i < n && j < columns;
            rooms[which * apart + i * COLUMNS + j] = inside ? from[((long long)which * n + i) * columns + j] : 0;
        }
        __syncwarp(mask);
    }

    // and out of it, or its symmetric part (the same to the bit on both sides)
    template <int COLUMNS, bool SYMMETRIC = false>
    __device__ __forceinline__ void write(real *to, int n, int columns, const real *room, int apart) const {
        const real *rooms = room - own * apart;
        to += first * n * columns;
        __syncwarp(mask);
        for (int k = threadIdx.x % 32; k < count * N * COLUMNS; k += lanes) {
            const int i = k / COLUMNS % N, j = k % COLUMNS, which = k / (N * COLUMNS);
            real value = rooms[which * apart + i * COLUMNS + j];
            if (SYMMETRIC) value = (value + rooms[which * apart + j * COLUMNS + i]) / 2;
            if (i < n && j < columns) to[((long long)which * n + i) * columns + j] = value;
        }
        __syncwarp(mask);
    }
};

struct Problem {
    long long index;
    unsigned mask;              // of the lanes that share the problem, which always move together
    int lane;                   // within them
    int turn;                   // where the exchange is written next: two places by turns, so one barrier is enough
    real *exchange, *room;      // shared memory of this problem
    const real *B, *Bt, *Q;     // and of its token
    real a[ROWS], decay_A[ROWS], decay_Q[ROWS], r_inv[ACTIONS], decay_B[ACTIONS];

    __device__ int row(int r) const { return lane * ROWS + r; }
    __device__ real sum(real x) const {
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(mask, x, step, LANES);
        return x;
    }
    // two spread vectors, COUNT entries a lane, in full
    template <int COUNT, int SIZE>
    __device__ __forceinline__ void gather(const real (&x)[COUNT], const real (&y)[COUNT], real (&full)[SIZE], real (&full2)[SIZE]) {
        real *first = exchange + turn, *second = first + WIDEST;
        turn = TURN - turn;
        if (lane * COUNT < SIZE) {
            save(first + lane * COUNT, x);
            save(second + lane * COUNT, y);
        }
        __syncwarp(mask);
        load(first, full);
        load(second, full2);
    }
};

// Where entry k of a matrix lies in shared memory that is read four entries at a time: either row after row, or, if
// every lane reads OWN rows of its own, with the fours of neighbouring lanes next to each other.
template <bool APART, int OWN, int COLUMNS>
__device__ __forceinline__ void place(int k, int &i, int &j) {
    if (APART) {
        const int lane = k / 4 % LANES, part = k / 4 / LANES;
        i = lane * OWN + part / (COLUMNS / 4);
        j = part % (COLUMNS / 4) * 4 + k % 4;
    } else {
        i = k / COLUMNS;
        j = k % COLUMNS;
    }
}

// row r of this lane, of a matrix that lies apart
template <int COLUMNS>
__device__ __forceinline__ void load_own(const real *matrix, int lane, int r, real (&row)[COLUMNS]) {
#pragma unroll
    for (int k = 0; k < COLUMNS / 4; ++k) {
        const four part = reinterpret_cast<const four *>(matrix)[(r * (COLUMNS / 4) + k) * LANES + lane];
#pragma unroll
        for (int i = 0; i < 4; ++i) row[4 * k + i] = part.x[i];
    }
}

// Bring B and Q of all that this block works on into shared memory, and set the problem up. Every thread takes part;
// the answer is whether this thread has a problem to work on. Going forward, the lanes read the same row of B' or Q at
// a time; going backward, each its own rows of B, B' and Q.
template <bool BACKWARD>
__device__ bool set_up(const Inputs &in, const Shape &shape, real *memory, Problem &p) {
    const int in_block = threadIdx.x / LANES, n = shape.n, m = shape.m;
    p.exchange = memory + in_block * EXCHANGE;
    p.room = memory + GROUPS * EXCHANGE + in_block * ROOM;
    p.turn = 0;
    memory += GROUPS * (EXCHANGE + ROOM);
    const long long first = (long long)blockIdx.x * GROUPS;
    const long long last = min(first + (long long)GROUPS, shape.problems) - 1;
    const long long token = first / shape.heads;
    const int tokens = (int)(last / shape.heads - token) + 1, owners = (int)(last - first) + 1;
    const int of_B = SHARED_B ? tokens : owners, of_Q = SHARED_Q ? tokens : owners;
    real *Bt = memory, *Q = Bt + of_B * BT_SIZE, *B = Q + of_Q * Q_SIZE;

    const real *B_from = in.B + (SHARED_B ? token : first) * n * m;
    for (int k = threadIdx.x; k < of_B * ACTION_ROWS * N; k += THREADS) {
        const int which = k / (ACTION_ROWS * N), at = k % (ACTION_ROWS * N);
        int i, j;
        place<BACKWARD, ACTIONS, N>(at, j, i);
        Bt[which * BT_SIZE + at] = i < n && j < m ? B_from[(long long)which * n * m + i * m + j] : 0;
    }
    if (BACKWARD) {
        for (int k = threadIdx.x; k < of_B * N * M; k += THREADS) {
            const int which = k / (N * M), at = k % (N * M);
            int i, j;
            place<BACKWARD, ROWS, M>(at, i, j);
            B[which * B_SIZE + at] = i < n && j < m ? B_from[(long long)which * n * m + i * m + j] : 0;
        }
    }
    const real *Q_from = in.Q + (SHARED_Q ? token : first) * n * n;
    for (int k = threadIdx.x; k < of_Q * N * N; k += THREADS) {
        const int which = k / (N * N), at = k % (N * N);
        const real *matrix = Q_from + (long long)which * n * n;
        int i, j;
        place<BACKWARD, ROWS, N>(at, i, j);
        Q[which * Q_SIZE + at] = i < n && j < n ? (matrix[i * n + j] + matrix[j * n + i]) / 2 : 0;
    }
    __syncthreads();

    p.index = first + in_block;
    p.lane = threadIdx.x % LANES;
    p.mask = LANES == 32 ? 0xffffffffu : ((1u << LANES) - 1) << (threadIdx.x % 32 / LANES * LANES);
    if (p.index >= shape.problems) return false;
    const int own_token = (int)(p.index / shape.heads - token);
    const int B_of = SHARED_B ? own_token : in_block, Q_of = SHARED_Q ? own_token : in_block;
    p.B = B + B_of * B_SIZE;
    p.Bt = Bt + B_of * BT_SIZE;
    p.Q = Q + Q_of * Q_SIZE;

    spread(in.a + p.index * n, n, p.lane, p.a);
    spread(in.decay_Q + p.index * n, n, p.lane, p.decay_Q);
    spread(in.r_inv + p.index * m, m, p.lane, p.r_inv);
    spread(in.decay_B + p.index * m, m, p.lane, p.decay_B);
    if (ONE_DECAY_A) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) p.decay_A[r] = in.decay_A[p.index];
    } else {
        spread(in.decay_A + p.index * n, n, p.lane, p.decay_A);
    }
    return true;
}
