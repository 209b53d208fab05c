// Softmax and cross entropy over rows. `softmax.py` launches the kernels. A block computes one row
// at a time.

// y <- softmax(x), both (rows, width). A row in which all entries are -infinity gives zeros.
extern "C" __global__ void softmax(const real* x, real* y, long long rows, long long width)
{
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const real* of_row = x + row * width;

        real peak = -INFINITY, total = 0;
        for (long long j = threadIdx.x; j < width; j += blockDim.x) peak = larger(peak, of_row[j]);
        peak = over_block(peak, larger);
        if (peak == -INFINITY) peak = 0;  // if there is a NaN, it reaches the sum below
        for (long long j = threadIdx.x; j < width; j += blockDim.x) total += exp(of_row[j] - peak);
        total = over_block(total, sum);
        if (total == 0) total = 1;

        for (long long j = threadIdx.x; j < width; j += blockDim.x)
            y[row * width + j] = exp(of_row[j] - peak) / total;
    }
}

// dx <- y * (dy - sum(dy * y)), all (rows, width).
extern "C" __global__ void softmax_backward(
    const real* y, const real* dy, real* dx, long long rows, long long width)
{
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const real* of_y = y + row * width;
        const real* of_dy = dy + row * width;
        real mean = 0;
        for (long long j = threadIdx.x; j < width; j += blockDim.x) mean += of_dy[j] * of_y[j];
        mean = over_block(mean, sum);
        for (long long j = threadIdx.x; j < width; j += blockDim.x)
            dx[row * width + j] = of_y[j] * (of_dy[j] - mean);
    }
}

// losses <- -log softmax(x)[target] for each row; NaN for a target out of range.
// x (rows, width), targets and losses (rows,), statistics (rows, 2): the largest entry of each row
// and its sum of exp(x - largest).
extern "C" __global__ void cross_entropy(
    const real* x, const long long* targets, real* losses, real* statistics,
    long long rows, long long width)
{
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const real* of_row = x + row * width;

        real peak = -INFINITY, total = 0;
        for (long long j = threadIdx.x; j < width; j += blockDim.x) peak = larger(peak, of_row[j]);
        peak = over_block(peak, larger);
        for (long long j = threadIdx.x; j < width; j += blockDim.x) total += exp(of_row[j] - peak);
        total = over_block(total, sum);

        if (threadIdx.x == 0) {
            const long long target = targets[row];
            const bool outside = target < 0 || target >= width;
            losses[row] = outside ? real(NAN) : log(total) - (of_row[target] - peak);
            statistics[2 * row] = peak;
            statistics[2 * row + 1] = total;
        }
    }
}

// y (one number) <- the mean of x (n,), computed by a single block.
extern "C" __global__ void mean(const real* x, real* y, long long n)
{
    real total = 0;
    for (long long i = threadIdx.x; i < n; i += blockDim.x) total += x[i];
    total = over_block(total, sum);
    if (threadIdx.x == 0) *y = total / n;
}

// dx <- dy / rows * (softmax(x) - one-hot of the target), where dy is a single number.
extern "C" __global__ void cross_entropy_backward(
    const real* x, const long long* targets, const real* statistics, const real* dy, real* dx,
    long long rows, long long width)
{
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const real peak = statistics[2 * row], total = statistics[2 * row + 1];
        const long long target = targets[row];
        for (long long j = threadIdx.x; j < width; j += blockDim.x) {
            const real probability = exp(x[row * width + j] - peak) / total;
            dx[row * width + j] = *dy * (probability - (j == target)) / rows;
        }
    }
}
