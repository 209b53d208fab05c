// One step of AdamW for the n entries of a parameter. `adamw.py` launches it, and `cuda.py` defines
// `real`, which is float or double. Neighbouring threads compute neighbouring entries. With fewer
// threads than entries, thread i computes entries i, i + threads, i + 2 * threads, and so on.

extern "C" __global__ void adamw(
    const real* p, const real* g, real* m, real* v, real* next,
    double beta1, double beta2, double decay, double rate, double eps, long long n)
{
    const long long threads = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) {
        m[i] = real(beta1) * m[i] + real(1 - beta1) * g[i];
        v[i] = real(beta2) * v[i] + real(1 - beta2) * (g[i] * g[i]);
        next[i] = real(decay) * p[i] - real(rate) * (m[i] / (sqrt(v[i]) + real(eps)));
    }
}
