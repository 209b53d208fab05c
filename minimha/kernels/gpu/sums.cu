// Sums over an axis other than the last. `sums.py` launches the kernel.

// total <- the sums of the columns of x over parts of its rows, each of `height` rows but for the last,
// which may be shorter.
// x (outer, rows, columns), total (outer, parts, columns), both contiguous. Each block sums 8 columns
// of one part: there must be exactly as many blocks as this takes.
extern "C" __global__ void sum_over_rows(
    const real* x, real* total, long long rows, long long columns, long long height)
{
    const long long tiles = (columns + COLUMNS - 1) / COLUMNS, parts = (rows + height - 1) / height;
    const long long tile = blockIdx.x % tiles, place = blockIdx.x / tiles;  // place among all parts
    const long long outer = place / parts, part = place % parts;
    const long long column = tile * COLUMNS + threadIdx.x % COLUMNS;
    const long long first = part * height, last = first + height < rows ? first + height : rows;

    const real result = sum_of_column(x + outer * rows * columns, first, last, columns, column);
    if (threadIdx.x < COLUMNS && column < columns) total[place * columns + column] = result;
}
