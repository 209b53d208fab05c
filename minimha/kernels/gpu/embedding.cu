// Embedding and rotary positions. `embedding.py` launches the kernels.

// y <- the rows of the table at the indices; a row of NaN for an index out of range.
// table (count, width), indices (rows,), y (rows, width). A block copies one row at a time.
extern "C" __global__ void embedding(
    const real* table, const long long* indices, real* y,
    long long count, long long rows, long long width)
{
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const long long index = indices[row];
        const bool inside = index >= 0 && index < count;
        for (long long j = threadIdx.x; j < width; j += blockDim.x)
            y[row * width + j] = inside ? table[index * width + j] : real(NAN);
    }
}

// cosines, sines <- cos and sin of t * theta for each position t (n,) and each pair i of columns,
// (n, half), with theta = base^(-2i / (2 * half)), computed in double precision. Unless the context
// is 0, theta becomes theta * (g + (1 - g) / factor): see `functional.rope.Llama3`.
extern "C" __global__ void rotations(
    const long long* positions, real* cosines, real* sines, double base,
    double factor, double low, double high, double context, long long half, long long n)
{
    for (long long k = this_thread(); k < n * half; k += all_threads()) {
        const long long i = k % half;
        double theta = pow(base, double(2 * i) / -double(2 * half));
        if (context) {
            const double turns = context / 6.283185307179586 * theta;
            double g = (turns - low) / (high - low);
            g = g < 0 ? 0 : g > 1 ? 1 : g;
            theta *= g + (1 - g) / factor;
        }
        cosines[k] = cos(double(positions[k / half]) * theta);
        sines[k] = sin(double(positions[k / half]) * theta);
    }
}

// y <- x with each pair (a, b) of its first 2 * half columns rotated, (a cos - b sin, b cos + a sin) for
// direction = 1 and by the opposite angle for -1. Other columns are copied.
//
// x, y (B, H, T, D), cosines and sines (B, H, T, half), with their strides along B, H and T in
// entries, 0 along an axis that is shared; their last axes are contiguous. A block computes one row
// at a time.
extern "C" __global__ void rotate(
    const real* x, long long x_b, long long x_h, long long x_t,
    const real* cosines, const real* sines, long long c_b, long long c_h, long long c_t,
    real* y, long long y_b, long long y_h, long long y_t,
    long long direction, long long interleaved, long long half,
    long long rows, long long H, long long T, long long D)
{
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const long long t = row % T, h = row / T % H, b = row / T / H;
        const real* of_x = x + b * x_b + h * x_h + t * x_t;
        const real* of_cos = cosines + b * c_b + h * c_h + t * c_t;
        const real* of_sin = sines + b * c_b + h * c_h + t * c_t;
        real* of_y = y + b * y_b + h * y_h + t * y_t;

        for (long long j = threadIdx.x; j < D; j += blockDim.x) {
            if (j >= 2 * half) {
                of_y[j] = of_x[j];
                continue;
            }
            const bool second = interleaved ? j % 2 : j >= half;
            const long long i = interleaved ? j / 2 : j % half;
            const long long distance = interleaved ? 1 : half;  // between the two of a pair
            const real other = second ? of_x[j - distance] : -of_x[j + distance];
            of_y[j] = of_x[j] * of_cos[i] + other * (direction * of_sin[i]);
        }
    }
}
