"""Blocks of the product of a few rows and a matrix, for `few_rows_in_order`.

Each product is added to the sum so far, in the order of the matrix's rows, whichever of the two
blocks computes it.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from .llvm import written_by
from .transpose import transposed

LONG = 8
"""How many vectors of a single row stay in registers: a multiplication takes four cycles, so with
eight vectors a CPU can start two in each cycle."""


@intrinsic
def add_rows(typing, x, start_x, w, start_w, row_w, count, y, start_y):
    """y += sum over k < count of x[k] * w[k, :], for a row y and rows of w that are LONG vectors
    wide. Numba passes `typing`.

    The shapes of the arrays do not matter: in memory, x begins at entry start_x, y at entry start_y
    and row k of w at entry start_w + k * row_w.
    """

    def write(code, x, start_x, w, start_w, row_w, count, y, start_y):
        x = code.entry(x, start_x)
        w = code.entry(w, start_w)
        pointers = code.vectors_at(code.entry(y, start_y), LONG)
        sums = [code.variable(code.load(pointer)) for pointer in pointers]

        with code.rolled_loop(count) as k:
            left = code.repeat(code.load(code.entry(x, k)))
            row = code.vectors_at(code.row(w, k, row_w), LONG)
            for pointer, total in zip(row, sums, strict=True):
                right = code.load(pointer)
                code.store(code.multiply_add(left, right, code.load(total)), total)

        for pointer, total in zip(pointers, sums, strict=True):
            code.store(code.load(total), pointer)

    number = types.intp
    signature = types.void(x, number, w, number, number, number, y, number)
    return signature, written_by(write)


@intrinsic
def add_transposed_block(typing, x, start_x, row_x, rows, w, start_w, row_w, y, start_y, row_y):
    """y[r, n] += sum over k of x[r, k] * w[n, k], for a square block of w, with as many n and as
    many k as a vector has entries. Numba passes `typing`.

    `rows` is the number of rows r of x and y. The shapes of the arrays do not matter: in memory,
    row r of x begins at entry start_x + r * row_x, row n of w at entry start_w + n * row_w, and row
    r of y at entry start_y + r * row_y.
    """

    def write(code, x, start_x, row_x, rows, w, start_w, row_w, y, start_y, row_y):
        x = code.entry(x, start_x)
        y = code.entry(y, start_y)
        columns = transposed(code, code.entry(w, start_w), row_w)

        with code.loop(rows) as r:
            row = code.row(x, r, row_x)
            pointer = code.vector_at(code.row(y, r, row_y))
            total = code.load(pointer)
            for k, column in enumerate(columns):
                left = code.repeat(code.load(code.entry(row, k)))
                total = code.multiply_add(left, column, total)
            code.store(total, pointer)

    number = types.intp
    signature = types.void(x, number, number, number, w, number, number, y, number, number)
    return signature, written_by(write)
