// Copies between several matrices and one that has them side by side. `linear.py` launches the kernel.

const int MOST = 4;
struct Parts {
    real* part[MOST];
    long long columns[MOST];  // of each part; 0 beyond the last part
};

// whole <- the parts side by side or, if `apart`, parts <- their columns of whole. All have the same
// number of rows and are contiguous. whole has n entries, `width` in each row.
extern "C" __global__ void side_by_side(
    const Parts parts, real* whole, long long apart, long long width, long long n)
{
    for (long long i = this_thread(); i < n; i += all_threads()) {
        const long long row = i / width;
        long long column = i % width;
        int k = 0;
        while (column >= parts.columns[k]) column -= parts.columns[k++];
        real* entry = parts.part[k] + row * parts.columns[k] + column;
        if (apart)
            *entry = whole[i];
        else
            whole[i] = *entry;
    }
}
