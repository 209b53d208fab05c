// Enough of CUDA to run a kernel on the CPU, one block after another. The threads of a block are
// coroutines, and their warps take turns at random. A warp runs until all of its threads wait at a
// barrier: at __syncthreads for all warps of the block, at a shuffle only for one another.
//
// A coroutine starts by setcontext and goes on by longjmp: swapcontext would make a system call each
// time.

#include <math.h>
#include <setjmp.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static

static struct { unsigned x; } threadIdx, blockIdx, blockDim, gridDim;

namespace cpu {

enum Barrier { BEGIN, PASSED, SHUFFLE_SENT, SHUFFLE_RECEIVED, SYNCTHREADS, END };

struct Thread {
    ucontext_t start;
    jmp_buf rest;
    std::vector<char> stack = std::vector<char>(1 << 16);
    Barrier waits_at;
    unsigned long long sent;
};

static std::vector<Thread> threads;
static std::function<void()> kernel;
static jmp_buf scheduler;
static std::mt19937 random(0);

static void wait_at(Barrier barrier)
{
    Thread& self = threads[threadIdx.x];
    self.waits_at = barrier;
    if (!_setjmp(self.rest)) _longjmp(scheduler, 1);
}

static void body()
{
    kernel();
    wait_at(END);
}

// Let a thread run to its next barrier.
static void run_thread(Thread& thread)
{
    if (_setjmp(scheduler)) return;
    if (thread.waits_at == BEGIN)
        setcontext(&thread.start);
    else
        _longjmp(thread.rest, 1);
}

// Let all threads of a warp run to their next barrier.
static void run_warp(unsigned first)
{
    unsigned order[32];
    std::iota(order, order + 32, first);
    std::shuffle(order, order + 32, random);
    for (unsigned k : order) {
        threadIdx.x = k;
        run_thread(threads[k]);
    }
}

// Returns an error, or null.
static const char* run_block()
{
    for (Thread& thread : threads) {
        getcontext(&thread.start);
        thread.start.uc_stack.ss_sp = thread.stack.data();
        thread.start.uc_stack.ss_size = thread.stack.size();
        makecontext(&thread.start, body, 0);
        thread.waits_at = BEGIN;
    }
    while (true) {
        std::vector<unsigned> ready;
        bool together = true;
        for (unsigned k = 0; k < threads.size(); k++) {
            if (threads[k].waits_at != threads[k / 32 * 32].waits_at)
                return "the threads of a warp wait at different barriers";
            together = together && threads[k].waits_at == threads[0].waits_at;
            if (k % 32 == 0 && threads[k].waits_at < SYNCTHREADS) ready.push_back(k);
        }
        if (together && threads[0].waits_at == END) return nullptr;
        if (together && threads[0].waits_at == SYNCTHREADS)
            for (Thread& thread : threads) thread.waits_at = PASSED;
        else if (ready.empty())
            return "the threads of a block wait at different barriers";
        else
            run_warp(ready[random() % ready.size()]);
    }
}

// Run a kernel on arguments, given by their addresses and sizes. Returns an error, or null.
template <class... A, size_t... K>
const char* run(void (*function)(A...), unsigned blocks, unsigned block,
                const void* const* values, const size_t* sizes, std::index_sequence<K...>)
{
    if (!((sizes[K] == sizeof(A)) && ...)) return "an argument has another size";
    std::tuple<A...> arguments;
    (memcpy((void*)&std::get<K>(arguments), values[K], sizeof(A)), ...);
    kernel = [&] { std::apply(function, arguments); };
    threads.resize(block);
    gridDim.x = blocks, blockDim.x = block;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        if (const char* error = run_block()) return error;
    return nullptr;
}

template <class... A>
const char* launch(void (*function)(A...), unsigned blocks, unsigned block,
                   const void* const* values, const size_t* sizes)
{
    return run(function, blocks, block, values, sizes, std::index_sequence_for<A...>());
}

}  // namespace cpu

static void __syncthreads() { cpu::wait_at(cpu::SYNCTHREADS); }

template <class T> static T __shfl_xor_sync(unsigned, T x, int distance)
{
    memcpy(&cpu::threads[threadIdx.x].sent, &x, sizeof(T));
    cpu::wait_at(cpu::SHUFFLE_SENT);
    memcpy(&x, &cpu::threads[threadIdx.x ^ distance].sent, sizeof(T));
    cpu::wait_at(cpu::SHUFFLE_RECEIVED);
    return x;
}
