"""Writes code for LLVM, the compiler behind Numba, that computes with vectors in registers.

LLVM keeps vectors in registers if the code uses its vector types. Numba has no such types, but it
lets a kernel call an *intrinsic*: a function whose code for LLVM we write ourselves. This one
doubles a vector of an array:

    @intrinsic
    def double(typing, x, start):
        def write(code, x, start):
            place = code.vector_at(code.entry(x, start))
            y = code.load(place)
            code.store(code.add(y, y), place)

        return types.void(x, types.intp), written_by(write)

A *place* is an address in memory, with the type of what is there. Nothing checks that a place is
inside its array.
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
    """Make the function that Numba calls to generate the code of an intrinsic. It calls
    `write(code, *arguments)`, which writes the code.

    `write` receives an array as the place of its first entry, a tuple as a list, and None as None.
    It may return the result. Vectors have entries of the type of the first argument, or of its
    entries.
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
    """The code of an intrinsic, for vectors of one type of number. Each method adds instructions to
    the code.

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
        """The place of entry k of the array that begins at the place x."""
        return self.builder.gep(x, [self._index(k)])

    def row(self, x, k, distance):
        """The place of row k of the array that begins at the place x; its rows begin at this
        distance from each other."""
        return self.builder.gep(x, [self.builder.mul(self._index(k), distance)])

    def vector_at(self, place):
        """The place of a number as the place of a vector that begins with this number."""
        return self.builder.bitcast(place, self._vector.as_pointer())

    def vectors_at(self, place, count):
        """A list of the places of `count` vectors that follow one another; the first begins at
        `place`."""
        return [self.vector_at(self.entry(place, v * self.length)) for v in range(count)]

    def _index(self, k):
        return self._integer(k) if isinstance(k, int) else k

    def load(self, place):
        return self.builder.load(place, align=4)  # a vector may begin at any number

    def load_vectors(self, place, count):
        return [self.load(vector) for vector in self.vectors_at(place, count)]

    def store(self, x, place):
        self.builder.store(x, place, align=4)

    def variable(self, x):
        """Make a variable with the initial value x, and return its place; LLVM keeps it in a
        register."""
        return cgutils.alloca_once_value(self.builder, x)

    def prefetch(self, place, *, to_write, locality):
        """Begin to load the cache line at a place. A locality of 3 means into all caches, 2 means
        into the L2 cache; `to_write` says whether the line will be written."""
        kind = ir.FunctionType(ir.VoidType(), [_BYTE, _INT32, _INT32, _INT32])
        function = self.builder.module.declare_intrinsic("llvm.prefetch", [_BYTE], kind)
        is_data = _INT32(1)
        place = self.builder.bitcast(place, _BYTE)
        self.builder.call(function, [place, _INT32(int(to_write)), _INT32(locality), is_data])

    def repeat(self, x):
        """A vector whose entries are all the number x."""
        first = self.builder.insert_element(self._anything, x, _INT32(0))
        return self.shuffle(first, self._anything, [0] * self.length)

    def first(self, x):
        """The first entry of the vector x."""
        return self.builder.extract_element(x, _INT32(0))

    def shuffle(self, a, b, places):
        """A vector of chosen entries of the vectors a and b. `places` has their numbers: from 0 for
        the entries of a, from `length` for those of b."""
        mask = ir.Constant(ir.VectorType(_INT32, self.length), places)
        return self.builder.shuffle_vector(a, b, mask)

    def add(self, a, b):
        return self.builder.fadd(a, b)

    def multiply(self, a, b):
        return self.builder.fmul(a, b)

    def multiply_add(self, a, b, c):
        """a b + c, for vectors or numbers, rounded once."""
        lanes = f"v{self.length}" if a.type == self._vector else ""
        kind = {"float": "f32", "double": "f64"}[str(self._number)]
        function = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(a.type, [a.type] * 3), f"llvm.fma.{lanes}{kind}"
        )
        return self.builder.call(function, [a, b, c])

    def equal(self, x, y):
        """A condition: whether the integer x has the value y."""
        return self.builder.icmp_signed("==", x, self._integer(y))

    @contextlib.contextmanager
    def loop(self, count):
        """`with code.loop(count) as k:` writes the body of a loop over k < count."""
        with cgutils.for_range(self.builder, count, intp=self._integer) as loop:
            yield loop.index

    @contextlib.contextmanager
    def rolled_loop(self, count):
        """Like `loop`, but LLVM does not unroll the loop.

        With AVX-512, LLVM mixes two steps of `multiply_block` in an order that needs more registers
        than there are: in `linear`, sums moved to memory and back, which took twice the time.
        """
        with cgutils.for_range(self.builder, count, intp=self._integer) as loop:
            yield loop.index

        module = self.builder.module
        option = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
        loop_id = module.add_metadata([option])
        loop_id.operands = (loop_id, option)  # LLVM requires that it begins with itself
        _, (_, end_of_step) = loop.index.incomings
        end_of_step.terminator.set_metadata("llvm.loop", loop_id)
