// Softmax over the visible keys of each query, and its backward. `fused.py` launches both kernels.
//
// A block computes one row of the scores at a time: the scores of one query with all S keys. Thread
// 0 takes key 0, thread 1 key 1, and so on: neighbouring threads access neighbouring entries, so that
// the GPU can combine their accesses into a few large ones. If there are more rows than blocks, each
// block continues with the row that is gridDim.x further down.

// scores <- softmax(scale * scores + bias) over the keys from start[row] to stop[row] where `inside`
// is true, and 0 for all other keys. A query that sees no key has weights 0.
//
// scores (B, H, T, S), contiguous; start, stop (B, H, T), contiguous, or null: all keys are visible;
// inside, bias (B, H, T, S), or null, with any strides, given in entries: 0 for a shared axis.
extern "C" __global__ void masked_softmax(
    real* scores, const long long* start, const long long* stop,
    const bool* inside, long long inside_b, long long inside_h, long long inside_t, long long inside_s,
    const real* bias, long long bias_b, long long bias_h, long long bias_t, long long bias_s,
    double scale, long long rows, long long H, long long T, long long S)
{
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const long long t = row % T, h = row / T % H, b = row / T / H;
        const long long first = start ? start[row] : 0, last = stop ? stop[row] : S;
        real* of_row = scores + row * S;
        const bool* inside_row = inside + b * inside_b + h * inside_h + t * inside_t;
        const real* bias_row = bias + b * bias_b + h * bias_h + t * bias_t;

        auto score = [&](long long s) {  // -infinity if key s is hidden, even if the product is NaN
            const real added = bias ? bias_row[s * bias_s] : 0;
            const bool hidden = added == -INFINITY || (inside && !inside_row[s * inside_s]);
            return hidden ? -INFINITY : real(scale) * of_row[s] + added;
        };
        const long long mine = first + threadIdx.x;  // the first key of this thread

        real peak = -INFINITY, total = 0;
        for (long long s = mine; s < last; s += blockDim.x) peak = larger(peak, score(s));
        peak = over_block(peak, larger);
        for (long long s = mine; s < last; s += blockDim.x) total += exp(score(s) - peak);
        total = over_block(total, sum);

        for (long long s = threadIdx.x; s < S; s += blockDim.x) {
            const real x = s < first || s >= last ? -INFINITY : score(s);
            of_row[s] = x == -INFINITY ? 0 : exp(x - peak) / total;
        }
    }
}

// dweights <- dscores = weights * (dweights - sum(dweights * weights)) for both (rows, S), contiguous.
// Hidden keys have weight 0 and receive 0, even where dweights is not finite.
extern "C" __global__ void masked_softmax_backward(
    const real* weights, real* dweights, long long rows, long long S)
{
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const real* w = weights + row * S;
        real* dw = dweights + row * S;
        real mean = 0;
        for (long long s = threadIdx.x; s < S; s += blockDim.x)
            if (w[s] != 0) mean += w[s] * dw[s];
        mean = over_block(mean, sum);
        for (long long s = threadIdx.x; s < S; s += blockDim.x)
            dw[s] = w[s] == 0 ? 0 : w[s] * (dw[s] - mean);
    }
}
