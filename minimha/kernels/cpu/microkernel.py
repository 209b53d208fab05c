"""A matrix product whose result stays in registers, which makes it as fast as the CPU allows.

A core multiplies and adds two vectors of numbers in each cycle if they are in its registers. So a
block of ROWS x VECTORS vectors of the result stays there for the whole depth of the product. Each
step loads VECTORS vectors of the right operand and ROWS single numbers of the left one, far fewer
than it multiplies. Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix
Multiplication" (2008); the block is that of BLIS (2015).
"""

from __future__ import annotations

from itertools import chain

from numba import types
from numba.extending import intrinsic

from .llvm import written_by
from .registers import ROWS, VECTORS

STORE, ADD, CONTINUE = range(3)
"""What a matrix product does with the matrix to which it is written. STORE replaces its entries.
ADD first computes the sum of the product's terms and then adds it, which is more precise. CONTINUE
adds each term to the entry so far, so a sum that is computed in several parts has the same bits as
one computed at once."""


@intrinsic
def multiply_block(
    typing, a, start_a, row_a, step_a, b, start_b, step_b, depth, c, start_c, row_c, to, bias
):
    """c[r, :] = (or +=) the sum over k < depth of a[r, k] * b[k, :], for a block of c of ROWS rows,
    each VECTORS vectors wide. Numba passes `typing`.

    The shapes of the arrays do not matter: in memory, a[r, k] is entry start_a + r * row_a + k *
    step_a, row k of b begins at entry start_b + k * step_b, and row r of c at entry start_c + r *
    row_c. `to` says what happens to c: STORE, ADD or CONTINUE. A bias, an array as wide as the
    block or None, is added to every row, but not with CONTINUE.
    """

    def write(
        code, a, start_a, row_a, step_a, b, start_b, step_b, depth, c, start_c, row_c, to, bias
    ):
        a = code.entry(a, start_a)
        b = code.entry(b, start_b)
        c = code.entry(c, start_c)

        # c arrives while the products are summed.
        block = [code.vectors_at(code.row(c, r, row_c), VECTORS) for r in range(ROWS)]
        for pointer in chain(*block):
            code.prefetch(pointer, to_write=True, locality=3)

        # Each sum begins with 0, with the bias of its column, or with what is in c.
        start = [code.zeros] * VECTORS
        if bias is not None:
            start = code.load_vectors(bias, VECTORS)
        sums = [[code.variable(x) for x in start] for _ in range(ROWS)]
        sums_and_pointers = list(zip(chain(*sums), chain(*block), strict=True))
        with code.builder.if_then(code.equal(to, CONTINUE), likely=False):
            for total, pointer in sums_and_pointers:
                code.store(code.load(pointer), total)

        # Each step adds column k of a times row k of b.
        with code.rolled_loop(depth) as k:
            right = code.load_vectors(code.row(b, k, step_b), VECTORS)
            column = code.row(a, k, step_a)
            for r, row in enumerate(sums):
                left = code.repeat(code.load(code.row(column, r, row_a)))
                for x, total in zip(right, row, strict=True):
                    code.store(code.multiply_add(left, x, code.load(total)), total)

        # ADD keeps what is in c; the sums of CONTINUE contain it already.
        adds = code.equal(to, ADD)
        for total, pointer in sums_and_pointers:
            before = code.builder.select(adds, code.load(pointer), code.zeros)
            code.store(code.add(before, code.load(total)), pointer)

    number = types.intp
    of_a = a, number, number, number
    of_b = b, number, number
    of_c = c, number, number
    signature = types.void(*of_a, *of_b, number, *of_c, number, bias)
    return signature, written_by(write)
