"""Square blocks of a matrix, transposed in the registers: a row for each entry of a vector."""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from .llvm import written_by


@intrinsic
def transpose_block(typing, x, start_x, row_x, y, start_y, row_y):
    """y[i, j] = x[j, i], for a block with as many rows and columns as a vector has entries. Numba
    passes `typing`.

    The shapes of the arrays do not matter: in memory, row r of the block of x begins at entry
    start_x + r * row_x, and row r of the block of y at entry start_y + r * row_y.
    """

    def write(code, x, start_x, row_x, y, start_y, row_y):
        columns = transposed(code, code.entry(x, start_x), row_x)
        pointers = _rows_of_block(code, code.entry(y, start_y), row_y)
        for column, pointer in zip(columns, pointers, strict=True):
            code.store(column, pointer)

    number = types.intp
    return types.void(x, number, number, y, number, number), written_by(write)


def transposed(code, x, row):
    """Load a square block of a matrix into registers and return its columns, a list of vectors. x
    is a pointer to the first entry of the block, `row` the distance from the start of a row to the
    start of the next, in entries, and `code` a `Code`, to which the instructions are added.

    At first, vector r contains row r. Then, for each bit of the row number in turn, the rows are
    paired so that their numbers differ in this bit alone, and two paired rows exchange half of
    their entries: those whose column number differs in this bit from the number of their row.
    """
    held = [code.load(pointer) for pointer in _rows_of_block(code, x, row)]
    length = code.length

    bit = 1
    while bit < length:
        # Entry k comes from b if k has the bit; `shuffle` counts the entries of b from `length`.
        of_b = [length if k & bit else 0 for k in range(length)]
        upper = [(k & ~bit) + n for k, n in enumerate(of_b)]
        lower = [(k | bit) + n for k, n in enumerate(of_b)]

        for r in range(length):
            if not r & bit:
                a, b = held[r], held[r + bit]
                held[r] = code.shuffle(a, b, upper)
                held[r + bit] = code.shuffle(a, b, lower)
        bit *= 2
    return held


def _rows_of_block(code, x, row):
    """Pointers to the rows of a square block of a matrix, as a list. Each row is as long as a
    vector, and its pointer has the type of a pointer to a vector.

    code  the `Code` to which the instructions are added
    x     a pointer to the first entry of the block
    row   the distance from the start of a row to the start of the next, in entries
    """
    return [code.vector_at(code.row(x, r, row)) for r in range(code.length)]
