"""Writes code for LLVM, the compiler behind Numba, that computes with vectors in registers.

LLVM keeps vectors in registers if the code uses its vector types. Numba has no such types, but it
lets a kernel call an *intrinsic*: a function whose code for LLVM we write ourselves. This one
doubles a vector of an array:

    @intrinsic
    def double(typing, x, start):
        def write(code, x, start):
            pointer = code.vector_at(code.entry(x, start))
            y = code.load(pointer)
            code.store(code.add(y, y), pointer)

        return types.void(x, types.intp), written_by(write)

Pointers have the type of what they point to. Nothing checks that a pointer is inside its array.
"""

from __future__ import annotations

import contextlib

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .registers import BYTES

_BYTE = ir.IntType(8).as_pointer()
_INT32 = ir.IntType(32)


def written_by(write):
    """Make the function that Numba calls to generate the code of an intrinsic. That function calls
    `write(code, *arguments)`, where `code` is a `Code`, to which `write` adds instructions.

    `write` receives the arguments of the intrinsic: an array as a pointer to its first entry, a
    tuple as a list, and None as None. It may return the intrinsic's result. The vectors of `code`
    consist of numbers of the same type as the intrinsic's first argument or, if that is an array,
    as its entries.
    """

    def generate(context, builder, signature, arguments):
        def unpacked(type_, x):
            if isinstance(type_, types.Array):
                return context.make_array(type_)(context, builder, x).data
            if isinstance(type_, types.BaseTuple):
                return cgutils.unpack_tuple(builder, x)
            return None if type_ == types.none else x

        first = signature.args[0]
        code = Code(context, builder, getattr(first, "dtype", first))
        result = write(code, *map(unpacked, signature.args, arguments))
        return context.get_dummy_value() if result is None else result

    return generate


class Code:
    """Generates the code of an intrinsic, with vectors of one type of number, `dtype`. Each method
    adds instructions to the code. `context` and `builder` are what Numba passes to a generator of
    code.

    builder  the builder of llvmlite, for instructions that have no method here
    length   the number of entries of a vector
    zeros    a vector of zeros
    """

    def __init__(self, context, builder, dtype):
        self.builder = builder
        self._number = context.get_value_type(dtype)
        self._integer = context.get_value_type(types.intp)
        self.length = BYTES // context.get_abi_sizeof(self._number)
        self._vector = ir.VectorType(self._number, self.length)
        self.zeros = ir.Constant(self._vector, None)
        self._anything = ir.Constant(self._vector, ir.Undefined)

    def entry(self, x, k):
        """A pointer to entry k of the array that begins at the pointer x."""
        return self.builder.gep(x, [self._index(k)])

    def row(self, x, k, distance):
        """A pointer to row k of the matrix that begins at the pointer x. `distance`, a number in
        the generated code, counts the entries from the start of a row to the start of the next."""
        return self.builder.gep(x, [self.builder.mul(self._index(k), distance)])

    def vector_at(self, pointer):
        """Convert a pointer to a number to a pointer to the vector that begins with this number in
        memory."""
        return self.builder.bitcast(pointer, self._vector.as_pointer())

    def vectors_at(self, pointer, count):
        """A list of pointers to `count` vectors that follow one another in memory; the first begins
        at `pointer`, a pointer to a number."""
        return [self.vector_at(self.entry(pointer, v * self.length)) for v in range(count)]

    def _index(self, k):
        return self._integer(k) if isinstance(k, int) else k

    def load(self, pointer):
        return self.builder.load(pointer, align=4)  # a vector may begin at any number

    def load_vectors(self, pointer, count):
        return [self.load(vector) for vector in self.vectors_at(pointer, count)]

    def store(self, x, pointer):
        self.builder.store(x, pointer, align=4)

    def variable(self, x):
        """Make a variable of the generated code with the initial value x, and return a pointer to
        it; LLVM keeps the variable in a register."""
        return cgutils.alloca_once_value(self.builder, x)

    def prefetch(self, pointer, *, to_write, locality):
        """Begin to load the cache line to which a pointer points. A locality of 3 means into all
        caches, 2 means into the L2 cache; `to_write` says whether the line will be written."""
        kind = ir.FunctionType(ir.VoidType(), [_BYTE, _INT32, _INT32, _INT32])
        function = self.builder.module.declare_intrinsic("llvm.prefetch", [_BYTE], kind)
        is_data = _INT32(1)
        pointer = self.builder.bitcast(pointer, _BYTE)
        self.builder.call(function, [pointer, _INT32(int(to_write)), _INT32(locality), is_data])

    def repeat(self, x):
        """A vector whose entries are all the number x."""
        first = self.builder.insert_element(self._anything, x, _INT32(0))
        return self.shuffle(first, self._anything, [0] * self.length)

    def first(self, x):
        """The first entry of the vector x."""
        return self.builder.extract_element(x, _INT32(0))

    def shuffle(self, a, b, indices):
        """A vector of chosen entries of the vectors a and b. `indices` has an index for each entry
        of the result: k < length means entry k of a, and length + k entry k of b."""
        mask = ir.Constant(ir.VectorType(_INT32, self.length), indices)
        return self.builder.shuffle_vector(a, b, mask)

    def add(self, a, b):
        return self.builder.fadd(a, b)

    def multiply(self, a, b):
        return self.builder.fmul(a, b)

    def multiply_add(self, a, b, c):
        """a b + c, for vectors or numbers, rounded only once (a fused multiply-add)."""
        lanes = f"v{self.length}" if a.type == self._vector else ""
        kind = {"float": "f32", "double": "f64"}[str(self._number)]
        function = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(a.type, [a.type] * 3), f"llvm.fma.{lanes}{kind}"
        )
        return self.builder.call(function, [a, b, c])

    def equal(self, x, y):
        """The condition x == y, for an integer x that the code computes and a Python integer y."""
        return self.builder.icmp_signed("==", x, self._integer(y))

    @contextlib.contextmanager
    def loop(self, count):
        """`with code.loop(count) as k:` adds a loop over k from 0 to count − 1. The instructions
        that are added in the `with` block are its body."""
        with cgutils.for_range(self.builder, count, intp=self._integer) as loop:
            yield loop.index

    @contextlib.contextmanager
    def rolled_loop(self, count):
        """Like `loop`, but LLVM does not unroll the loop.

        When it unrolled the loop of `multiply_block` for AVX-512, LLVM mixed two steps in an order
        that needs more registers than there are: in `linear`, sums moved to memory and back, which
        took twice the time.
        """
        with cgutils.for_range(self.builder, count, intp=self._integer) as loop:
            yield loop.index

        module = self.builder.module
        option = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
        loop_id = module.add_metadata([option])
        loop_id.operands = (loop_id, option)  # LLVM requires that it begins with itself
        _, (_, end_of_step) = loop.index.incomings
        end_of_step.terminator.set_metadata("llvm.loop", loop_id)
