"""Rotary positions: queries and keys rotated by angles that grow with their position."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from minimha_autograd import Pullback, array_of, backend, operation, ops
from minimha_autograd.backend import Array, namespace

from .checks import integer
from .implementations import accelerated


class Llama3(NamedTuple):
    """Slower rotations by `rope`, for texts longer than those on which Llama 3.1 was first trained.

        θ ← θ · (g + (1 − g) / factor),  g = (n − low) / (high − low), limited to 0 … 1

    context is the length of the texts in the first training. A pair of columns that rotates by θ
    per position turns n = context · θ / 2π times in such a text. If n > high, θ does not change;
    if n < low, it is divided by factor; in between, g grows evenly from 0 to 1.
    Source: Grattafiori et al., "The Llama 3 Herd of Models" (2024), and the code of Llama 3.1.
    """

    factor: float
    low: float
    high: float
    context: int

    def __call__(self, theta: Array) -> Array:
        turns = self.context / (2 * math.pi) * theta  # n
        g = (turns - self.low) / (self.high - self.low)
        g = ops.clip(g, min=0.0, max=1.0)  # 1: as before, 0: slower by the factor
        return theta * (g + (1 - g) / self.factor)


@operation
def rope(
    x: Array,
    *,
    offset: int = 0,
    positions: Any = None,
    base: float = 10000.0,
    width: int | None = None,
    interleaved: bool = False,
    scaling: Llama3 | None = None,
) -> tuple[Array, Pullback]:
    """Rotate pair i of columns of x by the angle t · base^(−2i/width), at position t.

        (a, b) -> (a cos − b sin, b cos + a sin)       dx = dy rotated by the opposite angle

    x            (…, T, D), in attention the queries or keys (…, H, T, D), before their product
    offset       the position of the first row: they are offset, …, offset + T − 1
    positions    integers, in place of offset: (T,) for all of x; (…, T) with one axis less than x,
                 broadcasting to its rows, such as (B, 1, T) or (B, H, T); or (B, T) for
                 x (B, H, T, D), the same for all heads of a sequence, unless B = H > 1
    base         10000 in the paper; a larger one rotates more slowly
    width        how many of the first columns rotate: even, by default D; the others do not change
    interleaved  pair i is columns 2i and 2i + 1 (RoFormer, GPT-J); otherwise i and i + width/2, the
                 halves of the width (GPT-NeoX, and Llama in `transformers`). Only the order of the
                 columns differs
    scaling      `Llama3(…)` changes the angles per position, base^(−2i/width)

    The product of a query rotated by t and a key rotated by s depends only on t − s. Angles are
    computed in float64 and the rotation at least in float32, so distant positions stay precise.

    Raises ValueError for an impossible width or base, for positions of another shape and for (B, T)
    where B = H > 1, which could mean (H, T); TypeError unless x is floating-point and positions are
    integers.
    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021),
    equations 15 and 34.
    """
    width = _check(x, width)
    xp = namespace(x)

    # The dtype of x, but real; `operation` has widened 16-bit floats already.
    dtype = xp.float64
    if x.dtype in (xp.float32, xp.complex64):
        dtype = xp.float32
    where = _positions(x, offset, positions)  # (T,) or (…, T)
    cos, sin = rotations(where, width, base, scaling, dtype)  # (…, T, width/2)
    return rotate(x, cos, sin, interleaved=interleaved)


@accelerated(exact=True)
def rotations(
    positions: Array,
    width: int,
    base: float,
    scaling: Llama3 | None,
    dtype: Any,
) -> tuple[Array, Array]:
    """The cosines and the sines (…, T, width/2) of the angles of `rope` at positions (…, T),
    rounded to `dtype`. width, base and scaling are those of `rope`."""
    xp = namespace(positions)
    cos, sin = cos_and_sin(angles(positions, width, base, scaling))  # (…, T, width/2)
    return xp.astype(cos, dtype), xp.astype(sin, dtype)


@accelerated(dtype="float64")
def cos_and_sin(theta: Array) -> tuple[Array, Array]:
    """The cosines and the sines of the angles theta (…, T, width/2)."""
    xp = namespace(theta)
    return xp.cos(theta), xp.sin(theta)


@accelerated(exact=True)
def rotate(
    x: Array,
    cos: Array,
    sin: Array,
    *,
    interleaved: bool,
) -> tuple[Array, Pullback]:
    """(a, b) -> (a cos − b sin, b cos + a sin) for each pair (a, b) of the first columns of x.

    x (…, T, D), cos and sin (…, T, width/2). Pair i is columns 2i and 2i + 1 if interleaved, else
    columns i and i + width/2. The pullback rotates by the opposite angles.
    """
    half = cos.shape[-1]
    width = 2 * half

    def turned(x: Array, sin: Array) -> Array:
        xp = namespace(x)
        if interleaved:
            a = x[..., :width:2]  # (…, T, width/2)
            b = x[..., 1:width:2]
        else:
            a = x[..., :half]
            b = x[..., half:width]
        parts = [a * cos - b * sin, b * cos + a * sin]  # (…, T, width/2) each

        # Neighbours again: (…, T, width/2, 2) becomes (…, T, width).
        if interleaved:
            pairs = xp.stack(parts, axis=-1)
            parts = [xp.reshape(pairs, (*x.shape[:-1], width))]

        # The columns beyond the width do not rotate.
        if width < x.shape[-1]:
            parts.append(x[..., width:])
        if len(parts) == 1:
            return parts[0]
        return xp.concat(parts, axis=-1)  # (…, T, D)

    # The opposite angle has the same cosine, and its sine is −sin.
    def pullback(dy: Array) -> tuple[Array]:
        return (turned(dy, -sin),)

    return turned(x, sin), pullback


def angles(
    positions: Array,
    width: int,
    base: float,
    scaling: Llama3 | None = None,
) -> Array:
    """The angles t · θᵢ, (…, T, width/2) in float64, by which `rope` rotates pair i of columns at
    position t, for positions (…, T): θᵢ = base^(−2i/width), which `scaling` may change.

    Raises ValueError unless base is positive and finite.
    """
    if not 0 < base < math.inf:
        raise ValueError(f"base must be a positive number, not {base}")
    xp = namespace(positions)
    even = xp.arange(0, width, 2, dtype=xp.float64, device=positions.device)  # 2i
    theta = base ** (even / -width)  # (width/2,)
    if scaling is not None:
        theta = scaling(theta)

    # At position 100,000 an angle in float32 would be rounded by up to 0.004.
    t = xp.astype(positions, xp.float64)[..., None]  # (…, T, 1)
    return t * theta  # (…, T, width/2)


def _check(x: Array, width: int | None) -> int:
    """The number of columns to rotate, by default all columns of x. Raises the errors of `rope` for
    an x or a width that it does not support."""
    if not (backend.is_floating(x) or backend.is_complex(x)):
        raise TypeError("x must be an array of floating-point numbers")
    if x.ndim < 2:
        raise ValueError("x needs at least two axes, (…, T, D)")
    columns = x.shape[-1]  # D
    width = columns if width is None else integer(width, "width")
    if width % 2 or not 2 <= width <= columns:
        fix = ""
        if width == columns > 1:
            fix = f"; width={columns - 1} leaves the last column unchanged"
        raise ValueError(f"width = {width} must be even and from 2 to D = {columns}{fix}")
    return width


def _positions(x: Array, offset: int, positions: Any) -> Array:
    """The positions of the rows of x, from the arguments offset and positions of `rope`, as an
    array on the device of x. It is (T,), or broadcasts to (…, T) with one axis less than x. Raises
    the errors of `rope` for positions."""
    xp = namespace(x)
    rows = tuple(x.shape[:-1])  # (…, T)
    if positions is None:
        offset = integer(offset, "offset")
        return xp.arange(offset, offset + rows[-1], device=x.device)  # (T,)
    if offset:
        raise ValueError("give offset or positions, not both")

    positions = array_of(positions)
    positions = backend.mover(x)(backend.asarray(positions))
    backend.require(backend.is_integral, positions, "positions")
    shape = tuple(positions.shape)

    # (B, T), where x has heads: all heads of a sequence have the same positions.
    if len(shape) == len(rows) - 1 > 1:
        of_heads = _match(shape, rows[1:])  # as (H, T)
        of_sequences = _match(shape, (*rows[:-2], rows[-1]))  # as (B, T)
        if of_heads and of_sequences and max(shape[:-1]) > 1:
            raise ValueError(
                f"positions has shape {shape}: in x (…, H, T, D) these could be (B, T) or (H, T). "
                "Write positions[..., None, :] for one row per sequence, positions[None] for one "
                "per head"
            )
        positions = positions[..., None, :]  # (B, 1, T)

    if positions.ndim in (1, len(rows)) and _match(positions.shape, rows[-positions.ndim :]):
        return positions
    raise ValueError(
        f"positions has shape {shape}: with x (…, T, D) {tuple(x.shape)} it must be (T,) "
        f"({rows[-1]},) or broadcast to (…, T) {rows} with as many axes, or, where x is "
        "(B, H, T, D), be (B, T)"
    )


def _match(shape: tuple[int, ...], rows: tuple[int, ...]) -> bool:
    """Whether positions of this shape broadcast to `rows`, a shape (…, T) with the same number of
    axes. The last axis of both must have length T."""
    if shape[-1] != rows[-1]:
        return False
    leading = zip(shape[:-1], rows[:-1], strict=True)
    return all(n in (1, m) for n, m in leading)
