"""Attention on a GPU in tiles: the code on the host, for CuPy arrays, and for NumPy arrays on the
stand-in for cuTile.

Untried on a GPU since the kernels were rewritten: an earlier form ran on an NVIDIA H200.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from minimha_autograd import backend
from minimha_autograd.backend import Array, namespace
from minimha_autograd.operation import Wanted

from ... import masks
from ...attention import Arguments
from ...attention.arguments import Gradients
from ...functional.dropout import Draw
from ...masks.kinds import Band
from ..shared import (
    as_given,
    batch_and_heads,
    empty_laid_out_like,
    four_axes,
    like_scores,
    numbers,
)

TF32 = os.environ.get("MINIMHA_TF32", "0") not in {"", "0"}
"""Whether products round float32 to tf32, which has 10 bits of fraction: a third of the work, with
errors of 1e-3. Off by default: three products of tf32 give errors of 1e-6."""

_DRIVER = 13000  # CUDA 13.0
_log = logging.getLogger("minimha")

WIDEST = {2: 256, 4: 128, 8: 128}
"""The largest D and Dv, by the bytes of a number. A tile holds whole rows, so they are limited."""


class TileSizes(NamedTuple):
    """The sizes of the tiles of a kernel, each as (queries, keys). `tile_sizes` chooses one of the
    three for a call, by the GPU's compute capability, the number of queries and the arguments of
    attention."""

    large: tuple[int, int]  # 9.0 and later
    small: tuple[int, int]  # 9.0 and later, for few queries or with optional arguments
    ampere: tuple[int, int]  # 8.x, for all calls


TILES = {
    # kernel, bytes of a number, width up to
    ("forward", 2, 64): TileSizes((128, 128), (64, 64), (64, 64)),  # 380 TFLOP/s
    ("forward", 2, 128): TileSizes((128, 64), (64, 64), (64, 32)),  # 525 TFLOP/s
    ("forward", 2, 256): TileSizes((64, 32), (32, 32), (32, 32)),
    ("forward", 4, 64): TileSizes((128, 32), (64, 32), (64, 32)),  # 61 TFLOP/s
    ("forward", 4, 128): TileSizes((64, 32), (64, 32), (32, 32)),
    ("backward_query", 2, 64): TileSizes((128, 64), (64, 64), (64, 64)),  # 0.77 ms
    ("backward_query", 2, 128): TileSizes((128, 64), (64, 64), (64, 32)),  # 1.16 ms
    ("backward_query", 2, 256): TileSizes((128, 32), (128, 32), (32, 32)),
    ("backward_query", 4, 64): TileSizes((64, 32), (64, 32), (64, 16)),
    ("backward_query", 4, 128): TileSizes((64, 16), (64, 16), (32, 32)),
    ("backward_key", 2, 64): TileSizes((64, 128), (64, 128), (32, 64)),  # 1.18 ms
    ("backward_key", 2, 128): TileSizes((64, 128), (32, 128), (16, 64)),  # 2.21 ms
    ("backward_key", 2, 256): TileSizes((32, 64), (32, 64), (16, 32)),
    ("backward_key", 4, 64): TileSizes((64, 64), (64, 64), (16, 64)),
    ("backward_key", 4, 128): TileSizes((16, 64), (16, 64), (32, 32)),
}
"""The sizes of tiles, chosen in two ways.

Sizes with a figure were the fastest, or nearly so, in a prototype of these kernels that ran on an
H200 in November 2026: for B·H = 64 and T = S = 4096, without a mask, with the 8 warps that the
kernels ask for. The kernels themselves were written after it and have not run on a GPU. All other
sizes were chosen without a GPU, as those for which the compiler spills few registers: see
docs/measured/registers.md.
"""


def tile_sizes(
    kernel: str, itemsize: int, width: int, queries: int, optional: bool, capability: int
) -> tuple[int, int]:
    """The numbers of queries and of keys in a tile of a kernel.

    kernel      "forward", "backward_query" or "backward_key"
    itemsize    bytes of a number
    width       the larger of D and Dv, rounded up to a power of 2
    queries     T
    optional    whether there is a bias, a softcap, dropout, or a mask that kernels need as an array
    capability  the compute capability of the GPU, 90 for 9.0
    """
    if itemsize == 8:
        return 16, 16
    sizes = TILES[kernel, itemsize, max(64, width)]
    if capability < 90:
        return sizes.ampere
    return sizes.small if optional or queries < sizes.large[0] else sizes.large


def _up(n: int) -> int:
    """The smallest power of 2 that is at least n and at least 16: a size that tiles can have."""
    return max(16, 1 << (n - 1).bit_length())


class Runner(NamedTuple):
    """What is needed to run the kernels: the module that contains them, the function that launches
    one of them, and the stream of the GPU in which it runs (None for NumPy)."""

    kernels: Any
    launch: Callable[..., None]  # (stream, grid, kernel, arguments)
    stream: Any


@functools.cache
def on_numpy() -> Runner:
    """A runner that runs the kernels of `tiles` with NumPy."""
    from . import numpy_tile

    kernels = numpy_tile.interpreted(Path(__file__).with_name("tiles.py"))
    return Runner(kernels, numpy_tile.launch, None)


def _on_gpu() -> Runner:
    import cuda.tile as ct
    import cupy

    from . import tiles

    return Runner(tiles, ct.launch, cupy.cuda.get_current_stream())


def runner_of(x: Array) -> Runner:
    """The runner for arrays of the same library as x: `on_numpy` for NumPy, or else one that
    launches the kernels on a GPU by cuTile."""
    return on_numpy() if isinstance(x, backend.HostArray) else _on_gpu()


def capability_of(x: Array) -> int:
    """The compute capability of the GPU of an array, 90 for 9.0. For NumPy arrays, it is that of a
    Hopper GPU, 90."""
    return 90 if isinstance(x, backend.HostArray) else int(x.device.compute_capability)


def obstacle(x: Arguments) -> str | None:
    """The reason why the kernels cannot compute attention with the arguments x, or None if they
    can."""
    if not isinstance(x.query, backend.HostArray) and (why := machine_obstacle()):
        return why
    widest = WIDEST[x.query.dtype.itemsize]
    if max(x.query.shape[-1], x.value.shape[-1]) > widest:
        return f"heads of {x.query.dtype} are wider than {widest}"
    return None


@functools.cache
def machine_obstacle() -> str | None:
    """The reason why tiles cannot run on this machine's GPU, or None if they can. The first call
    logs the reason."""
    why = _machine_obstacle()
    if why:
        _log.warning("minimha: attention on this GPU runs without tiles: %s", why)
    return why


def _machine_obstacle() -> str | None:
    import cupy

    try:
        import cuda.tile  # noqa: F401
    except ImportError:
        return "cuda-tile is not installed: pip install cuda-tile"
    capability = cupy.cuda.Device().compute_capability  # "80" for 8.0
    if int(capability) < 80:
        return f"tiles need compute capability 8.0, and this GPU has {int(capability) / 10}"
    driver = cupy.cuda.runtime.driverGetVersion()
    if driver < _DRIVER:
        return (
            f"tiles need a driver for CUDA 13.0, and this one is for {driver // 1000}."
            f"{driver % 1000 // 10}: install driver 580 or later"
        )
    return None


class Intervals:
    """For each query, an interval of keys: the query sees no keys before its start or from its stop
    on. The arrays start and stop are (B, H, T).

    keys  S, the number of keys
    """

    def __init__(self, start: Array, stop: Array, keys: int) -> None:
        self.start = start
        self.stop = stop
        self.keys = keys
        self._seeing: dict[tuple[int, int], Array] = {}

    def seeing(self, m: int, n: int) -> Array:
        """For each tile of n keys, two ranges of tiles of m queries: an array (B, H, tiles of keys,
        4).

        The four numbers are first, whole, rest and last, which `Range` in tiles.py calls first,
        middle, after and stop. They are indices of tiles of queries; rest and last are exclusive
        ends:

        first to last  from the first tile to the last in which some query sees some of the keys
        whole to rest  the tiles in which every query sees all of the keys. The range is empty
                       (rest ≤ whole) if there are none, or if they are not consecutive
        """
        if (m, n) not in self._seeing:
            self._seeing[m, n] = self._seeing_tiles(m, n)
        return self._seeing[m, n]

    def _seeing_tiles(self, m: int, n: int) -> Array:
        xp = namespace(self.start)
        b, h, t = self.start.shape
        there = {"dtype": xp.int32, "device": self.start.device}
        tile = xp.arange(-(-t // m), **there)  # of queries
        left = n * xp.arange(-(-self.keys // n), **there)[:, None]  # the first key of each tile
        right = backend.clip(left + n, high=self.keys)

        def of_tiles(x: Array, filling: int, reduce: Any) -> Array:  # (B, H, 1, tiles of queries)
            beyond = xp.full((b, h, m * tile.shape[0] - t), filling, **there)
            x = xp.reshape(xp.concat([x, beyond], axis=-1), (b, h, 1, -1, m))
            return reduce(x, axis=-1)

        sees = self.start < self.stop
        nearest = of_tiles(xp.where(sees, self.start, self.keys), self.keys, xp.min)
        farthest = of_tiles(xp.where(sees, self.stop, 0), 0, xp.max)
        some = (nearest < right) & (farthest > left)  # (B, H, tiles of keys, tiles of queries)
        every = of_tiles(self.start, 0, xp.max) <= left
        every = every & (of_tiles(self.stop, self.keys, xp.min) >= right)

        first = xp.min(xp.where(some, tile, t), axis=-1)
        last = xp.max(xp.where(some, tile + 1, 0), axis=-1)
        whole = xp.min(xp.where(every, tile, t), axis=-1)
        rest = xp.max(xp.where(every, tile + 1, 0), axis=-1)

        # The middle must be one run of tiles: if others lie between them, there is no middle.
        rest = xp.where(xp.sum(every, axis=-1) == rest - whole, rest, 0)
        return xp.astype(xp.stack([first, whole, rest, last], axis=-1), xp.int32)


class TileArguments(NamedTuple):
    """The arguments of attention, in the kernels' order. An argument that is None has an array with
    a single entry in its place, which no kernel reads."""

    query: Array  # (B, H, T, D)
    key: Array  # (B, G, S, D)
    value: Array  # (B, G, S, Dv)
    intervals: Intervals
    inside: Array  # (B, H, T, S): a query sees the keys of its interval where this is True
    bias: Array  # (B, H, T, S)
    keep: Array  # (B, H, T, S), or the seed and the threshold of a draw
    sink: Array  # (B, H)
    numbers: tuple[float, float, float]  # scale, softcap, 1 / (1 − dropout)
    masked: bool  # whether there is an array `inside`
    biased: bool
    dropped: bool
    counted: bool  # whether keep is a draw
    sunk: bool
    shape: tuple[int, ...]  # (…, H, T, S), as given
    capability: int  # the compute capability of the GPU, 90 for 9.0

    @classmethod
    def of(cls, x: Arguments) -> TileArguments:
        """Convert checked arguments of attention, for which `obstacle` returned None, to those of
        the kernels."""
        xp = namespace(x.query)
        shape = x.shape
        intervals, inside = _visible_keys(x)

        def missing(ndim: int, dtype: Any) -> Array:
            return xp.empty((1,) * ndim, dtype=dtype, device=x.query.device)

        return cls(
            query=four_axes(x.query),
            key=four_axes(x.key),
            value=four_axes(x.value),
            intervals=intervals,
            inside=missing(4, xp.bool) if inside is None else like_scores(inside, shape),
            bias=missing(4, x.query.dtype) if x.bias is None else like_scores(x.bias, shape),
            keep=missing(4, xp.bool) if x.keep is None else _kept(x),
            sink=missing(2, x.query.dtype) if x.sink is None else _like_heads(x.sink, shape),
            numbers=numbers(x),
            masked=inside is not None,
            biased=x.bias is not None,
            dropped=x.keep is not None,
            counted=isinstance(x.keep, Draw),
            sunk=x.sink is not None,
            shape=shape,
            capability=capability_of(x.query),
        )

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays that every kernel takes as its first arguments: query, key, value, start,
        stop, inside, bias and keep, in this order."""
        intervals = self.intervals
        return (
            self.query, self.key, self.value, intervals.start, intervals.stop,
            self.inside, self.bias, self.keep,
        )  # fmt: skip

    @property
    def constants(self) -> tuple[Any, ...]:
        """The constants that every kernel takes: scale, softcap, kept_factor, masked, biased,
        dropped and counted, in this order."""
        return (*self.numbers, self.masked, self.biased, self.dropped, self.counted)

    def tile(self, kernel: str) -> Tile:
        """The constants that describe the tiles of a kernel, "forward", "backward_query" or
        "backward_key", for these arguments."""
        t, d = self.query.shape[-2:]
        dv = self.value.shape[-1]
        width = max(_up(d), _up(dv))
        optional = self.masked or self.biased or self.dropped or self.numbers[1] > 0
        itemsize = self.query.dtype.itemsize
        tf32 = TF32 and itemsize == 4
        m, n = tile_sizes(kernel, itemsize, width, t, optional, self.capability)
        return Tile(tf32, m, n, _up(d), _up(dv))


class Tile(NamedTuple):
    """The constants that describe a kernel's tiles, in the order of the kernel's last arguments."""

    tf32: bool  # whether products of float32 are rounded to tf32
    M: int  # queries
    N: int  # keys
    D: int  # rounded up to a power of 2
    V: int  # Dv, rounded up to a power of 2


laid_out = TileArguments.of
"""The name by which `kernels.attention` calls `TileArguments.of`."""


def forward(x: TileArguments, runner: Runner | None = None) -> tuple[Array, Array]:
    """The output (…, H, T, Dv), with the leading axes of the query, and lse (B, H, T), the
    log-sum-exp of each query's scores.

    runner  what runs the kernels, by default `runner_of` the query
    """
    kernels, launch, stream = runner or runner_of(x.query)
    b, h, t = x.query.shape[:3]
    dv = x.value.shape[-1]
    out = empty_laid_out_like(x.query, dv)
    lse = _empty(x, (b, h, t), wide=True)

    tile = x.tile("forward")
    launch(
        stream, (-(-t // tile.M), h, b), kernels.forward,
        (*x.arrays, x.sink, out, lse, *x.constants, x.sunk, *tile),
    )  # fmt: skip
    return namespace(out).reshape(out, (*x.shape[:-1], dv)), lse


def backward(
    x: TileArguments,
    out: Array,
    lse: Array,
    dout: Array,
    dlse: Array | None,
    wanted: Wanted,
    runner: Runner | None = None,
) -> Gradients:
    """The gradients of the inputs of attention; None for scale and softcap, which are numbers here,
    and for a bias or sink whose gradient is not wanted.

    out, dout  (…, H, T, Dv)
    lse        (B, H, T), as `forward` returns it
    dlse       the gradient of lse, with as many entries; None if nothing depends on lse
    wanted     which gradients to return; those of query, key and value are returned in any case
    runner     what runs the kernels, by default `runner_of` the query
    """
    kernels, launch, stream = runner or runner_of(x.query)
    xp = namespace(out)
    b, h, t = x.query.shape[:3]
    g, s = x.key.shape[1:3]
    wants_bias = wanted.bias
    wants_sink = wanted.sink
    out = four_axes(out)
    dout = four_axes(dout)

    dquery = empty_laid_out_like(x.query, x.query.shape[-1])
    dkey = empty_laid_out_like(x.key, x.key.shape[-1])
    dvalue = empty_laid_out_like(x.value, x.value.shape[-1])
    delta = _empty(x, lse.shape, wide=True)
    nan_rows = _empty(x, lse.shape, wide=True)
    dlse_of_rows = _empty(x, (1, 1, 1), wide=True)
    if dlse is not None:
        dlse_of_rows = xp.astype(xp.reshape(dlse, lse.shape), lse.dtype)
    dbias = _empty(x, (1, 1, 1, 1))
    if wants_bias:  # zeros, since the kernel stores only the tiles that it visits
        dbias = xp.zeros((b, h, t, s), dtype=out.dtype, device=out.device)

    tile = x.tile("backward_query")
    launch(
        stream, (-(-t // tile.M), h, b), kernels.backward_query,
        (*x.arrays, out, lse, dout, dlse_of_rows, delta, nan_rows, dquery, dbias,
         *x.constants, wants_bias, dlse is not None, *tile),
    )  # fmt: skip
    tile = x.tile("backward_key")
    seeing = x.intervals.seeing(tile.M, tile.N)
    launch(
        stream, (-(-s // tile.N), g, b), kernels.backward_key,
        (*x.arrays, lse, dout, delta, nan_rows, seeing, dkey, dvalue, *x.constants, *tile),
    )  # fmt: skip

    dsink = None
    if wants_sink:
        share = xp.exp(xp.astype(x.sink, lse.dtype)[..., None] - lse)
        dsink = xp.astype(-xp.sum(share * delta, axis=-1), out.dtype)
    return as_given(x.shape, g, dquery, dkey, dvalue, dbias if wants_bias else None, dsink)


def _empty(x: TileArguments, shape: tuple[int, ...], wide: bool = False) -> Array:
    """A new array of this shape, not yet filled, on the device of the query of x. Its dtype is that
    of the query or, if `wide`, that of sums, which is float32 if the query has 16-bit floats."""
    xp = namespace(x.query)
    dtype = x.query.dtype
    if wide and dtype.itemsize == 2:
        dtype = xp.float32
    return xp.empty(shape, dtype=dtype, device=x.query.device)


def _kept(x: Arguments) -> Array:
    """Which weights dropout keeps, in the form that the kernels read: a boolean array (B, H, T, S)
    or, for a `Draw`, which stores this choice as a seed, an array (1, 1, 1, 2) of its seed and its
    threshold."""
    if not isinstance(x.keep, Draw):
        return like_scores(x.keep, x.shape)
    xp = namespace(x.query)
    one = functools.partial(xp.full, (1, 1, 1, 1), dtype=xp.uint32, device=x.query.device)
    return xp.concat([one(x.keep.seed), one(x.keep.threshold)], axis=-1)


def _visible_keys(x: Arguments) -> tuple[Intervals, Array | None]:
    """An interval of keys for each query, and a boolean array that broadcasts to (…, H, T, S): a
    query sees those keys of its interval for which the array is True. In place of the array, None
    if each query sees its whole interval."""
    # A subclass of Band may hide more than an interval says.
    if x.mask is None or type(x.mask) is Band:
        return _intervals_of_band(x), None
    start, stop, inside = masks.key_intervals(x.mask, x.query, x.key)  # type: ignore[misc]
    inside = None if inside is None else inside.array(x.shape, like=x.query)
    return _intervals(start, stop, x.shape), inside


_bands: dict[Any, Intervals] = {}
"""The intervals of masks that depend only on the lengths. They are kept, since computing them anew
would launch a few kernels in every layer of every step."""
_MOST_BANDS = 32


def _intervals_of_band(x: Arguments) -> Intervals:
    """The intervals of keys that the queries see, on the device of the query, if the mask is a
    `Band` (such as a causal mask or a sliding window) or None."""
    which = x.mask, x.shape, backend.place(x.query)
    found = _bands.get(which)
    if found is None:
        band = masks.sliding_window(None, None, offset=0) if x.mask is None else x.mask
        start, stop, _ = masks.key_intervals(band, x.query, x.key)  # type: ignore[misc]
        found = _intervals(start, stop, x.shape)
        if len(_bands) >= _MOST_BANDS:
            _bands.clear()
        _bands[which] = found
    return found


def _intervals(start: Array, stop: Array, shape: tuple[int, ...]) -> Intervals:
    return Intervals(_like_queries(start, shape), _like_queries(stop, shape), shape[-1])


def _like_queries(x: Array, shape: tuple[int, ...]) -> Array:
    """Broadcast x to (…, H, T), and reshape it to (B, H, T), as int32. `shape` is that of the
    scores, (…, H, T, S)."""
    xp = namespace(x)
    x = xp.broadcast_to(xp.astype(x, xp.int32), shape[:-1])
    return xp.reshape(x, (*batch_and_heads(shape), shape[-2]))


def _like_heads(x: Array, shape: tuple[int, ...]) -> Array:
    """Broadcast x to (…, H), and reshape it to (B, H). `shape` is that of the scores, which is
    (…, H, T, S)."""
    xp = namespace(x)
    return xp.reshape(xp.broadcast_to(x, shape[:-2]), batch_and_heads(shape))
