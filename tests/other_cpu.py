"""`pytest --other-cpu SEED`: NumPy rounds as it might on another machine.

The last bits of a matrix product, of a sum, and of functions such as exp depend on the CPU. A
library adds up the terms of a product in the order that suits the CPU's registers, and in a
different order for other sizes, other strides, or the last few rows. For every second entry of an
array, or for its last few entries, exp runs other code than for the rest. So two results that have
the same bits here may differ in their last bits elsewhere, and a test that asks for equal bits may
pass only on its author's machine.

With this option you need no other machine. Each seed stands for a different one:

products     `@`, matmul, dot, inner, vdot, einsum, tensordot, … cut the sum over the inner axis in
             two: they add up the terms before the cut, then those after it, and add both sums.
             Where the cut is depends on the seed and on what may change the order on a real
             machine: the operation, shapes, strides, alignment and the number of threads. The last
             n mod 8 rows have a cut of their own
sums         sum, mean, var, prod, cumsum, logaddexp.reduce, … have such a cut, too
functions    exp, log, tanh, sin, erf, powers, … change half of their results by one unit in the
             last place. Inside an array, equal values change in the same way; in its first and last
             few entries, and in an array with gaps, they change in another way

So the same call on the same layout always gives the same bits, as with OpenBLAS. (Intel's MKL may
also round by the address of an array, unless MKL_CBWR is set. gradcheck and diagnose allow for
that; many tests, such as those of resumed runs, do not.) What is exact stays exact: sums of small
integers, exp 0 = 1, tanh x = x for tiny x, zeros, infinities and NaN. What every CPU rounds
correctly does not change: + − × ÷, square roots, the largest, the smallest.

The option reaches all calls of NumPy in this process, but no other process, nor torch, compiled
kernels or LAPACK. OpenBLAS and Numba contain code for other CPUs, which `.ci/other_cpus` runs.

How it works: a ufunc such as np.matmul, which `@` calls, has a table of compiled loops, one for
each dtype. Here, Python functions that call these loops take their places in the table. Only the
compiled loops compute floating-point numbers, so warnings, such as that of an overflow, remain as
they were. Methods such as np.add.reduce and functions such as np.dot are replaced by name.
"""

import contextlib
import ctypes
import functools
import gc
import sys
import zlib

import numpy as np

PRODUCTS = {  # the axes of both operands and of the result, as in einsum; k is summed over
    "matmul": ("nk", "km", "nm"),
    "vecdot": ("k", "k", ""),
    "matvec": ("nk", "k", "n"),
    "vecmat": ("k", "km", "m"),
}
FUNCTIONS = [
    *["exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logaddexp", "logaddexp2"],
    *["sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2", "hypot"],
    *["sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "cbrt", "power", "float_power"],
]
SPECIAL_FUNCTIONS = ["erf", "erfc", "expit", "log_expit", "ndtr", "log_ndtr"]  # of SciPy
SUMS = (np.add, np.multiply, np.logaddexp, np.logaddexp2)

ROWS = 8
"""A kernel computes this many rows or entries at once; other code computes the remaining ones."""

ALIGNMENT = 16
"""In bytes. Every allocator starts an array at a multiple of it; a view may start elsewhere."""

SCRATCH = 2**18
"""Bytes for the second part of a product; few, since some tests measure memory."""

UNSET = np._NoValue
"""NumPy's mark for an argument that was not given."""

machine = None
"""The seed of the machine whose rounding NumPy has now; None for its own rounding."""


@contextlib.contextmanager
def other_cpu(seed):
    """In this block NumPy rounds as on the machine of this seed; with None, it rounds as usual."""
    global machine  # noqa: PLW0603
    before = machine
    _install()
    machine = seed
    try:
        yield
    finally:
        machine = before


@functools.cache
def _install():
    """Replace the loops, methods and functions. While machine is None, they change nothing."""
    for name, axes in PRODUCTS.items():
        if hasattr(np, name):  # NumPy 2.2 brought matvec and vecmat
            _replace_loops(getattr(np, name), functools.partial(_product, axes))
    for name in FUNCTIONS:
        _replace_loops(getattr(np, name), _function)
    with contextlib.suppress(ImportError):
        import scipy.special

        for name in SPECIAL_FUNCTIONS:
            _replace_loops(getattr(scipy.special, name), _function)
    _replace_sums()
    _replace_dots()


def _drawn(*facts):
    """A pseudo-random number, determined by the facts and the machine."""
    return zlib.crc32(repr((machine, *facts)).encode())


# Products and functions: the loops of ufuncs


class _Ufunc(ctypes.Structure):
    """The first fields of NumPy's PyUFuncObject, the same in all versions of NumPy 2."""

    _fields_ = [
        ("head", ctypes.c_byte * object.__basicsize__),
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
    ]


_LOOP = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)  # of pointers, sizes, strides and data

_kept = []
"""The functions in NumPy's tables, which Python must not free."""


def _replace_loops(ufunc, make):
    """Replace each loop on floating-point numbers by make(its name, types, loop)."""
    functions = _Ufunc.from_address(id(ufunc)).functions
    for k, types in enumerate(ufunc.types):
        if types[0] in "efdFD":
            other = _LOOP(
                make(f"{ufunc.__name__} {types}", types.replace("->", ""), _loop(ufunc, k))
            )
            _kept.append(other)
            functions[k] = ctypes.cast(other, ctypes.c_void_p).value


def _loop(ufunc, k):
    """Loop k of a ufunc as a function of lists."""
    table = _Ufunc.from_address(id(ufunc))
    function = _LOOP(table.functions[k])
    data = table.data[k] if table.data else None

    def loop(pointers, sizes, strides):
        function(
            (ctypes.c_void_p * len(pointers))(*pointers),
            (ctypes.c_ssize_t * len(sizes))(*sizes),
            (ctypes.c_ssize_t * len(strides))(*strides),
            data,
        )

    return loop


def _read(address, length):
    return list((ctypes.c_ssize_t * length).from_address(address))


def _product(letters, name, types, loop):
    """A loop of products that adds up the terms before a cut of the depth, then those after it."""
    dtype = np.dtype(types[-1])
    add = _loop(np.add, np.add.types.index(f"{dtype.char * 2}->{dtype.char}"))
    axes = list(dict.fromkeys("".join(letters)))  # in the order of the loop's sizes
    order = [(operand, axis) for operand in range(3) for axis in letters[operand]]  # of its strides

    def run(pointers, size, step):
        """The compiled loop; step[operand][axis] bytes lie between two entries."""
        sizes = [size[axis] for axis in ("batch", *axes)]
        loop(pointers, sizes, [s["batch"] for s in step] + [step[o][axis] for o, axis in order])

    def beyond(pointers, step, axis, start):
        """Where the part of each operand from an index of an axis on begins."""
        return [p + start * s.get(axis, 0) for p, s in zip(pointers, step, strict=True)]

    def in_two_parts(pointers, size, step, cut):
        if dtype.char == "e":  # sums are 32 bits wide until they end: forwards or backwards
            last = beyond(pointers, step, "k", size["k"] - 1)
            back = [{**s, "k": -s.get("k", 0)} for s in step]
            return run(last, size, back) if cut % 2 else run(pointers, size, step)
        run(pointers, {**size, "k": cut}, step)
        kept = ["batch", *letters[2]]
        second = np.empty([size[axis] for axis in kept], dtype)
        a, b, y = beyond(pointers, step, "k", cut)
        there = dict(zip(kept, second.strides, strict=True))
        run([a, b, second.ctypes.data], {**size, "k": size["k"] - cut}, [*step[:2], there])
        return increase(y, [step[2][axis] for axis in kept], second)

    def increase(y, steps, second):
        """Add the array `second` to the result at y, in as few calls as its layout allows."""
        if tuple(steps) == second.strides or second.ndim == 1:
            s = steps[-1] if second.ndim == 1 else dtype.itemsize
            add([y, second.ctypes.data, y], [second.size], [s, dtype.itemsize, s])
        else:
            for k, part in enumerate(second):
                increase(y + k * steps[0], steps[1:], part)

    def rounded(pointers, sizes, strides, _):
        pointers = _read(pointers, 3)
        size = dict(zip(("batch", *axes), _read(sizes, 1 + len(axes)), strict=True))
        strides = _read(strides, 3 + len(order))
        step = [{"batch": s} for s in strides[:3]]
        for (operand, axis), s in zip(order, strides[3:], strict=True):
            step[operand][axis] = s
        if machine is None or size["k"] < 2 or 0 in size.values():
            return run(pointers, size, step)

        # The matrices of a batch are multiplied one by one, so that its length does not matter.
        n = size.get("n", 1)
        m = size.get("m", 1)
        one = [size[axis] for axis in axes], strides[3:], [p % ALIGNMENT for p in pointers[:2]]
        body, tail = (1 + _drawn(name, *one, _threads(), k) % (size["k"] - 1) for k in range(2))
        if pointers[0] == pointers[1]:  # x xᵀ is symmetric on every machine
            return in_two_parts(pointers, size, step, body)
        for first, count in _blocks(0, size["batch"], SCRATCH // (dtype.itemsize * n * m)):
            block = beyond(pointers, step, "batch", first)
            for cut, start, stop in (body, 0, n - n % ROWS), (tail, n - n % ROWS, n):
                for row, height in _blocks(start, stop, SCRATCH // (dtype.itemsize * m)):
                    part = {**size, "batch": count, "n": height}
                    in_two_parts(beyond(block, step, "n", row), part, step, cut)
        return None

    return rounded


def _blocks(start, stop, length):
    """Beginnings and lengths of the blocks of a range; each has ROWS entries or more."""
    length = max(length, ROWS)
    return [(k, min(length, stop - k)) for k in range(start, stop, length)]


def _threads():
    """The number of threads of NumPy's BLAS."""
    blas = _blas()
    return blas.get_num_threads() if blas else 1


@functools.cache
def _blas():
    from threadpoolctl import ThreadpoolController

    return next(iter(ThreadpoolController().select(user_api="blas").lib_controllers), None)


def _function(name, types, loop):
    """A loop of a function, half of whose results change by one unit in the last place."""
    parts = 2 if types[-1] in "FD" else 1
    item = np.dtype(types[-1]).itemsize // parts
    nudge = _nudge(item)

    def rounded(pointers, sizes, strides, _):
        pointers = _read(pointers, len(types))
        strides = _read(strides, len(types))
        (n,) = _read(sizes, 1)
        if machine is None or any(s % item for s in strides):
            return loop(pointers, [n], strides)

        y, step = pointers[-1], strides[-1] // item
        dense = all(s in {0, item * parts} for s in strides)
        inside, edge, gaps = (_drawn(name, part) for part in range(3))
        first = min(n, -y % ALIGNMENT // (item * parts)) if dense else n
        last = max(first, n - (n - first) % ROWS)
        salts = [edge if dense else gaps, inside]

        # A result equal to an argument is exact, such as tanh x = x. It may overwrite the argument.
        arguments = pointers[:-1]
        if y in arguments and step > 0:
            kept = ctypes.create_string_buffer(ctypes.string_at(y, n * step * item))
            arguments = [ctypes.addressof(kept) if x == y else x for x in arguments]
        loop(pointers, [n], strides)
        x, z = arguments[0], arguments[-1]
        x_step, z_step = strides[0] // item, strides[-2] // item
        for offset in range(0, parts * item, item):
            ends = x + offset, x_step, z + offset, z_step
            nudge(y + offset, step, *ends, n, first, last, *salts)
        return None

    return rounded


@functools.cache
def _nudge(itemsize):
    """A compiled function that changes the last bits of n numbers."""
    from numba import cfunc, types

    bits = 8 * itemsize
    mantissa = np.finfo(f"f{itemsize}").nmant
    unsigned = getattr(types, f"uint{bits}")
    half_mantissa = unsigned(2 ** ((mantissa + 1) // 2) - 1)
    infinity = unsigned(2 ** (bits - 1) - 2**mantissa)
    size_mask = unsigned(2 ** (bits - 1) - 1)
    numbers = types.CPointer(unsigned)
    operand = numbers, types.intp  # where it begins, and its step
    operands = *operand, *operand, *operand

    @cfunc(types.void(*operands, *[types.intp] * 3, *[types.uint64] * 2), cache=True)
    def nudge(y, step, x, x_step, z, z_step, n, first, last, edge, inside):
        for k in range(n):
            value = y[k * step]
            size = value & size_mask
            short = size & half_mantissa == 0  # 0, 1, ∞, small integers: exact
            if short or size >= infinity or value == x[k * x_step] or value == z[k * z_step]:
                continue
            h = types.uint64(value) ^ (inside if first <= k < last else edge)
            h = (h ^ h >> types.uint64(15)) * types.uint64(0x9E3779B97F4A7C15)
            choice = h >> types.uint64(62)
            if choice == 1 and size + unsigned(1) < infinity:
                y[k * step] = value + unsigned(1)
            elif choice == 2:
                y[k * step] = value - unsigned(1)

    _kept.append(nudge)
    operand = ctypes.c_void_p, ctypes.c_ssize_t
    counts = [ctypes.c_ssize_t] * 3 + [ctypes.c_uint64] * 2
    return ctypes.CFUNCTYPE(None, *operand * 3, *counts)(nudge.address)


# Sums, and products without a ufunc: methods and functions


def _attributes(kind):
    """The dictionary of a type that is written in C, which Python shows read-only."""
    return gc.get_referents(vars(kind))[0]


def _replace_method(kind, name, make):
    attributes = _attributes(kind)
    attributes[name] = make(attributes[name])
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _replace_sums():
    _replace_method(np.ufunc, "reduce", _reduce)
    _replace_method(np.ufunc, "accumulate", _accumulate)
    from numpy._core import _methods  # x.sum() and the like; they keep the method of the past

    _methods.umr_sum = np.add.reduce
    _methods.umr_prod = np.multiply.reduce


def _cut(length, *facts):
    return 1 + _drawn(*facts) % (length - 1)


def _layout(x):
    return x.dtype.char, x.shape, x.strides, x.ctypes.data % ALIGNMENT


def _part(x, axis, *bounds):
    """x[:, start:stop] for axis 1, and likewise for another axis."""
    return x[(slice(None),) * axis + (slice(*bounds),)]


def _rounds(ufunc, x, dtype, out):
    """Whether a sum or product of these entries is rounded."""
    if machine is None or ufunc not in SUMS or type(x) is not np.ndarray or not x.ndim:
        return False
    target = dtype or (out.dtype if isinstance(out, np.ndarray) else x.dtype)
    return np.dtype(target).kind in "fc" and x.dtype.kind in "biufc"


def _reduce(method):
    def reduce(
        self, array, axis=0, dtype=None, out=None, keepdims=False, initial=UNSET, where=True
    ):
        more = {} if initial is UNSET else {"initial": initial}
        array = np.asarray(array) if isinstance(array, list | tuple) else array
        (out,) = out if isinstance(out, tuple) else (out,)

        def plain(x, where, out=None, **more):
            more |= {} if where is True else {"where": where}
            return method(self, x, axis, dtype, out, keepdims, **more)

        if not _rounds(self, array, dtype, out):
            return plain(array, where, out, **more)
        axes = range(array.ndim) if axis is None else np.atleast_1d(axis) % array.ndim
        summed = max(axes, key=lambda k: array.shape[k], default=None)
        if summed is None or array.shape[summed] < 2:
            return plain(array, where, out, **more)
        cut = _cut(array.shape[summed], self.__name__, *map(int, axes), *_layout(array))
        if where is not True:
            where = np.broadcast_to(where, array.shape)
        halves = [
            [x if x is True else _part(x, summed, *bounds) for x in (array, where)]
            for bounds in ((0, cut), (cut, None))
        ]
        one = plain(*halves[0], **more)
        two = plain(*halves[1])
        return self(one, two) if out is None else self(one, two, out=out)

    return reduce


def _accumulate(method):
    def accumulate(self, array, axis=0, dtype=None, out=None):
        result = method(self, array, axis, dtype, out)
        if not _rounds(self, array, dtype, out) or array.shape[axis] < 2:
            return result
        axis %= array.ndim
        cut = _cut(array.shape[axis], self.__name__, axis, *_layout(array))
        if array is not result:
            rest = method(self, _part(array, axis, cut, None), axis, result.dtype)
            before = _part(result, axis, cut - 1, cut)
            self(before, rest, out=_part(result, axis, cut, None))
        return result

    return accumulate


def _replace_dots():
    """np.dot and its kin, in whichever module of NumPy they have a name, and the method x.dot."""
    from numpy._core import einsumfunc

    ends = {  # the axes summed over, counted from the end
        np.dot: lambda a, b: (a.ndim - 1, max(b.ndim - 2, 0)),
        np.inner: lambda a, b: (a.ndim - 1, b.ndim - 1),
    }
    others = {id(f): (f, _dot(f, axes)) for f, axes in ends.items()}
    _make_known_to_numba(others[id(np.dot)][1])
    others[id(np.vdot)] = np.vdot, _vdot(np.vdot)
    others[id(einsumfunc.c_einsum)] = einsumfunc.c_einsum, _einsum(einsumfunc.c_einsum)
    for module in [m for name, m in sys.modules.items() if name.partition(".")[0] == "numpy"]:
        for name, value in list(vars(module).items()):
            if id(value) in others and others[id(value)][0] is value:
                setattr(module, name, others[id(value)][1])
    _replace_method(
        np.ndarray, "dot", lambda method: lambda self, b, out=None: np.dot(self, b, out)
    )


def _make_known_to_numba(dot):
    """Let kernels that are compiled from now on contain Numba's own dot where they say np.dot."""
    with contextlib.suppress(ImportError):
        from numba.extending import overload
        from numba.np import linalg

        overload(dot)(linalg.dot_2)
        overload(dot)(linalg.dot_3)


def _rounding_arrays(*arrays):
    return machine is not None and all(
        isinstance(x, np.ndarray) and x.ndim and x.size and x.dtype.kind in "fc" for x in arrays
    )


def _dot(function, ends):
    @functools.wraps(function)
    def dot(a, b, out=None):
        more = {} if out is None else {"out": out}
        a, b = (np.asarray(x) if isinstance(x, list | tuple) else x for x in (a, b))
        if not _rounding_arrays(a, b) or a.shape[-1] < 2:
            return function(a, b, **more)
        i, j = ends(a, b)
        if a.shape[i] != b.shape[j]:
            return function(a, b, **more)  # which raises the error
        cut = _cut(a.shape[i], function.__name__, *_layout(a), *_layout(b), _threads())
        one, two = (
            function(_part(a, i, *bounds), _part(b, j, *bounds))
            for bounds in ((0, cut), (cut, None))
        )
        return np.add(one, two, **more)

    return dot


def _vdot(function):
    @functools.wraps(function)
    def vdot(a, b, /):
        if not _rounding_arrays(a, b) or a.size != b.size or a.size < 2:
            return function(a, b)
        cut = _cut(a.size, "vdot", *_layout(a), *_layout(b), _threads())
        a, b = a.ravel(), b.ravel()
        return function(a[:cut], b[:cut]) + function(a[cut:], b[cut:])

    return vdot


def _einsum(function):
    @functools.wraps(function)
    def einsum(*arguments, **more):
        text, *arrays = arguments
        if (
            not isinstance(text, str)
            or not _rounding_arrays(*arrays)
            or more.get("out") is not None
        ):
            return function(*arguments, **more)
        terms, arrow, result = text.replace(" ", "").partition("->")
        letters = [c for c in terms if c.isalpha()]
        summed = [c for c in letters if (c not in result if arrow else letters.count(c) > 1)]
        parts = []
        for c in dict.fromkeys(summed):
            places = [
                _places(term, c, x.ndim) for term, x in zip(terms.split(","), arrays, strict=True)
            ]
            lengths = {x.shape[k] for x, axes in zip(arrays, places, strict=True) for k in axes}
            if len(lengths) == 1 and min(lengths) > 1:
                cut = _cut(*lengths, text, *[fact for x in arrays for fact in _layout(x)])
                for bounds in (0, cut), (cut, None):
                    part = list(arrays)
                    for n, axes in enumerate(places):
                        for k in axes:
                            part[n] = _part(part[n], k, *bounds)
                    parts.append(function(text, *part, **more))
                return parts[0] + parts[1]
        return function(*arguments, **more)

    return einsum


def _places(term, letter, ndim):
    """The axes of a letter in a term of einsum, whose "..." stands for axes without letters."""
    before, dots, after = term.partition("...")
    places = [k for k, c in enumerate(before) if c == letter]
    return places + [ndim - len(after) + k for k, c in enumerate(after) if dots and c == letter]
