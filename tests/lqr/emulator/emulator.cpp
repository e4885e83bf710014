// Runs the CUDA kernels on the CPU, unchanged, one fiber a thread, so that they can be tested without a GPU.
// Compiled by tests/lqr/emulator/__init__.py with the same macros as NVRTC would get, and KERNEL_SOURCE and KERNELS.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __noinline__
#define __align__(bytes)
#define __launch_bounds__(threads, blocks)
#define asm while (false) asm  // instructions of a GPU, such as prefetching, that change no value
#define rsqrtf(x) (1.0f / std::sqrt(x))
static double __dadd_rn(double x, double y) { return x + y; }
static double __dmul_rn(double x, double y) { return x * y; }
static float __fmul_rn(float x, float y) { return x * y; }
using std::exp;
using std::fma;
using std::max;
using std::min;

struct Index { unsigned x; };
static Index threadIdx, blockIdx;
alignas(64) static real memory[1 << 20];

static ucontext_t scheduler, fibers[THREADS];
static bool ended[THREADS];
static std::vector<char> stacks(THREADS * (1 << 18));
static real slots[THREADS];
struct Barrier { unsigned count, round; };
static Barrier of_block;
static std::map<std::pair<unsigned, unsigned>, Barrier> of_lanes;  // by warp and mask
static std::function<void()> kernel;
static bool moved;  // whether any thread got on since the scheduler last looked

static void yield() {
    const unsigned self = threadIdx.x;
    swapcontext(&fibers[self], &scheduler);
    threadIdx.x = self;
}

static void wait(Barrier &barrier, unsigned expected) {
    const unsigned mine = barrier.round;
    if (++barrier.count == expected) {
        barrier.count = 0;
        ++barrier.round;
        moved = true;
    }
    while (barrier.round == mine) yield();
}

static void __syncthreads() { wait(of_block, THREADS); }

static void __syncwarp(unsigned mask) {
    if (!(mask >> threadIdx.x % 32 & 1)) std::abort();  // a lane outside its own mask
    wait(of_lanes[{threadIdx.x / 32, mask}], __builtin_popcount(mask));
}

static real exchange(unsigned mask, real value, unsigned source) {
    slots[threadIdx.x] = value;
    __syncwarp(mask);
    if (!(mask >> source % 32 & 1)) std::abort();  // a read from a lane that takes no part
    const real got = slots[source];
    __syncwarp(mask);
    return got;
}

static real __shfl_sync(unsigned mask, real value, int source, int width) {
    return exchange(mask, value, threadIdx.x / width * width + source % width);
}

static real __shfl_xor_sync(unsigned mask, real value, int step, int) { return exchange(mask, value, threadIdx.x ^ step); }

#include KERNEL_SOURCE

static void fiber() {
    kernel();
    ended[threadIdx.x] = true;
    swapcontext(&fibers[threadIdx.x], &scheduler);
}

static void run(unsigned blocks, unsigned shared, std::function<void()> body) {
    kernel = body;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        for (auto &value : memory) value = NAN;
        for (int k = 0; k < THREADS; ++k) {
            getcontext(&fibers[k]);
            fibers[k].uc_stack.ss_sp = &stacks[k << 18];
            fibers[k].uc_stack.ss_size = 1 << 18;
            fibers[k].uc_link = nullptr;
            makecontext(&fibers[k], fiber, 0);
            ended[k] = false;
        }
        bool first_round = true;
        for (int alive = THREADS; alive > 0;) {
            moved = false;
            for (int k = 0; k < THREADS; ++k) {
                if (ended[k]) continue;
                threadIdx.x = k;
                swapcontext(&scheduler, &fibers[k]);
                alive -= ended[k];
                moved |= ended[k];
            }
            if (!moved && !first_round) {
                std::fprintf(stderr, "deadlock: threads wait for others that do not come\n");
                std::abort();
            }
            first_round = false;
        }
        for (unsigned k = shared; k < sizeof(memory) / sizeof(real); ++k)
            if (!std::isnan(memory[k])) {
                std::fprintf(stderr, "wrote past the %u numbers of shared memory that it asked for\n", shared);
                std::abort();
            }
    }
}

// Arguments have eight bytes each, and are converted to the kernel's types.
template <typename T>
static T argument(unsigned long long value) {
    if constexpr (std::is_pointer_v<T>) return reinterpret_cast<T>(value);
    else return static_cast<T>(value);
}

template <typename... Types, size_t... places>
static void call(void (*kernel)(Types...), const unsigned long long *arguments, std::index_sequence<places...>) {
    kernel(argument<Types>(arguments[places])...);
}

template <typename... Types>
static void launch(void (*kernel)(Types...), unsigned blocks, unsigned shared, const unsigned long long *arguments) {
    run(blocks, shared, [=] { call(kernel, arguments, std::index_sequence_for<Types...>()); });
}

// KERNELS is TRY(name) for each kernel of the source.
#define TRY(name) if (!std::strcmp(wanted, #name)) return launch(name, blocks, shared, arguments), true;
extern "C" bool emulate(const char *wanted, unsigned blocks, unsigned shared, const unsigned long long *arguments) {
    KERNELS
    return false;
}
