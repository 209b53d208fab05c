"""A matrix product whose result stays in registers, which makes it as fast as the CPU allows.

A core multiplies and adds two vectors of numbers in each cycle if they are in its registers. So a
block of ROWS x VECTORS vectors of the result stays there for the whole depth of the product. Each
step loads VECTORS vectors of the right operand and ROWS single numbers of the left one, far fewer
than it multiplies. Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix
Multiplication" (2008); the block is that of BLIS (2015).

LLVM keeps vectors in registers if the code uses its vector types, which only Numba's intrinsics can
express.
"""

from __future__ import annotations

import itertools

from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

VECTORS = 2
LONG = 8
"""How many vectors of a single row stay in registers: a multiplication takes four cycles, so with
eight vectors a CPU can start two in each cycle."""

STORE, ADD, CONTINUE = range(3)
"""What a matrix product does with the matrix it is written to. ADD first computes the sum of its
terms and then adds it, which is more precise. CONTINUE adds each term to the entry so far, so a sum
that is computed in several parts has the same bits as one computed at once."""


def _registers() -> tuple[int, int, bool]:
    """The bytes in a vector of the CPU that Numba compiles for, the number of rows that fit into
    its registers, and whether it multiplies and adds vectors in one instruction."""
    named = config.CPU_FEATURES  # NUMBA_CPU_FEATURES, such as "+avx2,+fma"; "" if generic
    if named is None:
        named = get_host_cpu_features()  # without AVX where Numba does not use it
    has = {name[1:]: name[0] == "+" for name in named.split(",") if name}
    if has.get("avx512f"):
        return 64, 12, True  # 24 of 32 registers hold the result
    if has.get("avx2") and has.get("fma"):
        return 32, 6, True  # 12 of 16
    if has.get("neon"):
        return 16, 12, True
    return 16, 6, False


BYTES, ROWS, _FAST = _registers()


def no_vectors() -> str | None:
    """The reason why blocks are not fast on this CPU, or None if they are."""
    return None if _FAST else "this CPU is not known to multiply and add vectors in one step"


@intrinsic
def multiply_block(
    typing, a, start_a, row_a, step_a, b, start_b, step_b, depth, c, start_c, row_c, to, bias
):
    """c[r, :] (+)= sum over k of a[r, k] * b[k, :], for r < ROWS and VECTORS vectors of columns.

    The arrays are plain memory: a[r, k] is entry start_a + r * row_a + k * step_a, row k of b
    begins at start_b + k * step_b, row r of c at start_c + r * row_c. The sum is stored, added to
    c, or continued from c: `to` is STORE, ADD or CONTINUE. A bias, if given, is added to every row,
    but not with CONTINUE.
    """
    number = types.intp
    signature = types.void(
        a, number, number, number, b, number, number, number, c, number, number, number, bias
    )

    def generate(context, builder, signature, arguments):
        a, start_a, row_a, step_a, b, start_b, step_b, depth, c, start_c, row_c, to, bias = (
            arguments
        )
        type_a, type_b, type_c = signature.args[0], signature.args[4], signature.args[8]
        entry = context.get_value_type(type_c.dtype)
        length = BYTES // context.get_abi_sizeof(entry)
        vector = ir.VectorType(entry, length)
        integer = start_a.type
        multiply_add, zeros = _multiply_add(builder.module, vector), ir.Constant(vector, None)
        byte, int32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, *[int32] * 3])
        )

        def address(type_, array, start):
            return builder.gep(context.make_array(type_)(context, builder, array).data, [start])

        def advance(pointer, steps, length):
            return builder.gep(pointer, [builder.mul(steps, length)])

        def vectors_at(pointer):
            places = (builder.gep(pointer, [integer(v * length)]) for v in range(VECTORS))
            return [builder.bitcast(place, vector.as_pointer()) for place in places]

        starts = (type_a, a, start_a), (type_b, b, start_b), (type_c, c, start_c)
        a, b, c = (address(*start) for start in starts)
        block = [vectors_at(advance(c, integer(r), row_c)) for r in range(ROWS)]
        for place in itertools.chain(*block):  # c arrives while the products are summed
            how = (int32(n) for n in (1, 3, 1))  # to write, to keep in all caches, data
            builder.call(prefetch, [builder.bitcast(place, byte), *how])
        sums = [[cgutils.alloca_once(builder, vector) for _ in row] for row in block]
        initial = [zeros] * VECTORS
        if signature.args[-1] != types.none:
            places = vectors_at(address(signature.args[-1], bias, integer(0)))
            initial = [builder.load(place, align=4) for place in places]
        for row in sums:
            for x, register in zip(initial, row, strict=True):
                builder.store(x, register)
        with builder.if_then(builder.icmp_signed("==", to, integer(CONTINUE)), likely=False):
            for place, register in zip(
                itertools.chain(*block), itertools.chain(*sums), strict=True
            ):
                builder.store(builder.load(place, align=4), register)
        with cgutils.for_range(builder, depth, intp=integer) as loop:
            right = [builder.load(p, align=4) for p in vectors_at(advance(b, loop.index, step_b))]
            column = advance(a, loop.index, step_a)
            for r, registers in enumerate(sums):
                left = _repeat(builder, advance(column, integer(r), row_a), vector)
                for x, register in zip(right, registers, strict=True):
                    total = builder.call(multiply_add, [left, x, builder.load(register)])
                    builder.store(total, register)
        _keep_rolled(builder.module, loop)
        adds = builder.icmp_signed("==", to, integer(ADD))
        for place, register in zip(itertools.chain(*block), itertools.chain(*sums), strict=True):
            before = builder.select(adds, builder.load(place, align=4), zeros)
            builder.store(builder.fadd(before, builder.load(register)), place, align=4)
        return context.get_dummy_value()

    return signature, generate


def _keep_rolled(module, loop):
    """Keep LLVM from unrolling a loop of `cgutils.for_range`.

    Two steps of `multiply_block` at once need more registers than there are: its sums would move to
    memory and back, which takes twice the time.
    """
    option = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    loop_id = module.add_metadata([option])
    loop_id.operands = (loop_id, option)  # LLVM requires a loop's metadata to begin with itself
    _, (_, end_of_step) = loop.index.incomings
    end_of_step.terminator.set_metadata("llvm.loop", loop_id)


@intrinsic
def transpose_block(typing, x, start_x, row_x, y, start_y, row_y):
    """y[i, j] = x[j, i], for as many rows and columns as a vector has entries.

    The arrays are plain memory: row r begins at start + r * row.
    """
    number = types.intp
    signature = types.void(x, number, number, y, number, number)

    def generate(context, builder, signature, arguments):
        held = _transposed_rows(context, builder, signature.args[0], *arguments[:3])
        places = _rows_of_block(context, builder, signature.args[3], *arguments[3:])
        for row, place in zip(held, places, strict=True):
            builder.store(row, place, align=4)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def add_rows(typing, x, start_x, w, start_w, row_w, count, y, start_y):
    """y += sum over k < count of x[k] * w[k, :], for LONG vectors of columns.

    Each product is added to the sum so far, in the order of k. The arrays are plain memory: x, y
    and w[k] begin at start_x, start_y and start_w + k * row_w.
    """
    number = types.intp
    signature = types.void(x, number, w, number, number, number, y, number)

    def generate(context, builder, signature, arguments):
        x, start_x, w, start_w, row_w, count, y, start_y = arguments
        entry = context.get_value_type(signature.args[6].dtype)
        length = BYTES // context.get_abi_sizeof(entry)
        vector, integer = ir.VectorType(entry, length), start_x.type
        multiply_add = _multiply_add(builder.module, vector)

        def address(type_, array, start):
            return builder.gep(context.make_array(type_)(context, builder, array).data, [start])

        def vectors_at(pointer):
            places = (builder.gep(pointer, [integer(v * length)]) for v in range(LONG))
            return [builder.bitcast(place, vector.as_pointer()) for place in places]

        x = address(signature.args[0], x, start_x)
        w = address(signature.args[2], w, start_w)
        places = vectors_at(address(signature.args[6], y, start_y))
        sums = [cgutils.alloca_once(builder, vector) for _ in places]
        for place, register in zip(places, sums, strict=True):
            builder.store(builder.load(place, align=4), register)
        with cgutils.for_range(builder, count, intp=integer) as loop:
            left = _repeat(builder, builder.gep(x, [loop.index]), vector)
            row = vectors_at(builder.gep(w, [builder.mul(loop.index, row_w)]))
            for place, register in zip(row, sums, strict=True):
                right, total = builder.load(place, align=4), builder.load(register)
                builder.store(builder.call(multiply_add, [left, right, total]), register)
        _keep_rolled(builder.module, loop)
        for place, register in zip(places, sums, strict=True):
            builder.store(builder.load(register), place, align=4)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def add_transposed_block(typing, x, start_x, row_x, rows, w, start_w, row_w, y, start_y, row_y):
    """y[r, n] += sum over k of x[r, k] * w[n, k], for as many n and k as a vector has entries.

    Each product is added to the sum so far, in the order of k. The arrays are plain memory: row r
    begins at start + r * row.
    """
    number = types.intp
    signature = types.void(x, number, number, number, w, number, number, y, number, number)

    def generate(context, builder, signature, arguments):
        x, start_x, row_x, rows, w, start_w, row_w, y, start_y, row_y = arguments
        held = _transposed_rows(context, builder, signature.args[4], w, start_w, row_w)
        vector, integer = held[0].type, start_x.type
        multiply_add = _multiply_add(builder.module, vector)
        data_x = context.make_array(signature.args[0])(context, builder, x).data
        data_y = context.make_array(signature.args[7])(context, builder, y).data
        with cgutils.for_range(builder, rows, intp=integer) as loop:
            from_x = builder.add(start_x, builder.mul(loop.index, row_x))
            to_y = builder.add(start_y, builder.mul(loop.index, row_y))
            place = builder.bitcast(builder.gep(data_y, [to_y]), vector.as_pointer())
            total = builder.load(place, align=4)
            for k, row in enumerate(held):
                left = _repeat(
                    builder, builder.gep(data_x, [builder.add(from_x, integer(k))]), vector
                )
                total = builder.call(multiply_add, [left, row, total])
            builder.store(total, place, align=4)
        return context.get_dummy_value()

    return signature, generate


def _rows_of_block(context, builder, type_, array, start, row):
    """Pointers to as many rows of a matrix as a vector has entries, each as a vector."""
    entry = context.get_value_type(type_.dtype)
    length = BYTES // context.get_abi_sizeof(entry)
    pointer = ir.VectorType(entry, length).as_pointer()
    data = context.make_array(type_)(context, builder, array).data
    starts = [builder.add(start, builder.mul(row, row.type(r))) for r in range(length)]
    return [builder.bitcast(builder.gep(data, [s]), pointer) for s in starts]


def _transposed_rows(context, builder, type_, array, start, row):
    """The columns of such a square block, as vectors.

    Vector r contains row r. For each bit of the row number in turn, two rows whose numbers differ
    only in this bit exchange the entries whose column number differs from the row's in this bit.
    """
    places = _rows_of_block(context, builder, type_, array, start, row)
    held, length = [builder.load(place, align=4) for place in places], len(places)

    def select(a, b, places):
        mask = ir.Constant(ir.VectorType(ir.IntType(32), length), places)
        return builder.shuffle_vector(a, b, mask)

    bit = 1
    while bit < length:
        from_b = [length * (k & bit > 0) for k in range(length)]
        for r in range(length):
            if not r & bit:
                a, b = held[r], held[r + bit]
                held[r] = select(a, b, [(k & ~bit) + n for k, n in enumerate(from_b)])
                held[r + bit] = select(a, b, [(k | bit) + n for k, n in enumerate(from_b)])
        bit *= 2
    return held


def _multiply_add(module, type_):
    """LLVM's function of a, b and c, of this type: a b + c, rounded once."""
    scalar = getattr(type_, "element", type_)
    kind = {"float": "f32", "double": "f64"}[str(scalar)]
    lanes = f"v{type_.count}" if scalar is not type_ else ""
    function = ir.FunctionType(type_, [type_] * 3)
    return cgutils.get_or_insert_function(module, function, f"llvm.fma.{lanes}{kind}")


def _repeat(builder, pointer, vector):
    """A number from memory in every entry of a vector."""
    anything = ir.Constant(vector, ir.Undefined)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
    x = builder.insert_element(anything, builder.load(pointer), ir.IntType(32)(0))
    return builder.shuffle_vector(x, anything, everywhere)


@intrinsic
def fma(typing, a, b, c):
    """a b + c, rounded once."""

    def generate(context, builder, signature, arguments):
        return builder.call(_multiply_add(builder.module, arguments[0].type), arguments)

    return a(a, a, a), generate


@intrinsic
def sum_in_vectors(typing, x, count):
    """The sum of the first entries of x, for a count that is a multiple of VECTORS vectors.

    Entry j is added to partial sum j mod n, where n is the number of entries in VECTORS vectors. At
    the end the partial sums are added in pairs. So zeros at the end of x do not change a bit.
    """

    def generate(context, builder, signature, arguments):
        x, count = arguments
        entry = context.get_value_type(signature.args[0].dtype)
        length = BYTES // context.get_abi_sizeof(entry)
        vector = ir.VectorType(entry, length)
        data = context.make_array(signature.args[0])(context, builder, x).data
        sums = [
            cgutils.alloca_once_value(builder, ir.Constant(vector, None)) for _ in range(VECTORS)
        ]
        step = count.type(VECTORS * length)
        with cgutils.for_range(builder, builder.sdiv(count, step)) as loop:
            start = builder.mul(loop.index, step)
            for v, register in enumerate(sums):
                place = builder.gep(data, [builder.add(start, step.type(v * length))])
                row = builder.load(builder.bitcast(place, vector.as_pointer()), align=4)
                builder.store(builder.fadd(builder.load(register), row), register)
        total = builder.load(sums[0])
        for register in sums[1:]:
            total = builder.fadd(total, builder.load(register))
        anything = ir.Constant(vector, ir.Undefined)
        while length > 1:
            length //= 2
            upper = [length + k % length for k in range(vector.count)]
            places = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), upper)
            total = builder.fadd(total, builder.shuffle_vector(total, anything, places))
        return builder.extract_element(total, ir.IntType(32)(0))

    return x.dtype(x, types.intp), generate


@intrinsic
def prefetch(typing, x, start):
    """Begin to load the cache line of entry start of x. An entry beyond the end does no harm."""

    def generate(context, builder, signature, arguments):
        byte, int32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, *[int32] * 3])
        )
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        place = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        builder.call(function, [place, int32(0), int32(2), int32(1)])  # to read, into L2, data
        return context.get_dummy_value()

    return types.void(x, types.intp), generate


@intrinsic
def copy_vector(typing, x, start_x, y, start_y, *factor):
    """Copy a vector, times a factor if there is one, from entry start_x of x to entry start_y of y.
    The arrays are plain memory."""

    def generate(context, builder, signature, arguments):
        x, start_x, y, start_y, factor = arguments
        entry = context.get_value_type(signature.args[0].dtype)
        vector = ir.VectorType(entry, BYTES // context.get_abi_sizeof(entry))

        def address(type_, array, start):
            place = builder.gep(context.make_array(type_)(context, builder, array).data, [start])
            return builder.bitcast(place, vector.as_pointer())

        held = builder.load(address(signature.args[0], x, start_x), align=4)
        for number in cgutils.unpack_tuple(builder, factor):
            anything = ir.Constant(vector, ir.Undefined)
            first = builder.insert_element(anything, number, ir.IntType(32)(0))
            everywhere = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
            held = builder.fmul(held, builder.shuffle_vector(first, anything, everywhere))
        builder.store(held, address(signature.args[2], y, start_y), align=4)
        return context.get_dummy_value()

    factor = types.StarArgTuple.from_types([x.dtype] * len(factor))
    return types.void(x, types.intp, y, types.intp, factor), generate
