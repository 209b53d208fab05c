// Steps of AdamW and clipping, for many parameters at a time. `optimiser.py` launches the kernels.
//
// A kernel receives its list of parameters by value, as it does numbers, so the host copies nothing to
// the GPU for it. 64 parameters take 3,584 of the 4,096 bytes that all arguments may have. A block
// computes one part of a parameter: SIZE entries, or fewer in its last part. A kernel that does not
// need all fields of `Parameter` receives null pointers for the others.

const int MOST = 64;
const long long SIZE = 4096;

struct Parameter {
    const real* p;
    const real* g;  // gradient
    real* m;
    real* v;
    real* next;
    long long n;         // entries
    long long next_block;  // the first block of the next parameter
};
struct Parameters { Parameter of[MOST]; };

// The parameter to which this block belongs, and its first entry there.
__device__ int parameter_of_block(const Parameters& parameters, long long* first)
{
    int k = 0;
    while (parameters.of[k].next_block <= blockIdx.x) k++;
    *first = (blockIdx.x - (k ? parameters.of[k - 1].next_block : 0)) * SIZE;
    return k;
}

// m <- beta1 * m + (1 - beta1) * g,  v <- beta2 * v + (1 - beta2) * g^2,
// next <- decay * p - rate * m / (sqrt(v) + eps).
extern "C" __global__ void adamw(
    const Parameters parameters, double beta1, double beta2, double decay, double rate, double eps)
{
    long long first;
    const Parameter x = parameters.of[parameter_of_block(parameters, &first)];
    const long long last = first + SIZE < x.n ? first + SIZE : x.n;
    for (long long i = first + threadIdx.x; i < last; i += blockDim.x) {
        const real m = real(beta1) * x.m[i] + real(1 - beta1) * x.g[i];
        const real v = real(beta2) * x.v[i] + real(1 - beta2) * (x.g[i] * x.g[i]);
        x.next[i] = real(decay) * x.p[i] - real(rate) * (m / (sqrt(v) + real(eps)));
        x.m[i] = m;
        x.v[i] = v;
    }
}

// sums (blocks,) <- the sum of g^2 over the entries of each block.
extern "C" __global__ void squares(const Parameters parameters, real* sums)
{
    long long first;
    const Parameter x = parameters.of[parameter_of_block(parameters, &first)];
    const long long last = first + SIZE < x.n ? first + SIZE : x.n;
    real total = 0;
    for (long long i = first + threadIdx.x; i < last; i += blockDim.x) total += x.g[i] * x.g[i];
    total = over_block(total, sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

// total (one number) <- the sum of all n sums, computed by a single block.
extern "C" __global__ void total(const real* sums, real* total, long long n)
{
    real result = 0;
    for (long long i = threadIdx.x; i < n; i += blockDim.x) result += sums[i];
    result = over_block(result, sum);
    if (threadIdx.x == 0) *total = result;
}

// next <- g * min(1, largest / (norm + 1e-6)), norm <- sqrt(square).
extern "C" __global__ void clip(
    const Parameters parameters, const real* square, real* norm, double largest)
{
    long long first;
    const Parameter x = parameters.of[parameter_of_block(parameters, &first)];
    const long long last = first + SIZE < x.n ? first + SIZE : x.n;
    const real length = sqrt(*square), scale = real(largest) / (length + real(1e-6));
    for (long long i = first + threadIdx.x; i < last; i += blockDim.x)
        x.next[i] = x.g[i] * (scale > 1 ? 1 : scale);
    if (blockIdx.x == 0 && threadIdx.x == 0) *norm = length;
}
