"""The linear map, as products of matrices of any size.

    y = x w + b,  dx = dy wᵀ,  dw = xᵀ dy,  db = dy, summed over the rows

The right operand is copied into panels, row by row, since memory is fastest when read in order. A
panel is as wide as a block, and its depth is chosen so that it stays in the L1 cache while it is
multiplied by rows of the left operand. The rows used at a time fit into the L2 cache; they are
copied only if the left operand is a transpose, or its rows are a whole number of pages apart. A
single column that would begin another block is computed as a product of a matrix and a vector.

Threads divide the rows of y and dx. A small dw, summed over many rows, is computed as two sums, one
over the first half of the rows and one over the second, so that each thread reads rows that it has
written itself: another core's cache is slower to read than one's own.
Source: Goto and van de Geijn, as for `microkernel`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ...functional.implementations import batch_invariance, register
from ...functional.linear import WantedOfMaps, has_few_rows
from .. import threads
from . import few_rows, few_rows_in_order
from .arrays import Array, are_floats, as_rows, contiguous, in_memory
from .jit import kernel
from .matmul import cache_aligned, right, right_of_transpose
from .microkernel import ADD, CONTINUE, STORE, multiply_block
from .parallel import share, whole
from .registers import BYTES, ROWS, VECTORS, no_vectors
from .row_softmax import dot
from .vectors import copy_vector, prefetch

_DEEP = 256
"""The largest depth of a panel."""
_HIGH = 384
"""How many rows of the left operand are multiplied by one panel, then by the next: a multiple of a
block's rows on every CPU."""
_WIDE = 512
"""How many columns of the right operand are copied into panels at a time: a multiple of a block's
columns on every CPU."""
_PAGE = 4096  # bytes
_CHUNK = 2**21
"""The fewest multiplications in a chunk, since each chunk copies all panels. A chunk has at least
two blocks of rows or columns."""


@register("linear_maps")
def linear_maps(
    x: Any, ws: tuple[Any, ...], bs: tuple[Array | None, ...], *, wanted: WantedOfMaps
) -> Any:
    """The value and the pullback of `functional.linear_maps`: a list with x w + b for each matrix w
    of ws and its bias b of bs (None for no bias). `wanted` says which gradients are wanted. Returns
    None for arrays that the kernels do not support and, outside `batch_invariant`, in most cases on
    a CPU where they would be slow."""
    invariant = batch_invariance.get()
    if not invariant:
        few = few_rows.linear_maps(x, ws, bs, wanted)
        if few is not None:
            number = 1 + 2 * len(ws)  # of gradients
            return few, lambda *dys: (None,) * number
        if no_vectors():
            return None
    if not _supported(x, ws, bs):
        return None

    shape = x.shape
    rows = as_rows(x)
    maps = zip(ws, bs, strict=True)
    if invariant and has_few_rows(x, ws[0]):
        ys = [few_rows_in_order.product(rows, w, b) for w, b in maps]
    else:
        ys = [product(rows, w, bias=b, in_order=invariant) for w, b in maps]
    ys = [y.reshape(*shape[:-1], -1) for y in ys]

    # The pullback keeps nothing alive that no gradient needs.
    saved_ws = ws if wanted.x else ()
    saved_rows: Any = rows if any(wanted.ws) else None

    def pullback(*dys: Array | None) -> tuple[Array | None, ...]:
        dx: Array | None = None
        dws: list[Array | None] = [None] * len(dys)
        dbs: list[Array | None] = [None] * len(dys)
        for k, given in enumerate(dys):
            if given is None:
                continue
            dy = as_rows(given)
            if wanted.x:
                dx = product(dy, saved_ws[k].T, to=dx, in_order=invariant)
            if wanted.bs[k]:
                dbs[k] = np.zeros(dy.shape[1], dy.dtype)
            if wanted.ws[k]:
                dws[k] = product(saved_rows.T, dy, sums=dbs[k], in_order=invariant)
            elif wanted.bs[k]:
                _add_up(dy, dbs[k], CONTINUE if invariant else ADD)
        return None if dx is None else dx.reshape(shape), *dws, *dbs

    return ys, pullback


def _supported(x: Any, ws: tuple[Any, ...], bs: tuple[Array | None, ...]) -> bool:
    """Whether the kernels support an input x (…, M) with at least two axes, matrices ws (M, N) and
    biases bs (N,), None for no bias: the shapes must fit, and all arrays have the same dtype,
    float32 or float64."""
    given = [b for b in bs if b is not None]
    if not are_floats(x, *ws, *given) or x.ndim < 2:
        return False
    for w, b in zip(ws, bs, strict=True):
        if w.ndim != 2 or not w.size or len(w) != x.shape[-1]:
            return False
        if b is not None and b.shape != w.shape[1:]:
            return False
    return True


def product(
    a: Array,
    b: Array,
    *,
    bias: Array | None = None,
    sums: Array | None = None,
    to: Array | None = None,
    in_order: bool = False,
) -> Array:
    """a b + bias, with a (R, K), b (K, N) and bias (N,). a and b may be transposes of contiguous
    arrays, which are not copied as a whole.

    sums      (N,), zeros to which the sum of each column of b is added: the gradient of a bias if b
              is dy
    to        (R, N), to which the product is added and which is returned; by default a new array
    in_order  whether the K terms of each entry are added one by one, from first to last, as
              `batch_invariant` promises
    """
    m, depth = a.shape
    n = b.shape[1]
    c = np.empty((m, n), a.dtype) if to is None else to
    nothing, second, operand = _empty(a.dtype)
    how = CONTINUE if in_order else ADD

    halves = 1
    if depth >= m + n and to is None and not in_order:
        halves = 2
        second = np.empty((1, m, n), a.dtype), np.zeros((1, n), a.dtype)

    # Chunks divide the longer side, because each of them copies the whole other one.
    by_rows = m >= n
    blocks = -(-m // ROWS) if by_rows else _column_blocks(n, operand)
    count = halves * blocks
    chunks = min(threads.number(), m * depth * n // _CHUNK, count // 2)

    _product(
        whole(count, chunks), by_rows, to is not None, how, *in_memory(a), *in_memory(b),
        nothing if bias is None else contiguous(bias), operand, c,
        nothing if sums is None else sums, second,
    )  # fmt: skip
    return c


@functools.cache
def _empty(dtype: Any) -> tuple[Any, ...]:
    """Three arguments of `_product` for arrays of this dtype: an empty array, which stands for no
    bias or no sums; the `second` of a product whose sums are not computed in two halves; and the
    `operand`, an empty array (0, 0, width), where width is the number of columns of a block."""
    nothing = np.empty(0, dtype)
    second = np.empty((0, 0, 0), dtype), np.empty((0, 0), dtype)
    width = VECTORS * BYTES // dtype.itemsize
    return nothing, second, np.empty((0, 0, width), dtype)


@kernel
def _column_blocks(n, operand):
    """The number of blocks into which n columns are cut, each operand.shape[2] columns wide; the
    last may be narrower. A single column left over gets no block of its own: the last block is one
    column wider."""
    return max(1, -(-(n - 1) // operand.shape[2]))


@kernel
def _product(
    chunk, by_rows, add, how, a, a_transposed, b, b_transposed, bias, operand, c, sums, second
):  # fmt: skip
    """Store a b + bias in c or, if `add`, add it to c, and add the sum of each column of b to sums.
    a is (R, K), b (K, N) and c (R, N); bias and sums are (N,), or empty for none.

    chunk         made by `parallel.whole`; divides among threads the blocks of rows of c or, unless
                  `by_rows`, of its columns; if the sums have two halves, the blocks of both halves
    how           ADD or CONTINUE (see `microkernel`): how parts of a sum over the depth K are added
    a_transposed  whether the array a is the transpose of the matrix; b_transposed likewise
    operand       an empty array (0, 0, width), where width is the number of columns of a block
    second        if the sums over K are computed in two halves, arrays (1, R, N) and (1, N) for the
                  second half of c and of sums, which are added when all chunks are finished;
                  otherwise arrays without entries, (0, 0, 0) and (0, 0)
    """
    start, stop = share(chunk)
    m, n = c.shape
    depth = b.shape[1] if b_transposed else len(b)
    width = operand.shape[2]
    second_c, second_sums = second
    halves = 1 + len(second_c)
    count = -(-m // ROWS) if by_rows else _column_blocks(n, operand)

    for h in range(halves):
        first = max(start - h * count, 0)
        last = min(stop - h * count, count)
        region = 0, m, first * width, n if last == count else last * width
        if by_rows:
            region = first * ROWS, min(last * ROWS, m), 0, n
        ks = h * depth // halves, (h + 1) * depth // halves
        to, added = c, sums
        if h == 1:
            to, added = second_c[0], second_sums[0, : sums.size]
        if first < last:
            _region(
                region, ks, add, how, a, a_transposed, b, b_transposed, bias, added, operand, to
            )

    all_finished = stop - start in (0, halves * count)
    if halves == 2 and all_finished:
        c += second_c[0]
        sums += second_sums[0, : sums.size]


@kernel
def _region(  # noqa: PLR0915
    region, ks, add_all, how, a, a_transposed, b, b_transposed, bias, sums, operand, c
):  # fmt: skip
    """Compute a region (m0, m1, n0, n1) of c, its rows from m0 to m1 and columns from n0 to n1: the
    product of a and b, summed over the columns k of a and the rows k of b for k in the range `ks`
    (first, end), plus the bias if this range begins at 0. The result is stored in c or, if
    `add_all`, added to it. If m0 is 0, the sum of each column of b over the same rows is added to
    `sums`. The other arguments, from `how` to `operand`, are those of `_product`."""
    top, bottom, low, high = region
    first, end = ks
    depth = b.shape[1] if b_transposed else len(b)
    width = operand.shape[2]
    length = BYTES // operand.itemsize

    # Panels whose depths are as equal as possible.
    deep = -(-(end - first) // -(-(end - first) // _DEEP))

    # Rows of a are read where they are, unless they are whole pages apart. A transpose, and rows
    # that do not fill a block, are copied.
    flat_a = a.reshape(-1)
    far_apart = not a_transposed and depth * a.itemsize % _PAGE == 0
    rows = cache_aligned(_HIGH * deep if far_apart else 0, operand)
    copies = cache_aligned((_HIGH // ROWS + 1) * _block_size(deep, length), operand)
    begin = np.empty(width, operand.dtype)

    for left in range(low, high, _WIDE):
        edge = min(left + _WIDE, high)

        # A column more than whole blocks is computed at the end.
        one_more = (edge - left) % width == 1 and how == ADD
        if one_more:
            edge -= 1

        for k0 in range(first, end, deep):
            k1 = min(k0 + deep, end)
            used = k1 - k0
            add = add_all or k0 > first
            to = how if add else STORE
            size = _block_size(used, length)
            if b_transposed:
                panels = right_of_transpose(b, (left, edge, k0, k1), operand)
            else:
                panels = right(b, (k0, k1, left, edge), operand)

            for m0 in range(top, bottom, _HIGH):
                m1 = min(m0 + _HIGH, bottom)
                whole_rows = m0 if a_transposed else m1 - (m1 - m0) % ROWS
                _copy_blocks(a, a_transposed, (whole_rows, m1, k0, k1), copies)

                # Where the other rows are: their start, and distances as in `_blocks`.
                left_operand = flat_a
                place = m0 * depth + k0, ROWS * depth, depth, 1
                if far_apart:
                    _copy_rows(a, (m0, whole_rows, k0, k1), rows)
                    left_operand = rows
                    place = 0, ROWS * used, used, 1

                for p in range(len(panels)):
                    ahead = p == 0 and not far_apart
                    n0 = left + p * width
                    n1 = min(n0 + width, edge)
                    panel = panels[p : p + 1]

                    # The sums begin with the bias, those of the next depths with 0.
                    begin[:] = 0
                    if bias.size and k0 == 0:
                        begin[: n1 - n0] = bias[n0:n1]
                    if m0 == 0 and sums.size:
                        _add_up(panels[p], sums[n0:n1], how)

                    part = c[m0:whole_rows, n0:n1]
                    _blocks(left_operand, place, used, panel, begin, part, to, ahead)
                    part = c[whole_rows:m1, n0:n1]
                    _blocks(copies, (0, size, 1, ROWS), used, panel, begin, part, to, False)

                if one_more:
                    column = b[edge, k0:k1].copy() if b_transposed else b[k0:k1, edge].copy()
                    start = bias[edge] if bias.size and k0 == 0 else c.dtype.type(0)
                    _column(a, a_transposed, (m0, m1, k0, k1), column, start, c[m0:m1, edge], add)
                    if m0 == 0 and sums.size:
                        sums[edge] += column.sum()


@kernel
def _column(a, transposed, region, x, start, c, add):
    """Multiply rows m0 to m1 and columns k0 to k1 of a matrix, given as `region` (m0, m1, k0, k1),
    by a vector x, and add the number `start` to each entry. The matrix is a, or the transpose of a
    if `transposed`. The result is stored in the column c (m1 − m0,) or, if `add`, added to it.

    This is for a single column that is left over after the last whole block of columns. Another
    block would compute as many columns as it is wide: of a product with 65 columns, the last one
    then took a third of the time.
    """
    m0, m1, k0, k1 = region
    sums = np.full(m1 - m0, start, c.dtype)
    if transposed:
        for k in range(k1 - k0):
            row = a[k0 + k, m0:m1]
            for i in range(len(sums)):
                sums[i] += row[i] * x[k]
    else:
        for i in range(len(sums)):
            sums[i] += dot(a[m0 + i, k0:k1], x)
    for i in range(len(sums)):
        c[i] = c[i] + sums[i] if add else sums[i]


@kernel
def _blocks(a, place, depth, panel, bias, c, to, ahead):
    """Multiply rows of a by a panel (1, depth, width) of the right operand, one block of ROWS rows
    after another, and add the bias (width,). The result goes to c, which has a row for each row of
    a and up to `width` columns.

    place  where the rows of a are in memory, in entries: the entry where the first begins, and the
           distances from a block to the next one, from a row to the next and from a column to the
           next
    depth  the number of columns of a that are multiplied
    to     whether the result is stored in c or added: STORE, ADD or CONTINUE, see `microkernel`
    ahead  whether to load the next block of a into the cache while a block is computed
    """
    start, block, row, step = place
    row_c = c.strides[0] // c.itemsize
    width = panel.shape[2]
    border = np.zeros((ROWS, width), c.dtype)

    for i in range(0, c.shape[0], ROWS):
        at = start + i // ROWS * block
        if ahead:
            for r in range(ROWS):
                for k in range(0, depth, BYTES // a.itemsize):
                    prefetch(a, at + block + r * row + k)

        if c.shape[0] - i >= ROWS and c.shape[1] == width:
            multiply_block(a, at, row, step, panel, 0, width, depth, c, i * row_c, row_c, to, bias)
        else:
            # A block at the border of c is computed beside it, since all of a block is written.
            part = c[i : i + ROWS]
            if to == CONTINUE:
                _move(part, border[: len(part), : part.shape[1]], False)
            how = CONTINUE if to == CONTINUE else STORE
            multiply_block(a, at, row, step, panel, 0, width, depth, border, 0, width, how, bias)
            _move(border, part, to == ADD)


@kernel
def _copy_blocks(a, transposed, region, copies):
    """Copy rows m0 to m1 and columns k0 to k1 of a matrix, given as `region` (m0, m1, k0, k1), to
    `copies`, an array with one axis. The matrix is a, or the transpose of a if `transposed`. The
    copy consists of blocks of ROWS rows, in which the ROWS entries of each column are adjacent;
    missing rows of the last block are filled with zeros.

    Neighbouring columns of the transpose of a are a whole row of a apart in memory. A cache holds
    few addresses at such distances: a block takes 10 to 30 % longer without the copy (AVX2).
    """
    m0, m1, k0, k1 = region
    length = BYTES // a.itemsize
    row = a.shape[1]
    zero = a.dtype.type(0)
    size = _block_size(k1 - k0, length)

    # Whole blocks, in vectors: row by row of a, as it is in memory.
    wide = -(-ROWS // length) * length
    done = m0
    if transposed:
        while done + ROWS <= m1 and done + wide <= row:
            done += ROWS
        for k in range(k1 - k0):
            start = k * ROWS
            for i in range(m0, done, ROWS):
                for r in range(0, ROWS, length):  # the next k overwrites what is beyond ROWS
                    copy_vector(a, (k0 + k) * row + i + r, copies, start + r)
                start += size

    # The others, entry by entry, with zeros in the rows that are missing.
    for i in range(done, m1, ROWS):
        start = (i - m0) // ROWS * size
        used = min(ROWS, m1 - i)
        for k in range(k1 - k0):
            for r in range(ROWS):
                if r >= used:
                    x = zero
                elif transposed:
                    x = a[k0 + k, i + r]
                else:
                    x = a[i + r, k0 + k]
                copies[start + k * ROWS + r] = x


@kernel
def _copy_rows(a, region, rows):
    """Copy rows m0 to m1 and columns k0 to k1 of a, given as `region` (m0, m1, k0, k1), to `rows`,
    an array with one axis: one row directly after another. In a, the rows are a whole number of
    memory pages apart, and a cache has room for only a few addresses at such distances: a large
    product takes 5 % longer without the copy."""
    m0, m1, k0, k1 = region
    for i in range(m1 - m0):
        for k in range(0, k1 - k0, BYTES // a.itemsize):  # fills whole vectors, as pages do
            copy_vector(a, (m0 + i) * a.shape[1] + k0 + k, rows, i * (k1 - k0) + k)


@kernel
def _block_size(depth, length):
    """How many entries to allocate for a copied block of ROWS rows and `depth` columns: ROWS *
    depth, and `length` more, the entries of a vector, since the last copy may write beyond the end
    of the block."""
    return ROWS * depth + length


@kernel
def _move(x, y, add):
    """Copy x to y or, if `add`, add x to y. Both are matrices; rows and columns of x beyond the
    shape of y are left out."""
    for i in range(y.shape[0]):
        for j in range(y.shape[1]):
            y[i, j] = x[i, j] + y[i, j] if add else x[i, j]


@kernel
def _add_up(rows, sums, how):
    """Add the sum of each column of the matrix `rows` to the entry of `sums` for this column;
    columns beyond the length of sums are left out.

    If `how` is CONTINUE (see `microkernel`), each row is added to sums, one after another. If it is
    ADD, the rows are first added to a total of their own, four at a time, and the total is added to
    sums once.
    """
    if how == CONTINUE:
        for i in range(len(rows)):
            for j in range(len(sums)):
                sums[j] += rows[i, j]
        return

    # Four rows at a time, whose sums are added to that of the block.
    block = np.zeros(rows.shape[1], rows.dtype)
    whole_fours = len(rows) // 4 * 4
    for i in range(0, whole_fours, 4):
        for j in range(rows.shape[1]):
            block[j] += (rows[i, j] + rows[i + 1, j]) + (rows[i + 2, j] + rows[i + 3, j])
    for i in range(whole_fours, len(rows)):
        for j in range(rows.shape[1]):
            block[j] += rows[i, j]
    for j in range(len(sums)):
        sums[j] += block[j]
