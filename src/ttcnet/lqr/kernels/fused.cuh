// The stable recursion behind plan(), forward and backward, for many small problems at once.
// The mathematics is that of reference.py beside this folder; the documentation has the counts and the measurements.
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
// block), HALVES (whether the lower half of a symmetric matrix is all that is kept of it), FOURS (whether four actions are
// absorbed together where a lane has one row), and real (float or double).

// Shared memory of a group, in entries, sized so that neighbouring groups do not wait for the same banks:
#define B_ROW (N + 4)                                     // of a row of B transposed, which lanes read one each
#define EXCHANGE (((FOURS ? 12 : 6) * (WIDEST + 4) + 31) / 32 * 32 + 4)  // through which its lanes tell each other vectors

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
    // two spread vectors, COUNT entries a lane, told to all lanes; the second lies WIDEST + 4 entries behind the first
    template <int COUNT>
    __device__ __forceinline__ const real *tell(const real (&x)[COUNT], const real (&y)[COUNT]) {
        real *first = exchange + turn, *second = first + WIDEST + 4;
        turn = 2 * (WIDEST + 4) - turn;
        if (lane * COUNT < WIDEST) {
            save(first + lane * COUNT, x);
            save(second + lane * COUNT, y);
        }
        __syncwarp(mask);
        return first;
    }
    // two spread vectors in full
    template <int COUNT, int SIZE>
    __device__ __forceinline__ void gather(const real (&x)[COUNT], const real (&y)[COUNT], real (&full)[SIZE], real (&full2)[SIZE]) {
        const real *first = tell(x, y);
        load(first, full);
        load(first + WIDEST + 4, full2);
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
    // with FOURS, two times four vectors more
    __device__ real *fours(int which) const { return exchange + 4 * (1 + which) * (WIDEST + 4); }
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
    __device__ real diagonal_of_Q(int r) const {
        const int k = row(r);
        return Q[((r * (N / 4) + k / 4) * LANES + group.lane) * 4 + k % 4];
    }
    // the r-th entry of the owner of action j
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
    real *Bt = memory, *Q = memory + (long long)of_B * M * B_ROW;

    const real *B_from = in.B + (SHARED_B ? token : first) * n * m;
    for (int k = threadIdx.x; k < of_B * M * N; k += THREADS) {
        int i = k % N, j = k / N % M;
        Bt[k / N * B_ROW + i] = i < n && j < m ? B_from[(long long)(k / (M * N)) * n * m + i * m + j] : 0;
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
    p.Bt = Bt + (SHARED_B ? own_token : in_block) * M * B_ROW;
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

// The symmetric part of a matrix in the room.
__device__ __forceinline__ void symmetric_part(const Problem &p, const real *room, real (&P)[ROWS][N]) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        load(room + p.row(r) * N, P[r]);
#pragma unroll
        for (int k = 0; k < N; ++k) P[r][k] = (P[r][k] + room[k * N + p.row(r)]) / 2;
    }
}

// Symmetric matrices that are kept in global memory, KEPT_SIZE entries each, `which` by `which`, then problem by problem.
// Rows are cut into fours, in an order that suits any number of lanes: neighbouring lanes find neighbouring fours. With
// HALVES, the matrix is cut into blocks of 4 x 4, column by column of blocks, and those above the diagonal are left out.
#define KEPT_SIZE (HALVES ? 2 * N * (N / 4 + 1) : N * N)

// where a row of a block is, in fours, from the row's place in block 0
__device__ __forceinline__ constexpr int block_at(int block) {
    return HALVES ? 4 * (block * (N / 4) - block * (block + 1) / 2) : block * N;
}
__device__ __forceinline__ int place(unsigned row) { return HALVES ? row : row % 4 * (N / 4) + row / 4; }

__device__ __forceinline__ void store(real *memory, int which, const Shape &shape, const Problem &p, const real (&P)[ROWS][N]) {
    real *to = memory + (which * shape.problems + p.index) * KEPT_SIZE;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        four *own = reinterpret_cast<four *>(to) + place(p.row(r));
#pragma unroll
        for (int k = 0; k < N / 4; ++k) {
            four part;
#pragma unroll
            for (int i = 0; i < 4; ++i) part.x[i] = P[r][4 * k + i];
            if (!HALVES || 4 * k <= p.row(r)) own[block_at(k)] = part;
        }
    }
}

__device__ __forceinline__ void recall(const real *memory, int which, const Shape &shape, const Problem &p, real (&P)[ROWS][N]) {
    const real *from = memory + (which * shape.problems + p.index) * KEPT_SIZE;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const unsigned row = p.row(r);
        const four *own = reinterpret_cast<const four *>(from) + place(row);
        const real *mirrored = from + 4 * block_at(row / 4) + row % 4;  // this row's column in the blocks of its block's column
#pragma unroll
        for (int k = 0; k < N / 4; ++k) {
            if (!HALVES || 4 * k <= (int)row) {
                const four part = own[block_at(k)];
#pragma unroll
                for (int i = 0; i < 4; ++i) P[r][4 * k + i] = part.x[i];
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i) P[r][4 * k + i] = mirrored[16 * k + 4 * i];
            }
        }
    }
}

// A matrix that will be recalled soon: into the cache, each lane some of its lines.
__device__ __forceinline__ void prefetch(const real *memory, int which, const Shape &shape, const Problem &p) {
    const char *from = reinterpret_cast<const char *>(memory + (which * shape.problems + p.index) * KEPT_SIZE);
    for (int line = p.group.lane; line * 128 < KEPT_SIZE * (int)sizeof(real); line += LANES)
        asm volatile("prefetch.global.L1 [%0];" ::"l"(from + line * 128));
}

// A value matrix P that was kept, or Qf, which is in the room already.
__device__ __forceinline__ void fetch(const real *kept, const real *room, const Shape &shape, const Problem &p, real (&P)[ROWS][N]) {
    if (kept) recall(kept, 0, shape, p, P);
    else symmetric_part(p, room, P);
}

#define PROBLEMS                                                                                                     \
    const real *a, const real *B, const real *Q, const real *Qf, const real *r_inv, const real *decay_A,             \
    const real *decay_B, const real *decay_Q, const real *h0, long long problems, int heads, int n, int m, int horizon
#define UNPACK                                                                                                       \
    const Inputs in = {a, B, Q, Qf, r_inv, decay_A, decay_B, decay_Q, h0};                                           \
    const Shape shape = {problems, heads, n, m, horizon};
