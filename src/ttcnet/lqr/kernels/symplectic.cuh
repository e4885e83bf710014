// A problem of the symplectic iteration as its lanes see it, and B and Q in shared memory, once for each token that a
// block touches.

#define ACTION_ROWS (LANES * ACTIONS)      // rows of B transposed, if every lane has as many
// Shared memory, in entries, sized so that neighbouring groups do not wait for the same banks. The launcher computes
// the same.
#define TURN (3 * N + M > 2 * WIDEST ? 3 * N + M : 2 * WIDEST)  // vectors of one exchange
#define EXCHANGE ((2 * TURN + 31) / 32 * 32 + 4)                // of a group: two of those
#define B_SIZE (N * M + 4)                                      // of a token
#define BT_SIZE (ACTION_ROWS * N + 4)
#define Q_SIZE (N * N + 4)

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
