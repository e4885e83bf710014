// Shared by the kernels over many small problems: vectors spread over the neighbouring lanes of a warp that share a problem,
// and matrices that all lanes of a warp read and write together.
//
// Set by the compiler: N, M (padded sizes), LANES (that share a problem), THREADS, and real (float or double).

#define ROWS (N / LANES)                   // states of a lane
#define ACTIONS ((M + LANES - 1) / LANES)  // actions of a lane
#define GROUPS (THREADS / LANES)
#define WIDEST (N > M ? N : M)
#define ROOM (N * WIDEST + 16)             // shared memory, in entries, that a problem has for a matrix

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

// Gradients may come in parts, one for each stretch of the horizon: the first is written, later ones are added.
__device__ __forceinline__ void put(real *to, bool first_part, real value) { *to = first_part ? value : *to + value; }

template <int COLUMNS, bool SYMMETRIC>
__device__ __forceinline__ real entry(const real *matrix, int i, int j) {
    return SYMMETRIC ? (matrix[i * COLUMNS + j] + matrix[j * COLUMNS + i]) / 2 : matrix[i * COLUMNS + j];
}

// The problems of a warp, whose matrices its lanes read and write together: side by side in global memory, ROOM
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
    __device__ __forceinline__ void read(const real *from, int n, int columns, real *room) const {
        real *rooms = room - own * ROOM;
        from += first * n * columns;
        __syncwarp(mask);
        for (int k = threadIdx.x % 32; k < count * N * COLUMNS; k += lanes) {
            const int i = k / COLUMNS % N, j = k % COLUMNS, which = k / (N * COLUMNS);
            const bool inside = i < n && j < columns;
            rooms[which * ROOM + i * COLUMNS + j] = inside ? from[((long long)which * n + i) * columns + j] : 0;
        }
        __syncwarp(mask);
    }

    // and out of it, or its symmetric part (the same to the bit on both sides); the first part is written, later ones are
    // added
    template <int COLUMNS, bool SYMMETRIC = false>
    __device__ __forceinline__ void write(real *to, int n, int columns, const real *room, bool first_part = true) const {
        const real *rooms = room - own * ROOM;
        to += first * n * columns;
        __syncwarp(mask);
        for (int k = threadIdx.x % 32; k < count * N * COLUMNS; k += lanes) {
            const int i = k / COLUMNS % N, j = k % COLUMNS, which = k / (N * COLUMNS);
            const real value = entry<COLUMNS, SYMMETRIC>(rooms + which * ROOM, i, j);
            if (i < n && j < columns) put(to + ((long long)which * n + i) * columns + j, first_part, value);
        }
        __syncwarp(mask);
    }
};
