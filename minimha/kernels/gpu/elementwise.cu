// Gates and dropout. `elementwise.py` launches the kernels, which compute entry by entry.

__device__ real at_least(real x, real bound) { return x < bound ? bound : x; }  // NaN stays

__device__ real clip(real x, real bound)
{
    x = at_least(x, -bound);
    return x > bound ? bound : x;
}

// y <- x * g * times with g = 1 / (1 + exp(-u)), u = c1 * x + c3 * x^3. For |x| > bound, g is 0 or 1 up
// to rounding and exp(-u) could overflow, so u is computed from x limited to the bound. times may be
// null, for y <- x * g. All arrays have n entries.
extern "C" __global__ void gate(
    const real* x, const real* times, real* y, double c1, double c3, double bound, long long n)
{
    for (long long i = this_thread(); i < n; i += all_threads()) {
        const real z = clip(x[i], real(bound));
        const real u = z * (real(c1) + real(c3) * (z * z));
        const real gated = at_least(x[i], -real(bound)) / (1 + exp(-u));
        y[i] = times ? gated * times[i] : gated;
    }
}

// dx <- dy * times * (g + x * dg) with dg = g * (1 - g) * du, du = c1 + 3 * c3 * x^2, and
// dtimes <- dy * x * g. times and dtimes may both be null.
extern "C" __global__ void gate_backward(
    const real* x, const real* times, const real* dy, real* dx, real* dtimes,
    double c1, double c3, double bound, long long n)
{
    for (long long i = this_thread(); i < n; i += all_threads()) {
        const real z = clip(x[i], real(bound)), square = z * z;
        const real g = 1 / (1 + exp(-z * (real(c1) + real(c3) * square)));
        const real dg = g * (1 - g) * (real(c1) + 3 * real(c3) * square);
        dx[i] = (times ? dy[i] * times[i] : dy[i]) * (g + z * dg);
        if (times) dtimes[i] = dy[i] * (at_least(x[i], -real(bound)) * g);
    }
}

// y <- x / probability where keep is true, else 0, for n entries.
extern "C" __global__ void dropout(
    const real* x, const bool* keep, real* y, double probability, long long n)
{
    for (long long i = this_thread(); i < n; i += all_threads())
        y[i] = keep[i] ? x[i] / real(probability) : 0;
}
