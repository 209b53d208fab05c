"""A stand-in for CuPy that computes with NumPy and counts what would slow a GPU down.

Code that treats these arrays as NumPy arrays fails here as it does on a GPU: they refuse implicit
conversion, functions refuse NumPy arrays, reductions return arrays without axes, and an index out of
range wraps around without an error. `traffic` counts copies to and from the device, and the other
operations that make the host wait for the device.

    with installed() as traffic:
        ...

The whole suite on the stand-in:

    pytest -p cupy_on_numpy --array-backend cupy
"""

from __future__ import annotations

import contextlib
import importlib
import operator
import sys
from collections import Counter
from types import ModuleType, SimpleNamespace

import cuda_on_cpu
import numpy as np
from cupy_launches import indexed, launched

from minimha.kernels.gpu import cuda, tiled

traffic = Counter()
"""The number of copies "to the device" and "to the host", and of operations that "wait"."""

launches = Counter()
"""The number of kernels that a GPU would have run, by the name of the function or kernel."""


class Device:
    """A GPU; entered as a context manager, it is the current one."""

    compute_capability = "90"

    def __init__(self, number=None):
        self.id = number.id if isinstance(number, Device) else number or 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __eq__(self, other):
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self):
        return hash(self.id)

    def __repr__(self):
        return f"<CUDA Device {self.id}>"


class ndarray:  # noqa: N801  CuPy's name
    """An array on the stand-in's device."""

    __array_ufunc__ = None  # so that NumPy's operators leave the work to these
    device = Device()

    def __init__(self, on_device, base=None):
        self._numpy = np.asarray(on_device)
        self.base = base  # the array that owns the memory of this view

    def __array__(self, *_, **__):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct "
            "a NumPy array explicitly."
        )

    def __dlpack__(self, **_):
        raise BufferError("the stand-in exports no memory")

    def get(self):
        traffic["to the host"] += 1
        return self._numpy.copy()

    def __getattr__(self, name):
        if name.startswith("__") or name in ("_numpy", "base"):
            raise AttributeError(name)
        value = getattr(self._numpy, name)
        return _on_device(value, self) if callable(value) else _wrapped(value, (self,))

    def __getitem__(self, key):
        key = _key(key, self._numpy.shape)
        y = self._numpy[key]
        if not np.may_share_memory(y, self._numpy):
            launches["getitem"] += indexed(key)
        return _wrapped(y, (self,))

    def __setitem__(self, key, value):
        key = _key(key, self._numpy.shape)
        launches["setitem"] += indexed(key)
        self._numpy[key] = _unwrapped(value)

    def __len__(self):
        return len(self._numpy)

    def __iter__(self):
        return (self[k] for k in range(len(self)))

    def __repr__(self):
        return repr(self._numpy)

    def __deepcopy__(self, _):
        launches["copy"] += 1
        return ndarray(self._numpy.copy())

    @property
    def data(self):
        """Where the entries are."""
        return SimpleNamespace(ptr=self._numpy.ctypes.data)


ndarray.__module__ = "cupy"


def _unwrapped(x):
    """What NumPy computes with; raises TypeError for what CuPy refuses."""
    if isinstance(x, np.ndarray):
        raise TypeError(f"Unsupported type {type(x)}")
    if isinstance(x, ndarray):
        return x._numpy
    if isinstance(x, list | tuple) and type(x) in (list, tuple):
        return type(x)(map(_unwrapped, x))
    return x


def _wrapped(x, sources=()):
    """What NumPy computed from these, as arrays on the device: one of them, a view, or another."""
    if isinstance(x, np.ndarray | np.generic):
        for source in sources:
            if x is source._numpy:
                return source
            if isinstance(x, np.ndarray) and np.may_share_memory(x, source._numpy):
                return ndarray(x, source if source.base is None else source.base)
        return ndarray(x)
    return type(x)(_wrapped(y, sources) for y in x) if type(x) in (list, tuple) else x


def _key(key, shape):
    """An index for NumPy; integers in arrays wrap around instead of raising errors."""
    parts, axis = [], 0
    key = key if isinstance(key, tuple) else (key,)
    axes = sum(1 if not hasattr(k, "ndim") or k.dtype != bool else k.ndim for k in key)
    axes -= sum(k is None or k is ... for k in key)
    for part in map(_unwrapped, key):
        if isinstance(part, np.ndarray) and part.dtype == bool:
            traffic["wait"] += 1
            axis += part.ndim - 1
        elif isinstance(part, np.ndarray) and part.ndim:
            part = part % max(shape[axis], 1)  # noqa: PLW2901
        axis += len(shape) - axes if part is ... else part is not None
        parts.append(part)
    return tuple(parts)


def _on_device(function, owner=None):
    """A function of NumPy, or a method of an array's, as a function on the device."""
    name = getattr(function, "__name__", "method")

    def call(*arguments, **settings):
        given = arguments if owner is None else (owner, *arguments)
        settings = {name: _unwrapped(x) for name, x in settings.items()}
        with np.errstate(all="ignore"):  # a GPU does not warn
            y = function(*map(_unwrapped, arguments), **settings)
        launches[name] += launched(name, tuple(map(_unwrapped, given)), settings, y)
        return _wrapped(y, [x for x in given if isinstance(x, ndarray)])

    call.__name__ = name
    if isinstance(function, np.ufunc) and function.nin == 2:
        call.at = _on_device(function.at)
    return call


def _waiting(function):
    """A function of an array that the host has to see."""

    def call(x, *arguments, **settings):
        traffic["wait"] += 1
        return function(x._numpy, *arguments, **settings)

    return call


def array(x, dtype=None, copy=True, **_):
    if not isinstance(x, ndarray):
        traffic["to the device"] += 1
        return ndarray(np.array(x, dtype))
    y = np.array(x._numpy, dtype, copy=copy)
    launches["array"] += launched("array", (x._numpy,), {}, y)
    return _wrapped(y, (x,))


def asarray(x, dtype=None, **_):
    return x if isinstance(x, ndarray) and dtype in (None, x.dtype) else array(x, dtype, copy=None)


_OPERATORS = (
    "lt le eq ne gt ge add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
)
for _name in _OPERATORS.split():
    _function = _on_device(getattr(operator, _name, None) or getattr(operator, f"{_name}_"))
    setattr(ndarray, f"__{_name}__", lambda a, b, f=_function: f(a, b))
    setattr(ndarray, f"__r{_name}__", lambda a, b, f=_function: f(b, a))
    if _name not in ("lt", "le", "eq", "ne", "gt", "ge"):
        _function = _on_device(getattr(operator, f"i{_name}"))
        setattr(ndarray, f"__i{_name}__", lambda a, b, f=_function: f(a, b))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(ndarray, f"__{_name}__", _on_device(getattr(operator, _name)))
for _function in (bool, int, float, complex, operator.index):
    setattr(ndarray, f"__{_function.__name__}__", _waiting(_function))
for _name in ("item", "tolist"):
    setattr(ndarray, _name, _waiting(getattr(np.ndarray, _name)))
ndarray.__hash__ = None


class CUDARuntimeError(RuntimeError):
    """CuPy's error for whatever the driver reports."""


class OutOfMemoryError(MemoryError):
    """CuPy's error for memory."""


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


def _modules():
    """The modules of the stand-in by name."""
    names = (
        "cupy", "cupy.linalg", "cupy.fft", "cupy.cuda", "cupy.cuda.device", "cupyx",
        "cupyx.scipy", "cupyx.scipy.special",
    )  # fmt: skip
    modules = [ModuleType(name) for name in names]
    cupy, linalg, fft, cuda, device, *_, special = modules
    for module, source in ((cupy, np), (linalg, np.linalg), (fft, np.fft)):
        for name in dir(source):
            value = getattr(source, name)
            if not name.startswith("_") and not isinstance(value, ModuleType):
                plain = isinstance(value, type) or not callable(value)
                setattr(module, name, value if plain else _on_device(value))
        module.__all__ = [name for name in vars(module) if not name.startswith("_")]
    for name in ("nonzero", "flatnonzero", "argwhere", "unique"):  # their shape depends on entries
        wait = _waiting(getattr(np, name))
        setattr(cupy, name, lambda *x, f=wait, **settings: _wrapped(f(*x, **settings)))

    def take(x, indices, axis=None, **_):
        return _on_device(np.take)(x, indices, axis=axis, mode="wrap")

    cupy.take, cupy.array, cupy.asarray, cupy.ndarray = take, array, asarray, ndarray
    cupy.linalg, cupy.fft, cupy.cuda, cuda.device = linalg, fft, cuda, device
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

    def erf(x):
        return importlib.import_module("scipy.special").erf(x)

    special.erf = _on_device(erf)
    cupy.__version__ = "14.0.0"
    return dict(zip(names, modules, strict=True))


MODULES = _modules()


def _forget_the_gpu():
    for remembered in (cuda.kernel, tiled.machine_obstacle):
        remembered.cache_clear()


@contextlib.contextmanager
def installed():
    """Within the block, `import cupy` imports the stand-in. Gives `traffic`, with nothing counted."""
    ours = ("cupy", "cupyx", "array_api_compat.cupy")
    before = {
        name: sys.modules.pop(name)
        for name in list(sys.modules)
        if name in ours or name.startswith(tuple(f"{name}." for name in ours))
    }
    sys.modules.update(MODULES)
    traffic.clear()
    launches.clear()
    on_gpu, tiled._on_gpu = tiled._on_gpu, tiles_on_numpy
    _forget_the_gpu()
    try:
        yield traffic
    finally:
        tiled._on_gpu = on_gpu
        _forget_the_gpu()
        for name in list(sys.modules):
            if name in ours or name.startswith(tuple(f"{name}." for name in ours)):
                del sys.modules[name]
        sys.modules.update(before)


def pytest_configure(config):
    """As a plugin of pytest: the stand-in for the whole run."""
    context = installed()
    context.__enter__()
    config.add_cleanup(lambda: context.__exit__(None, None, None))
