"""A stand-in for CuPy that computes with NumPy and counts what would slow a GPU down.

Code that treats these arrays as NumPy arrays fails here as it does on a GPU:

- functions have the names and parameters of CuPy's functions (`cupy_surface.txt`), and refuse NumPy
  arrays and lists;
- arrays have only the methods of CuPy's arrays, refuse implicit conversion, and cannot serve as an
  index or a length (`__index__`);
- a device cannot be hashed, and is equal only to a device;
- reductions return arrays without axes, and an index out of range wraps around without an error;
- several additions or assignments to the same entry happen in a random order.

`traffic` counts copies to and from the device, and the other operations that make the host wait for
the device.

    with installed() as traffic:
        ...

The whole suite on the stand-in:

    pytest -p cupy_on_numpy --array-backend cupy

If a real CuPy finds a GPU, the plugin does nothing, and the suite runs on that GPU. `installed`
replaces a real CuPy only within its block.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import operator
import sys
import warnings
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace

import cuda_on_cpu
import numpy as np
from cupy_launches import indexed, launched

from minimha.functional import implementations
from minimha.kernels.gpu import cuda, tiled
from minimha_autograd import backend

traffic = Counter()
"""The number of copies "to the device" and "to the host", and of operations that "wait"."""

launches = Counter()
"""The number of kernels that a GPU would have run, by the name of the function or kernel."""

VERSION, *SURFACE = (
    Path(__file__).with_name("cupy_surface.txt").read_text(encoding="ascii").splitlines()
)
"""The version of CuPy, and a line for each name that it shares with NumPy, by `list_cupy.py`."""

ARRAYS = """
    self a A a1 a2 a_max a_min ar ar1 ar2 arr arr1 arr2 array ary b condition discont dst element
    fill_value fp indices left m mask max min out p prototype q right sorter src test_elements v val
    value values weights where x x1 x2 xp y z
"""
"""The parameters that are arrays or numbers. All others are settings, which cannot be arrays."""

SEVERAL = "args arrays arys choices choicelist condlist keys operands tup xi"
"""The parameters that are sequences of arrays or numbers; `operands` may also contain strings."""

WAITING = """
    argwhere bincount compress extract flatnonzero intersect1d nonzero setdiff1d setxor1d tobytes
    tolist trim_zeros union1d unique unique_all unique_counts unique_inverse unique_values
    cholesky cond det eigh eigvalsh inv lstsq matrix_rank pinv qr slogdet solve svd
"""
"""The functions for which the host waits, since it needs the result or the result's shape."""

ARRAYS, SEVERAL, WAITING = (frozenset(names.split()) for names in (ARRAYS, SEVERAL, WAITING))
NUMBERS = bool | int | float | complex | np.generic
_random = np.random.default_rng(0)  # shared by all calls: no two of them add in the same order


class Device:
    """A GPU; entered as a context manager, it is the current one."""

    compute_capability = "90"
    __hash__ = None

    def __init__(self, device=None):
        self.id = 0 if device is None else int(device)

    def __int__(self):
        return self.id

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __eq__(self, other):
        return isinstance(other, Device) and self.id == other.id

    def __repr__(self):
        return f"<CUDA Device {self.id}>"

    def use(self):
        return self

    def synchronize(self):
        traffic["wait"] += 1


class ndarray:  # noqa: N801  CuPy's name
    """An array on the stand-in's device."""

    __array_ufunc__ = None  # so that NumPy's operators call those of this class
    __hash__ = None
    base = None  # the array that owns the memory of this view

    def __init__(self, on_device, base=None):
        self._numpy = np.asarray(on_device)
        self.base = base

    def __array__(self, *_, **__):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct "
            "a NumPy array explicitly."
        )

    def __dlpack__(self, **_):
        raise BufferError("the stand-in exports no memory")

    def __dlpack_device__(self):
        return 2, self.device.id

    @property
    def device(self):
        return Device()  # a new object each time, as CuPy's

    @property
    def data(self):
        return SimpleNamespace(ptr=self._numpy.ctypes.data, device=self.device)

    def get(self):
        traffic["to the host"] += 1
        return self._numpy.copy()

    def item(self):
        traffic["wait"] += 1
        return self._numpy.item()

    def __bool__(self):
        traffic["wait"] += 1
        if not self._numpy.size:
            warnings.warn("The truth value of an empty array", DeprecationWarning, stacklevel=2)
            return False
        return bool(self._numpy)

    def __int__(self):
        traffic["wait"] += 1
        return int(self._numpy)

    def __float__(self):
        traffic["wait"] += 1
        return float(self._numpy)

    def __complex__(self):
        traffic["wait"] += 1
        return complex(self._numpy)

    def __getitem__(self, key):
        key, arrays, booleans = _key(key, self._numpy.shape)
        if booleans:
            traffic["wait"] += 1
        found = self._numpy[key]
        if arrays:
            launches["getitem"] += indexed(key)
            return ndarray(found.copy())
        return _wrapped(found, (self,))

    def __setitem__(self, key, value):
        key, arrays, _ = _key(key, self._numpy.shape)
        if isinstance(value, ndarray):
            value = value._numpy
        elif arrays and not isinstance(value, NUMBERS):
            traffic["to the device"] += 1
            value = np.asarray(value)
        elif np.ndim(value):
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        launches["setitem"] += indexed(key)
        if arrays:
            _scatter(np.ndarray.__setitem__, self._numpy, key, value)
        else:
            self._numpy[key] = value

    def __len__(self):
        if not self._numpy.ndim:
            raise TypeError("len() of unsized object")
        return len(self._numpy)

    def __iter__(self):
        if not self._numpy.ndim:
            raise TypeError("iteration over a 0-d array")
        return (self[k] for k in range(len(self)))

    def __repr__(self):
        return repr(self.get())

    def __str__(self):
        return str(self.get())

    def __format__(self, specification):
        return format(self.get(), specification)

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, _):
        return self.copy()

    def __reduce__(self):
        return array, (self.get(),)


Device.__module__ = "cupy.cuda.device"
ndarray.__module__ = "cupy"


def _unwrapped(x):
    """What NumPy computes with, for an array or a number. Raises TypeError for anything else."""
    if isinstance(x, ndarray):
        return x._numpy
    if x is None or isinstance(x, NUMBERS):
        return x
    raise TypeError(f"Unsupported type {type(x)}")


def _all_unwrapped(xs):
    if isinstance(xs, ndarray | np.ndarray):
        raise TypeError(f"Only a list or tuple of arrays, not {type(xs)}")
    return [x if isinstance(x, str) else _unwrapped(x) for x in xs]


def _wrapped(x, sources=()):
    """What NumPy computed from the sources, as arrays on the device: one of the sources itself, a
    view of one, or a new array."""
    if isinstance(x, np.ndarray | np.generic):
        for source in sources:
            if x is source._numpy:
                return source
            if isinstance(x, np.ndarray) and np.may_share_memory(x, source._numpy):
                return ndarray(x, source if source.base is None else source.base)
        return ndarray(x)
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(_wrapped(y, sources) for y in x))
    return type(x)(_wrapped(y, sources) for y in x) if type(x) in (list, tuple) else x


def _computed(name, function, given, arguments, settings):
    """Call a function of NumPy and count its kernels.

    given      the arguments of the caller, whose memory the result may share
    arguments  the same as NumPy takes them
    """
    with np.errstate(all="ignore"):  # a GPU does not warn
        y = function(*arguments, **settings)
    launches[name] += launched(name, arguments, settings, y)
    return _wrapped(y, [x for x in given if isinstance(x, ndarray)])


def _key(key, shape):
    """An index for NumPy, whether it has arrays, and how many of them are boolean. Integers in
    arrays wrap around instead of raising errors."""
    parts = []
    for part in key if isinstance(key, tuple) else (key,):
        if isinstance(part, list | tuple | np.ndarray):  # copied without being asked
            traffic["to the device"] += 1
            part = np.asarray(part)  # noqa: PLW2901
            part = part.astype(np.int32) if not part.size else part  # noqa: PLW2901
        elif isinstance(part, bool | np.bool):
            part = np.asarray(part)  # noqa: PLW2901
        parts.append(part._numpy if isinstance(part, ndarray) else part)
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if any(part.dtype.kind not in "biu" for part in arrays):
        raise IndexError("arrays used as indices must be of integer or boolean type")

    # How many axes each part indexes; the ellipsis indexes those that are left.
    spans = [part.ndim if _is_mask(part) else int(part is not None) for part in parts]
    if not any(part is ... for part in parts):
        parts.append(...)
        spans.append(1)
    there = next(k for k, part in enumerate(parts) if part is ...)
    spans[there] = len(shape) - (sum(spans) - 1)
    for k, part in enumerate(parts):
        if isinstance(part, np.ndarray) and not _is_mask(part):
            parts[k] = part % max(shape[sum(spans[:k])], 1)
    return tuple(parts), bool(arrays), sum(map(_is_mask, arrays))


def _is_mask(part):
    return isinstance(part, np.ndarray) and part.dtype == bool


def _scatter(at, x, key, values):
    """at(x, key, values), entry by entry in a random order.

    So if an entry occurs several times in the key, two calls add its values in different orders, or
    assign another one last.
    """
    places = np.arange(x.size).reshape(x.shape)[key]
    values = np.broadcast_to(np.asarray(values, x.dtype), places.shape).reshape(-1)
    order = _random.permutation(places.size)
    flat = x.reshape(-1)
    at(flat, places.reshape(-1)[order], values[order])
    if not np.shares_memory(flat, x) and x.size:
        x[...] = flat.reshape(x.shape)


def _add_at(a, indices, b=None):
    """`cupy.add.at`."""
    if a.dtype.name not in ADDABLE:
        raise TypeError(f"cupy.add.at only supports {', '.join(ADDABLE)} as data type")
    key, arrays, _ = _key(indices, a.shape)
    if arrays:
        _scatter(np.add.at, a._numpy, key, _unwrapped(b))
    else:
        a._numpy[key] += _unwrapped(b)
    launches["at"] += indexed(key)


ADDABLE = ("int32", "int64", "float16", "float32", "float64", "uint32", "uint64")


class Parameters:
    """The parameters of one of CuPy's functions; only their names count.

    by_place   the names of those that may be given by position
    rest       the name of the parameter that takes all others by position, if there is one
    required   how many have no default
    names      those that may be given by name; None if any
    """

    def __init__(self, text):
        parameters = inspect.signature(eval(f"lambda {text.strip('()')}: 0")).parameters.values()
        by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.by_place = [p.name for p in parameters if p.kind in by_place]
        self.rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        self.required = sum(p.kind in by_place and p.default is p.empty for p in parameters)
        self.names = {
            p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        }
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            self.names = None

    def given(self, name, arguments, settings):
        """The arguments for NumPy. Raises TypeError for arguments that CuPy's function lacks."""
        known = self.by_place[: len(arguments)]
        more = arguments[len(known) :]
        if more and self.rest is None:
            raise TypeError(
                f"{name}() takes {len(self.by_place)} arguments, {len(arguments)} given"
            )
        for keyword in settings:
            if keyword in known or not (self.names is None or keyword in self.names):
                raise TypeError(f"{name}() got an unexpected keyword argument {keyword!r}")
        if len(known) + len(settings.keys() & set(self.by_place)) < self.required:
            raise TypeError(f"{name}() is missing arguments of {', '.join(self.by_place)}")
        by_place = [self._one(p, x) for p, x in zip(known, arguments, strict=False)]
        if self.rest in SEVERAL:
            more = _all_unwrapped(more)
        return [*by_place, *more], {p: self._one(p, x) for p, x in settings.items()}

    def _one(self, parameter, x):
        if parameter in SEVERAL:
            return _all_unwrapped(x)
        if parameter == "a" and isinstance(x, NUMBERS):  # CuPy calls its method
            raise AttributeError(f"{type(x)} has no such method")
        return _unwrapped(x) if parameter in ARRAYS else x


def _on_device(function, name, parameters):
    """A function of NumPy as a function of arrays on the device."""
    waits = name in WAITING

    def call(*given, **settings):
        arguments, settings = parameters.given(name, given, settings)
        if waits:
            traffic["wait"] += 1
        return _computed(name, function, given, arguments, settings)

    call.__name__ = name
    return call


def _ufunc(function, name, nin, nout):
    """One of CuPy's ufuncs. They take no `where`; here they round as NumPy's do."""
    inputs = [f"x{k + 1}" for k in range(nin)]
    outputs = [f"out{k + 1}=..." for k in range(nout)]
    parameters = Parameters(f"{', '.join(inputs + outputs)}, /, *, out=..., dtype=..., casting=...")
    parameters.by_place = ["x"] * nin + ["out"] * nout
    call = _on_device(function, name, parameters)
    call.nin, call.nout = nin, nout
    if name == "add":
        call.at = _add_at
    elif hasattr(function, "at"):
        call.at = _not_there
    return call


def _not_there(*_):
    raise NotImplementedError("this ufunc has no such method on the stand-in")


def _operator(function, reverse=False):
    """A binary operator. Operands other than arrays and numbers may define their own."""

    def call(self, other):
        if getattr(other, "__array_ufunc__", 0) is None and not isinstance(other, ndarray):
            return NotImplemented
        pair = (_unwrapped(other), self._numpy) if reverse else (self._numpy, _unwrapped(other))
        return _computed(function.__name__, function, (), pair, {})

    return call


def _comparison(function):
    compare = _operator(function)
    name = function.__name__

    def call(self, other):
        if isinstance(other, np.ndarray) and not other.ndim:
            other = other.item()
        if name in ("eq", "ne") and (other is None or type(other).__eq__ is object.__eq__):
            launches["full"] += 1
            return ndarray(np.full(self._numpy.shape, name == "ne"))
        return compare(self, other)

    return call


def _in_place(function):
    def call(self, other):
        if not isinstance(other, ndarray) and getattr(other, "__array_ufunc__", 0) is None:
            return NotImplemented
        with np.errstate(all="ignore"):
            function(self._numpy, _unwrapped(other), out=self._numpy)
        launches[f"{function.__name__} in place"] += 1
        return self

    return call


_COMPARISONS = "lt le eq ne gt ge"
_ARITHMETIC = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide,
    "floordiv": np.floor_divide, "mod": np.remainder, "pow": np.power, "matmul": np.matmul,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "lshift": np.left_shift, "rshift": np.right_shift,
}  # fmt: skip


def _add_operators():
    for name in _COMPARISONS.split():
        setattr(ndarray, f"__{name}__", _comparison(getattr(operator, name)))
    for name, ufunc in _ARITHMETIC.items():
        function = getattr(operator, name, None) or getattr(operator, f"{name}_")
        setattr(ndarray, f"__{name}__", _operator(function))
        setattr(ndarray, f"__r{name}__", _operator(function, reverse=True))
        if name != "matmul":  # CuPy has none
            setattr(ndarray, f"__i{name}__", _in_place(ufunc))
    ndarray.__divmod__, ndarray.__rdivmod__ = _operator(divmod), _operator(divmod, reverse=True)
    for name in ("neg", "pos", "abs", "invert"):
        function = getattr(operator, name)
        setattr(
            ndarray, f"__{name}__",
            lambda self, n=name, f=function: _computed(n, f, (), (self._numpy,), {}),
        )  # fmt: skip


def _add_methods():
    """The methods and attributes of CuPy's arrays that are computed as NumPy computes them."""
    for line in SURFACE:
        where, _, rest = line.partition(".")
        name, bracket, parameters = rest.partition("(")
        if where != "ndarray" or name in vars(ndarray) or not hasattr(np.ndarray, name):
            continue
        if name.startswith("__"):
            continue
        if bracket:
            method = _on_device(getattr(np.ndarray, name), name, Parameters(parameters))
            setattr(ndarray, name, lambda self, *x, f=method, **settings: f(self, *x, **settings))
        else:
            setattr(
                ndarray, name,
                property(lambda self, n=name: _wrapped(getattr(self._numpy, n), (self,))),
            )  # fmt: skip


def array(obj, dtype=None, copy=True, order="K", subok=False, ndmin=0, *, blocking=False):
    if isinstance(obj, ndarray):
        settings = {"dtype": dtype, "copy": copy, "order": order, "ndmin": ndmin}
        return _computed("array", np.array, (obj,), (obj._numpy,), settings)
    traffic["to the device"] += 1
    made = np.array(_nested(obj), dtype, order=order, ndmin=ndmin)
    if made.dtype.kind not in "biufc" and made.dtype.name != "bfloat16":
        raise ValueError(f"Unsupported dtype {made.dtype}")
    return ndarray(made)


def _nested(x):
    if isinstance(x, list | tuple):
        return [_nested(y) for y in x]
    return x._numpy if isinstance(x, ndarray) else x


def asarray(a, dtype=None, order=None, *, copy=None, blocking=False):
    if isinstance(a, ndarray) and dtype in (None, a.dtype) and order is None and not copy:
        return a
    return array(a, dtype, copy, order or "K")


def take(a, indices, axis=None, out=None):
    """As CuPy's `take`, in which indices out of range wrap around."""
    if not isinstance(a, ndarray):
        raise TypeError(f"Unsupported type {type(a)}")
    if not isinstance(indices, ndarray | NUMBERS):
        traffic["to the device"] += 1
        indices = ndarray(np.asarray(indices, int))
    if out is not None:
        raise NotImplementedError("out of take, on the stand-in")
    settings = {"axis": axis, "mode": "wrap"}
    return _computed("take", np.take, (), (a._numpy, _unwrapped(indices)), settings)


def where(condition, x=None, y=None):
    if x is None and y is None:
        traffic["wait"] += 1
        return _wrapped(np.where(condition._numpy))
    if not isinstance(condition, ndarray):  # but the others may be numbers
        raise AttributeError(f"{type(condition)} has no attribute 'astype'")
    return _computed("where", np.where, (), tuple(map(_unwrapped, (condition, x, y))), {})


class CUDARuntimeError(RuntimeError):
    """CuPy's error for everything that the driver reports."""


class OutOfMemoryError(MemoryError):
    """CuPy's error if there is too little memory."""


def raw_kernel(source, name, options=()):
    """A kernel in CUDA C++, compiled for the CPU."""
    (real,) = (option.removeprefix("-Dreal=") for option in options)
    run = cuda_on_cpu.raw_kernel(source, name, real)

    def launch(grid, block, arguments):
        launches[name] += 1
        run(grid, block, list(map(_passed, arguments)))

    return launch


def _passed(x):
    """An argument of a kernel: a NumPy array with one entry is passed by its value."""
    if isinstance(x, np.ndarray) and x.size == 1:
        return x.tobytes()
    return _unwrapped(x)


def tiles_on_numpy():
    """What runs the kernels of `tiles` for arrays on the stand-in's device."""
    kernels, launch, stream = tiled.on_numpy()

    def unwrapping(stream, grid, kernel, arguments):
        launches[getattr(kernel, "__name__", "tile")] += 1
        launch(stream, grid, kernel, tuple(map(_unwrapped, arguments)))

    return tiled.Runner(kernels, unwrapping, stream)


def _named(line):
    """The module, the name and the stand-in's value for a line of the list. None for the line of a
    method of arrays, or of a module."""
    path, bracket, parameters = line.partition("(")
    path, _, ufunc = path.partition(" ufunc ")
    where, _, name = path.rpartition(".")
    source = getattr(np, where.partition(".")[2]) if "." in where else np
    value = getattr(source, name, None)
    if where == "ndarray" or isinstance(value, ModuleType):
        return None
    if ufunc and value is not None:
        value = _ufunc(value, name, *map(int, ufunc.split()))
    elif bracket and value is not None:
        value = _on_device(value, name, Parameters(parameters))
    return where, name, value


def _modules():
    """The modules of the stand-in by name."""
    names = (
        "cupy", "cupy.linalg", "cupy.fft", "cupy.cuda", "cupy.cuda.device", "cupyx",
        "cupyx.scipy", "cupyx.scipy.special",
    )  # fmt: skip
    modules = {name: ModuleType(name) for name in names}
    cupy, linalg, fft, cuda, device, *_, special = modules.values()
    for line in SURFACE:
        found = _named(line)
        if found is not None:
            owner, name, value = found
            setattr(modules[owner], name, value)
    for module in (cupy, linalg, fft):
        module.__all__ = [name for name in vars(module) if not name.startswith("_")]

    cupy.take = take
    cupy.where = where
    cupy.array = array
    cupy.asarray = asarray
    cupy.asanyarray = asarray
    cupy.ndarray = ndarray
    cupy.linalg = linalg
    cupy.fft = fft
    cupy.cuda = cuda
    cuda.device = device
    device.Device = cuda.Device = Device
    cuda.runtime = ModuleType("cupy.cuda.runtime")
    cuda.runtime.CUDARuntimeError = CUDARuntimeError
    cuda.runtime.getDeviceCount = lambda: 1
    cuda.runtime.memGetInfo = lambda: (3 * 2**30, 8 * 2**30)
    cuda.runtime.driverGetVersion = lambda: 13000
    cuda.get_current_stream = lambda: None
    cuda.memory = ModuleType("cupy.cuda.memory")
    cuda.memory.OutOfMemoryError = OutOfMemoryError
    cupy.get_default_memory_pool = lambda: SimpleNamespace(free_bytes=lambda: 2**29)
    cupy.RawKernel = raw_kernel
    erf = lambda x: importlib.import_module("scipy.special").erf(x)  # noqa: E731
    special.erf = _ufunc(erf, "erf", 1, 1)
    cupy.__version__ = VERSION.removeprefix("CuPy ")
    return modules


_add_operators()
_add_methods()
MODULES = _modules()

OURS = ("cupy", "cupyx", "array_api_compat.cupy")
"""The modules that the stand-in replaces, with all below them."""


def _take_away():
    """Remove all modules of the present CuPy, real or not, and return them by name."""
    names = [
        name
        for name in sys.modules
        if name in OURS or name.startswith(tuple(f"{ours}." for ours in OURS))
    ]
    return {name: sys.modules.pop(name) for name in names}


def _forget():
    """Clear all caches that depend on which CuPy is installed."""
    for remembered in (cuda.kernel, tiled.machine_obstacle):
        remembered.cache_clear()
    # array-api-compat remembers which classes are arrays of which library, and finds its module for
    # CuPy as an attribute, wherever that came from.
    compat = importlib.import_module("array_api_compat")
    vars(compat).pop("cupy", None)
    for remembered in vars(importlib.import_module("array_api_compat.common._helpers")).values():
        if hasattr(remembered, "cache_clear"):
            remembered.cache_clear()
    backend.namespaces.pop(ndarray, None)


@contextlib.contextmanager
def installed():
    """Within the block, `import cupy` imports the stand-in, even if a real CuPy is installed. Yields
    `traffic`, with all counts 0."""
    _forget()
    before = _take_away()
    sys.modules.update(MODULES)
    traffic.clear()
    launches.clear()
    on_gpu, tiled._on_gpu = tiled._on_gpu, tiles_on_numpy
    try:
        yield traffic
    finally:
        tiled._on_gpu = on_gpu
        _forget()
        _take_away()
        sys.modules.update(before)
        if "array_api_compat.cupy" in before:
            sys.modules["array_api_compat"].cupy = before["array_api_compat.cupy"]


def gpus():
    """How many GPUs CuPy finds: 0 if it is not installed or finds no driver."""
    try:
        return importlib.import_module("cupy").cuda.runtime.getDeviceCount()
    except Exception:
        return 0


def pytest_configure(config):
    """As a plugin of pytest, install the stand-in for the whole run, unless there is a GPU."""
    if not gpus():
        context = installed()
        context.__enter__()
        config.add_cleanup(lambda: context.__exit__(None, None, None))
        _forget_kernels_of_operations()


def _forget_kernels_of_operations():
    """Let operations compute by CuPy's functions in this run.

    Kernels in CUDA C++ take much longer on a CPU than those. The tests of
    `kernels/gpu` run them, in a run without this plugin.
    """
    implementations.implementations("gelu")  # registers those of all operations
    for of_operation in implementations._registered.values():
        of_operation.pop("kernel for cupy", None)


def pytest_report_header():
    """Which CuPy the tests run on."""
    stands_in = sys.modules.get("cupy") is MODULES["cupy"]
    return f"CuPy: {'the stand-in' if stands_in else 'the real one, which finds a GPU'}"
