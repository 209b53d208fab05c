"""Steps on single vectors, which a kernel calls."""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from .llvm import written_by
from .registers import VECTORS


@intrinsic
def fma(typing, a, b, c):
    """a b + c for numbers, rounded only once (a fused multiply-add). Numba passes `typing`."""

    def write(code, a, b, c):
        return code.multiply_add(a, b, c)

    return a(a, a, a), written_by(write)


@intrinsic
def copy_vector(typing, x, start_x, y, start_y, *factor):
    """Copy n neighbouring entries of x, from entry start_x on, to y from entry start_y on, times
    the factor if one is given. n is the number of entries that a vector of the CPU holds, such as 8
    of float32 with AVX2. Entries are counted in memory, whatever the shapes of the arrays. Numba
    passes `typing`."""

    def write(code, x, start_x, y, start_y, factor):
        held = code.load(code.vector_at(code.entry(x, start_x)))
        for number in factor:
            held = code.multiply(held, code.repeat(number))
        code.store(held, code.vector_at(code.entry(y, start_y)))

    factor = types.StarArgTuple.from_types([x.dtype] * len(factor))
    return types.void(x, types.intp, y, types.intp, factor), written_by(write)


@intrinsic
def sum_in_vectors(typing, x, count):
    """The sum of the first `count` entries of x. `count` must be a multiple of n, the number of
    entries in VECTORS vectors. Numba passes `typing`.

    Entry j is added to partial sum j mod n, and at the end the partial sums are added in pairs. So
    zeros at the end of x do not change a bit of the sum.
    """

    def write(code, x, count):
        sums = [code.variable(code.zeros) for _ in range(VECTORS)]
        width = count.type(VECTORS * code.length)

        with code.loop(code.builder.sdiv(count, width)) as k:
            row = code.vectors_at(code.row(x, k, width), VECTORS)
            for pointer, column in zip(row, sums, strict=True):
                code.store(code.add(code.load(column), code.load(pointer)), column)

        total = code.load(sums[0])
        for column in sums[1:]:
            total = code.add(total, code.load(column))

        # Add the upper half of the entries to the lower half, until one is left.
        half = code.length // 2
        while half >= 1:
            upper = [half + k % half for k in range(code.length)]
            total = code.add(total, code.shuffle(total, total, upper))
            half //= 2
        return code.first(total)

    return x.dtype(x, types.intp), written_by(write)


@intrinsic
def prefetch(typing, x, start):
    """Begin to load the cache line with entry `start` of x into the L2 cache, for a later step of
    the kernel. An entry beyond the end of x does no harm. Numba passes `typing`."""

    def write(code, x, start):
        code.prefetch(code.entry(x, start), to_write=False, locality=2)

    return types.void(x, types.intp), written_by(write)
