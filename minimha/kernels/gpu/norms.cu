// Layer normalisation, and RMS normalisation, which is the same without mean and bias. `norms.py`
// launches the kernels. A block computes one row at a time.

// y <- (x - mean) * inverse * weight + bias over each row, with inverse = 1 / sqrt(variance + eps).
// x, y (rows, width); weight (width,); bias (width,) or null; statistics (rows, 2): mean and inverse.
// Without `centred`, as in RMS normalisation, the mean counts as 0.
extern "C" __global__ void normalise(
    const real* x, const real* weight, const real* bias, real* y, real* statistics,
    double eps, long long centred, long long rows, long long width)
{
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const real* of_row = x + row * width;

        real mean = 0, squares = 0;
        if (centred) {
            for (long long j = threadIdx.x; j < width; j += blockDim.x) mean += of_row[j];
            mean = over_block(mean, sum) / width;
        }
        for (long long j = threadIdx.x; j < width; j += blockDim.x)
            squares += (of_row[j] - mean) * (of_row[j] - mean);
        const real inverse = 1 / sqrt(over_block(squares, sum) / width + real(eps));

        for (long long j = threadIdx.x; j < width; j += blockDim.x) {
            const real normed = (of_row[j] - mean) * inverse * weight[j];
            y[row * width + j] = bias ? normed + bias[j] : normed;
        }
        if (threadIdx.x == 0) {
            statistics[2 * row] = mean;
            statistics[2 * row + 1] = inverse;
        }
    }
}

// dx <- (g - mean(g) - normed * mean(g * normed)) * inverse, with g = dy * weight and
// normed = (x - mean) * inverse; without `centred`, mean(g) counts as 0. Each block stores the sums of
// dy * normed and of dy over its rows in dweights and dbiases (blocks, width); dbiases may be null.
extern "C" __global__ void normalise_backward(
    const real* x, const real* weight, const real* statistics, const real* dy, real* dx,
    real* dweights, real* dbiases, long long centred, long long rows, long long width)
{
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const real* of_row = x + row * width;
        const real* of_dy = dy + row * width;
        const real mean = statistics[2 * row], inverse = statistics[2 * row + 1];

        real mean_g = 0, mean_gx = 0;
        for (long long j = threadIdx.x; j < width; j += blockDim.x) {
            const real g = of_dy[j] * weight[j];
            mean_g += g;
            mean_gx += g * ((of_row[j] - mean) * inverse);
        }
        mean_g = centred ? over_block(mean_g, sum) / width : 0;
        mean_gx = over_block(mean_gx, sum) / width;

        for (long long j = threadIdx.x; j < width; j += blockDim.x) {
            const real normed = (of_row[j] - mean) * inverse;
            dx[row * width + j] = (of_dy[j] * weight[j] - mean_g - normed * mean_gx) * inverse;

            // Only this thread adds to these entries, so the order of additions is fixed.
            const long long k = blockIdx.x * width + j;
            const bool first = row == blockIdx.x;
            dweights[k] = (first ? 0 : dweights[k]) + of_dy[j] * normed;
            if (dbiases) dbiases[k] = (first ? 0 : dbiases[k]) + of_dy[j];
        }
    }
}

// dweight, dbias (width,) <- the sums of dweights and dbiases over their rows. Each block sums 8
// columns: the first blocks those of dweights, the others those of dbiases.
extern "C" __global__ void normalise_totals(
    const real* dweights, const real* dbiases, real* dweight, real* dbias,
    long long blocks, long long width)
{
    const long long tiles = (width + COLUMNS - 1) / COLUMNS;
    const bool of_weight = blockIdx.x < tiles;
    const long long column = blockIdx.x % tiles * COLUMNS + threadIdx.x % COLUMNS;
    const real* parts = of_weight ? dweights : dbiases;
    real* total = of_weight ? dweight : dbias;

    const real result = sum_of_column(parts, 0, blocks, width, column);
    if (threadIdx.x < COLUMNS && column < width) total[column] = result;
}
