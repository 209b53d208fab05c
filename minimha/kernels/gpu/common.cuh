// What the kernels share. `cuda.py` puts this file in front of every source. The compiler is called
// with -Dreal=float or -Dreal=double.

#ifndef INFINITY  // CuPy compiles without math.h
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif

// The index of this thread among all threads of the grid, and how many threads there are.
// Neighbouring threads compute neighbouring entries, so that the GPU can combine their accesses to
// memory into a few large ones. If there are fewer threads than entries, thread i computes entries
// i, i + threads, i + 2 * threads, and so on.
__device__ long long this_thread() { return (long long)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ long long all_threads() { return (long long)gridDim.x * blockDim.x; }

// The larger number. Of a number and a NaN it is the number: a NaN reaches the sum of exponentials.
__device__ real larger(real x, real y) { return fmax(x, y); }
__device__ real sum(real x, real y) { return x + y; }

// Combine the numbers of all threads of a block. Every thread receives the result.
template <class Combine> __device__ real over_block(real x, Combine combine)
{
    __shared__ real of_warp[32];
    for (int distance = 16; distance; distance /= 2)  // 32 numbers, then 16, 8, 4, 2, 1
        x = combine(x, __shfl_xor_sync(0xffffffff, x, distance));
    __syncthreads();  // until no thread reads the results of the previous call any more
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = of_warp[0];
    for (int warp = 1; warp < blockDim.x / 32; warp++) x = combine(x, of_warp[warp]);
    return x;
}

// The sum of a column of x (rows, columns) over the rows from `first` up to `last`, exclusive. A
// block sums 8 neighbouring columns: in float32 these are 32 bytes of a row, the least that a GPU
// reads at once. Each column has n = blockDim.x / 8 threads. Each of these adds up every n-th row,
// in order, and then their n sums are added in pairs. The first 8 threads of the block receive the
// results.
const int COLUMNS = 8;
__device__ real sum_of_column(
    const real* x, long long first, long long last, long long columns, long long column)
{
    __shared__ real sums[1024];
    real total = 0;
    if (column < columns) {
        #pragma unroll 8
        for (long long row = first + threadIdx.x / COLUMNS; row < last; row += blockDim.x / COLUMNS)
            total += x[row * columns + column];
    }
    sums[threadIdx.x] = total;
    for (int half = blockDim.x / 2; half >= COLUMNS; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    return sums[threadIdx.x];
}
