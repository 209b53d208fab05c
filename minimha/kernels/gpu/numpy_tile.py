"""`cuda.tile` on NumPy: runs the same kernels block by block, on any computer.

    kernels = numpy_tile.interpreted(path)             a module of kernels, run by NumPy
    numpy_tile.launch(None, grid, kernels.f, arrays)   all blocks, in a shuffled order
    numpy_tile.steps(grid, kernels.f, arrays, block)   one block, line by line

It is stricter than a GPU. What cuTile leaves undefined is an error here, or NaN: a tile that lies
outside its array, the entries that fill up a tile beyond the edge unless the kernel asks for zeros,
sizes that are not a power of 2, products of different dtypes, two stores to one place, blocks that
load what another block stores, and arithmetic on an array without a load. A kernel is a Python
function here: `print` shows a tile, `breakpoint()` stops in a block. Hints to the compiler, such
as the number of warps, are ignored. Only the compiler checks the dtypes of scalars and of the
variables of a loop: see `tests/compiled_for_gpu.py`.
"""

from __future__ import annotations

import enum
import inspect
import itertools
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from minimha_autograd.extension import ExtensionPoint

float16, float32, float64, int32, int64, uint32, bool_ = (
    np.float16, np.float32, np.float64, np.int32, np.int64, np.uint32, np.bool_,
)  # fmt: skip
tfloat32 = type("tfloat32", (), {})  # NumPy has no such dtype: float32 with 10 bits of fraction
try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None
PaddingMode = enum.Enum("PaddingMode", "UNDETERMINED ZERO NEG_ZERO NAN POS_INF NEG_INF")
_FILL = {"ZERO": 0.0, "NEG_ZERO": -0.0, "POS_INF": np.inf, "NEG_INF": -np.inf}
_NOBODY, _SEVERAL = -1, -2

_now: Any = types.SimpleNamespace(largest=np.inf)
"""The state of the launch in progress: the block that runs, which blocks loaded and stored each
entry, and the largest number of entries that a tile may have."""


@ExtensionPoint
def run_elsewhere(grid: Any, arrays: list[np.ndarray], run: Callable[..., None]) -> Any:
    """An extension point: a function that replaces it may run the blocks of a launch in place of
    this module. Homework uses it to watch which entries of the arrays a kernel loads and stores.

    grid    the number of blocks along each axis
    arrays  the arrays among the arguments of the kernel
    run     run(block, functions, largest) runs one block. `functions` has a pair (load, store) for
            each array, which the kernel then uses. A NumPy function that joins tiles to one of more
            than `largest` entries raises ValueError

    Returns pairs [k, entries], the new entries of arrays[k], or None if this module is to run the
    blocks.
    """
    return None


class Constant:
    """A type for annotations: `Constant[int]` marks a parameter whose value is known when the
    kernel is compiled."""

    def __class_getitem__(cls, kind: Any) -> Any:
        return Annotated[kind, "Constant"]


class Memory:
    """An array as a kernel receives it: the kernel can reach its entries only by `load` and
    `store`."""

    def __init__(self, entries: np.ndarray) -> None:
        self.entries, self.shape = entries, entries.shape
        self.dtype, self.ndim = entries.dtype, entries.ndim
        self.load, self.store = partial(_load, entries), partial(_store, entries)

    def __getitem__(self, *_: Any) -> Any:
        raise TypeError("a kernel reads an array by load(…) and writes it by store(…)")

    __setitem__ = __array__ = __getitem__


def _memory(array: Any) -> Memory:
    if not isinstance(array, Memory):
        raise TypeError(f"load and store take an array that was launched, not {type(array)}")
    return array


class Tile(np.ndarray):
    """An array that cannot be changed: `x += y` makes a new one, as in cuTile."""

    def astype(self, dtype: Any) -> Any:  # type: ignore[override]
        if dtype is not tfloat32:
            return super().astype(dtype)
        bits = np.asarray(self, np.float32).view(np.uint32)
        return _tile(((bits + 0x1000) & 0xFFFFE000).view(np.float32))

    def __array_function__(self, function: Any, types: Any, args: Any, settings: Any) -> Any:
        found = super().__array_function__(function, types, args, settings)
        if (size := np.size(found)) > _now.largest:
            raise ValueError(f"tiles joined to {size} entries: at most {_now.largest} fit")
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("the entries of a tile cannot be assigned: make a new tile, by where(…)")


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"):
    setattr(Tile, f"__i{_name}__", getattr(np.ndarray, f"__{_name}__"))


def _tile(x: Any) -> Any:
    x = np.asarray(x)
    if any(n < 1 or n & (n - 1) for n in x.shape):
        raise ValueError(f"a tile of shape {x.shape}: its sizes must be powers of 2")
    return x.view(Tile)


def bid(axis: int) -> int:
    return _now.block[axis]


def num_blocks(axis: int) -> int:
    return _now.grid[axis]


def cdiv(x: Any, y: Any) -> Any:
    return -(-x // y)


def _region(array: Any, index: Any, shape: Any, order: Any) -> tuple[Any, ...]:
    """Where the tile with this index and shape lies in an array. Returns three things: the axes of
    the array in the order of the axes of the tile; the slice that the tile covers along each of
    these axes; and the slices of the tile that lie inside the array. Raises IndexError if the whole
    tile is outside.

    order  the order of the axes in the tile: "C" as in the array, "F" reversed, or a permutation
    """
    axes = {"C": range(array.ndim), "F": range(array.ndim)[::-1]}.get(order, order)
    view = array.transpose(axes)
    if not len(index) == len(shape) == view.ndim:
        raise ValueError(f"tile {index} of shape {shape} of an array of shape {view.shape}")
    starts = [int(i) * n for i, n in zip(index, shape, strict=True)]
    if any(not 0 <= a < n for a, n in zip(starts, view.shape, strict=True)):
        raise IndexError(
            f"tile {tuple(map(int, index))} of shape {shape} is outside an array of {view.shape}"
        )
    inside = tuple(slice(a, a + n) for a, n in zip(starts, shape, strict=True))
    return axes, inside, tuple(map(slice, view[inside].shape))


def _users(record: dict[int, np.ndarray], array: Any, axes: Any, inside: Any) -> np.ndarray:
    """A record of which blocks have used the entries of a part of an array: for each entry, the
    number of the block, `_NOBODY` or, if there are several, `_SEVERAL`. It is a view, so that the
    caller can change the record.

    record  all such records: `_now.loaded` or `_now.stored`
    axes    together with `inside`, describes the part of the array, as `_region` returns them
    """
    blocks = record.setdefault(id(array), np.full(array.shape, _NOBODY))
    return blocks.transpose(axes)[inside]


def _others(blocks: np.ndarray) -> bool:
    return bool(((blocks != _NOBODY) & (blocks != _now.number)).any())


def load(
    array: Any, index: Any, shape: Any, *, order: Any = "C",
    padding_mode: Any = PaddingMode.UNDETERMINED, **hints: Any,
) -> Any:  # fmt: skip
    mode = PaddingMode(padding_mode).name
    return _tile(_memory(array).load(tuple(index), tuple(shape), order, mode))


def _load(array: np.ndarray, index: Any, shape: Any, order: Any, mode: str) -> np.ndarray:
    axes, inside, part = _region(array, index, shape, order)
    if id(array) in _now.stored and _others(_users(_now.stored, array, axes, inside)):
        raise RuntimeError("a block loads what another block stored: blocks have no order")
    loaded = _users(_now.loaded, array, axes, inside)
    loaded[...] = np.where((loaded == _NOBODY) | (loaded == _now.number), _now.number, _SEVERAL)
    fill = _FILL.get(mode, np.nan)
    if mode not in _FILL and array.dtype.kind in "iu":
        fill = 2**31 - 1 if array.dtype.itemsize >= 4 else np.iinfo(array.dtype).max
    tile = np.full(shape, fill, array.dtype)
    tile[part] = array.transpose(axes)[inside]
    return tile


def store(array: Any, index: Any, tile: Any, *, order: Any = "C", **hints: Any) -> None:
    _memory(array).store(tuple(index), tile, order)


def _store(array: np.ndarray, index: Any, tile: Any, order: Any) -> None:
    axes, inside, part = _region(array, index, tile.shape, order)
    if tile.dtype != array.dtype:
        raise TypeError(f"a tile of {tile.dtype} for an array of {array.dtype}: use astype")
    if id(array) in _now.loaded and _others(_users(_now.loaded, array, axes, inside)):
        raise RuntimeError("a block stores what another block loaded: blocks have no order")
    stored = _users(_now.stored, array, axes, inside)
    if (stored != _NOBODY).any():
        raise RuntimeError("two stores to the same place")
    stored[...] = _now.number
    array.transpose(axes)[inside] = tile[part]


def full(shape: Any, fill_value: Any, dtype: Any) -> Any:
    return _tile(np.full(shape, fill_value, dtype))


def arange(size: int, *, dtype: Any) -> Any:
    return _tile(np.arange(size, dtype=dtype))


def mma(x: Any, y: Any, acc: Any) -> Any:
    if x.dtype != y.dtype or acc.dtype not in (float32, float64, x.dtype):
        raise TypeError(f"a product of {x.dtype} and {y.dtype}, added to {acc.dtype}")
    return _tile(acc + np.matmul(x.astype(acc.dtype), y.astype(acc.dtype)))


def sum(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:  # noqa: A001
    return _tile(np.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype))


def max(x: Any, axis: Any = None, *, keepdims: Any = False) -> Any:  # noqa: A001
    return _tile(np.fmax.reduce(x, axis=axis, keepdims=keepdims))  # ignores NaN


def min(x: Any, axis: Any = None, *, keepdims: Any = False) -> Any:  # noqa: A001
    return _tile(np.fmin.reduce(x, axis=axis, keepdims=keepdims))


def where(condition: Any, x: Any, y: Any) -> Any:
    """The entries of x where the condition is true, and those of y elsewhere. If x or y is a Python
    number, it takes the dtype of the other; if both are, they are float32."""
    dtype = next((z.dtype for z in (x, y) if isinstance(z, np.ndarray)), float32)
    x, y = (z if isinstance(z, np.ndarray) else np.asarray(z, dtype) for z in (x, y))
    return _tile(np.where(condition, x, y))


maximum, minimum = np.fmax, np.fmin
exp, log, log2, tanh, sqrt, abs = (  # noqa: A001
    np.exp, np.log, np.log2, np.tanh, np.sqrt, np.abs,
)  # fmt: skip
static_iter = iter


def exp2(x: Any, *, flush_to_zero: bool = False) -> Any:
    y = np.exp2(x)
    if not flush_to_zero:
        return y
    if y.dtype != float32:
        raise TypeError(f"flush_to_zero is for float32, not for {y.dtype}")
    return where(y < np.finfo(float32).tiny, y * 0, y)  # a NaN stays NaN


def kernel(function: Any = None, **hints: Any) -> Any:
    return function or (lambda function: function)


def launch(stream: Any, grid: Any, kernel: Any, kernel_args: Any) -> None:
    """Run a kernel on these arguments: all blocks of the grid, in a shuffled order, unless
    `run_elsewhere` runs them. NumPy has no streams, so `stream` is ignored: pass None."""
    run, memories = _prepared(grid, kernel, kernel_args)
    arrays = [memory.entries for memory in memories]
    try:
        changed = run_elsewhere(grid, arrays, run)
    finally:
        _now.largest = np.inf
    if changed is None:
        run_blocks(grid, run)
    for k, entries in changed or ():
        arrays[k][...] = entries


def run_blocks(grid: Any, run: Callable[..., Any]) -> None:
    """Call run(block) for all blocks of a grid, which is the number of blocks along each axis, in a
    shuffled order."""
    blocks = list(itertools.product(*map(range, grid)))
    np.random.default_rng(0).shuffle(blocks)
    _run(grid, run, blocks)


def _prepared(grid: Any, kernel: Any, arguments: Any) -> tuple[Callable[..., None], list[Memory]]:
    """Two things to launch a kernel on these arguments with this grid: a function that runs one
    block, and a list of the arrays among the arguments, as the kernel receives them."""
    kinds = [str(p.annotation) for p in inspect.signature(kernel).parameters.values()]
    typed = [  # a float that is not a constant is a float32
        Memory(a) if isinstance(a, np.ndarray) else
        float32(a) if type(a) is float and "Const" not in kind else a
        for a, kind in zip(arguments, kinds, strict=True)
    ]  # fmt: skip
    memories = [a for a in typed if isinstance(a, Memory)]

    def run(block: Any, functions: Any = (), largest: float | None = None) -> None:
        for memory, pair in zip(memories, functions, strict=False):
            memory.load, memory.store = pair
        _enter(grid, block)
        _now.largest = largest or np.inf
        kernel(*typed)

    return run, memories


def _enter(grid: Any, block: Any) -> None:
    _now.grid, _now.block = (*grid, 1, 1)[:3], (*map(int, block), 0, 0)[:3]
    _now.number = int(np.ravel_multi_index(_now.block, _now.grid))


def _run(grid: Any, run: Callable[..., Any], blocks: Any) -> None:
    _now.loaded, _now.stored = {}, {}
    with np.errstate(all="ignore"):
        for block in blocks:
            _enter(grid, block)
            try:
                run(_now.block)
            except Exception as error:
                error.add_note(f"in block {_now.block} of a grid of {_now.grid}")
                raise


class Line(NamedTuple):
    """A line of a kernel that was executed, and the variables that it changed, with their new
    values."""

    line: int
    source: str
    changed: dict[str, Any]

    def __repr__(self) -> str:
        shown = [f"    {name} = {_shown(x)}" for name, x in self.changed.items()]
        return "\n".join([f"{self.line:4}  {self.source}", *shown])


def _shown(x: Any) -> str:
    if not isinstance(x, np.ndarray) or not x.ndim:
        return str(x)
    entries = np.array2string(x, precision=3, threshold=8, edgeitems=2)
    return f"{x.dtype} {x.shape}\n{entries}".replace("\n", "\n    ")


def steps(grid: Any, kernel: Any, kernel_args: Any, block: Any = (0, 0, 0)) -> list[Line]:
    """Run a single block of a kernel on these arguments, as it would run in this grid. Returns a
    `Line` for each line executed, in order."""
    lines, first = inspect.getsourcelines(kernel)
    found: list[Line] = []
    before: dict[str, Any] = {}
    line = first

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal before, line
        if frame.f_code is not kernel.__code__:
            return None
        now = dict(frame.f_locals)
        if event in ("line", "return"):
            changed = {k: x for k, x in now.items() if before.get(k) is not x}
            if before:
                found.append(Line(line, lines[line - first].strip(), changed))
            before, line = now, frame.f_lineno
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        _run(grid, _prepared(grid, kernel, kernel_args)[0], [block])
    finally:
        sys.settrace(previous)
    return found


def interpreted(path: str | Path) -> types.ModuleType:
    """The module of kernels at this path, in which `import cuda.tile` imports this module, so that
    NumPy runs the kernels."""
    import importlib.util  # not in the process that runs homework
    from unittest import mock

    ours = sys.modules[__name__]
    spec: Any = importlib.util.spec_from_file_location(f"{Path(path).stem}_on_numpy", path)
    module = importlib.util.module_from_spec(spec)
    package: Any = types.ModuleType("cuda")
    package.tile = ours
    named = {"cuda": package, "cuda.tile": ours, spec.name: module}  # dataclasses look it up there
    with mock.patch.dict(sys.modules, named):
        spec.loader.exec_module(module)
    return module
