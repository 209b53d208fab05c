"""Attention on a GPU in tiles: the code on the host, for CuPy arrays, and for NumPy arrays on the
stand-in. Not yet run on a GPU."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from minimha_autograd import backend
from minimha_autograd.backend import Array, namespace

from ... import masks
from ...attention import Arguments
from ...functional.dropout import Draw
from ...masks.kinds import Band
from ..shared import as_given, batch_and_heads, four_axes, like_scores, numbers

TF32 = os.environ.get("MINIMHA_TF32", "0") not in {"", "0"}
"""Whether products round float32 to tf32, which has 10 bits of fraction: a third of the work, with
errors of 1e-3. Off by default: three products of tf32 give errors of 1e-6."""

_DRIVER = 13000  # CUDA 13.0
_log = logging.getLogger("minimha")

WIDEST = 256
"""The largest D and Dv: a tile holds whole rows."""


def tile_sizes(kernel: str, itemsize: int, width: int) -> tuple[int, int]:
    """Queries and keys in a tile: the largest that spill few registers on an H100, according to
    docs/measured/registers.md."""
    if itemsize == 8:
        return 16, 16
    if itemsize == 4 or width > 128:
        return 32, 32
    if kernel == "forward" or width <= 64:
        return 64, 64
    return (64, 32) if kernel == "backward_query" else (32, 32)


def _up(n: int) -> int:
    """The next power of 2, at least 16: a size of a tile."""
    return max(16, 1 << (n - 1).bit_length())


class Runner(NamedTuple):
    """What runs the kernels: their module, and the function that launches one."""

    kernels: Any
    launch: Callable[..., None]  # (stream, grid, kernel, arguments)
    stream: Any


@functools.cache
def on_numpy() -> Runner:
    """The kernels of `tiles` on NumPy."""
    from . import numpy_tile

    kernels = numpy_tile.interpreted(Path(__file__).with_name("tiles.py"))
    return Runner(kernels, numpy_tile.launch, None)


def _on_gpu() -> Runner:
    import cuda.tile as ct
    import cupy

    from . import tiles

    return Runner(tiles, ct.launch, cupy.cuda.get_current_stream())


def runner_of(x: Array) -> Runner:
    """What runs the kernels for this array."""
    return on_numpy() if isinstance(x, backend.HostArray) else _on_gpu()


def obstacle(x: Arguments) -> str | None:
    """The reason why the kernels cannot compute these arguments, or None."""
    if not isinstance(x.query, backend.HostArray) and (why := machine_obstacle()):
        return why
    if max(x.query.shape[-1], x.value.shape[-1]) > WIDEST:
        return f"heads are wider than {WIDEST}"
    return None


@functools.cache
def machine_obstacle() -> str | None:
    """The reason why tiles cannot run on this machine's GPU, or None. The first call logs it."""
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


class TileArguments(NamedTuple):
    """The arguments of attention in the kernels' order. Missing arrays have one entry."""

    query: Array  # (B, H, T, D)
    key: Array  # (B, G, S, D)
    value: Array  # (B, G, S, Dv)
    start: Array  # (B, H, T): a query sees keys from here
    stop: Array  # up to here, exclusive
    inside: Array  # (B, H, T, S): except those where this is False
    bias: Array  # (B, H, T, S)
    keep: Array  # (B, H, T, S), or the seed and the threshold of a draw
    sink: Array  # (B, H)
    numbers: tuple[float, float, float]  # scale, softcap, 1 / (1 − dropout)
    flags: tuple[bool, ...]  # whether there are inside, bias, keep; if keep is a draw; sink
    shape: tuple[int, ...]  # (…, H, T, S), as given

    @classmethod
    def of(cls, x: Arguments) -> TileArguments:
        """From checked arguments that have no obstacle."""
        xp, shape = namespace(x.query), x.shape
        start, stop, inside = _intervals(x)
        none = functools.partial(xp.empty, device=x.query.device)
        return cls(
            four_axes(x.query), four_axes(x.key), four_axes(x.value), start, stop,
            none((1,) * 4, dtype=xp.bool) if inside is None else like_scores(inside, shape),
            none((1,) * 4, dtype=x.query.dtype) if x.bias is None else like_scores(x.bias, shape),
            none((1,) * 4, dtype=xp.bool) if x.keep is None else _kept(x),
            none((1, 1), dtype=x.query.dtype) if x.sink is None
            else xp.reshape(xp.broadcast_to(x.sink, shape[:-2]), batch_and_heads(shape)),
            numbers(x),
            (inside is not None, x.bias is not None, x.keep is not None,
             isinstance(x.keep, Draw), x.sink is not None),
            shape,
        )  # fmt: skip

    def settings(self, kernel: str) -> tuple[Any, ...]:
        """tf32 and the sizes of a tile: M, N, D, V."""
        (t, d), (s, dv) = self.query.shape[-2:], self.value.shape[-2:]
        itemsize, width = self.query.dtype.itemsize, max(_up(d), _up(dv))
        m, n = tile_sizes(kernel, itemsize, width)
        return TF32 and itemsize == 4, min(m, _up(t)), min(n, _up(s)), _up(d), _up(dv)


laid_out = TileArguments.of


def forward(x: TileArguments, runner: Runner | None = None) -> tuple[Array, Array]:
    """The output, in the shape of the query, and lse (B, H, T)."""
    kernels, launch, stream = runner or runner_of(x.query)
    (b, h, t), dv = x.query.shape[:3], x.value.shape[-1]
    out, lse = _empty(x, (b, h, t, dv)), _empty(x, (b, h, t), wide=True)
    settings = x.settings("forward")
    launch(
        stream, (-(-t // settings[1]), h, b), kernels.forward,
        (*x[:9], out, lse, *x.numbers, *x.flags, *settings),
    )  # fmt: skip
    return namespace(out).reshape(out, (*x.shape[:-1], dv)), lse


def backward(
    x: TileArguments,
    out: Array,
    lse: Array,
    dout: Array,
    dlse: Array | None,
    wanted: tuple[bool, ...],
    runner: Runner | None = None,
) -> tuple[Array | None, ...]:
    """The gradients of the seven inputs of attention."""
    kernels, launch, stream = runner or runner_of(x.query)
    xp, (b, h, t), (g, s) = namespace(out), x.query.shape[:3], x.key.shape[1:3]
    dquery, dkey, dvalue = (_empty(x, y.shape) for y in (x.query, x.key, x.value))
    delta = (
        xp.zeros_like(lse) if dlse is None else -xp.astype(xp.reshape(dlse, lse.shape), lse.dtype)
    )
    dbias = xp.zeros((b, h, t, s) if wanted[3] else (1,) * 4, dtype=out.dtype, device=out.device)
    out, dout = four_axes(out), four_axes(dout)
    shared, flags = x[:8], x.flags[:4]  # all but the sink
    settings = x.settings("backward_query")
    launch(
        stream, (-(-t // settings[1]), h, b), kernels.backward_query,
        (*shared, out, lse, dout, delta, dquery, dbias, *x.numbers, *flags, wanted[3], *settings),
    )  # fmt: skip
    settings = x.settings("backward_key")
    launch(
        stream, (-(-s // settings[2]), g, b), kernels.backward_key,
        (*shared, lse, dout, delta, dkey, dvalue, *x.numbers, *flags, *settings),
    )  # fmt: skip
    dsink = None
    if wanted[4]:
        share = xp.exp(xp.astype(x.sink, lse.dtype)[..., None] - lse)
        dsink = xp.astype(-xp.sum(share * delta, axis=-1), out.dtype)
    return as_given(x.shape, g, dquery, dkey, dvalue, dbias if wanted[3] else None, dsink)


def _empty(x: TileArguments, shape: tuple[int, ...], wide: bool = False) -> Array:
    """An array of the dtype of the query, or of sums: at least float32."""
    xp, dtype = namespace(x.query), x.query.dtype
    if wide and dtype.itemsize == 2:
        dtype = xp.float32
    return xp.empty(shape, dtype=dtype, device=x.query.device)


def _kept(x: Arguments) -> Array:
    """keep (B, H, T, S), or the two numbers that determine it, made on the device."""
    if not isinstance(x.keep, Draw):
        return like_scores(x.keep, x.shape)
    xp = namespace(x.query)
    one = functools.partial(xp.full, (1, 1, 1, 1), dtype=xp.uint32, device=x.query.device)
    return xp.concat([one(x.keep.seed), one(x.keep.threshold)], axis=-1)


def _intervals(x: Arguments) -> tuple[Array, Array, Array | None]:
    """start and stop (B, H, T), int32, and the array of `inside`, broadcasting to the scores."""
    if x.mask is None or isinstance(x.mask, Band):
        return *_intervals_of_band(x.mask, x.shape, namespace(x.query), x.query.device), None
    start, stop, inside = masks.key_intervals(x.mask, x.query, x.key)  # type: ignore[misc]
    inside = None if inside is None else inside.array(x.shape, like=x.query)
    return *(_like_queries(y, x.shape) for y in (start, stop)), inside


@functools.lru_cache(maxsize=32)
def _intervals_of_band(mask: Any, shape: tuple[int, ...], xp: ModuleType, device: Any) -> Any:
    """start and stop of a band, moved to the device once."""
    t, s = shape[-2:]
    like = xp.empty((t, 0), device=device)
    band = masks.sliding_window(None, None, offset=0) if mask is None else mask
    start, stop, _ = masks.key_intervals(band, like, xp.empty((s, 0), device=device))  # type: ignore[misc]
    return tuple(_like_queries(y, shape) for y in (start, stop))


def _like_queries(x: Array, shape: tuple[int, ...]) -> Array:
    """What broadcasts to (…, H, T) as (B, H, T)."""
    xp = namespace(x)
    x = xp.broadcast_to(xp.astype(x, xp.int32), shape[:-1])
    return xp.reshape(x, (*batch_and_heads(shape), shape[-2]))
