"""Positions for attention, which by itself ignores the order of its keys.

x = tokens + mh.positions.sinusoidal(T, M)          added to the input: sinusoidal, Learned
q = mh.positions.Rope()(q, offset=n)                rotates queries and keys: Rope
…attention(q, k, v, bias=mh.positions.alibi(H, T, S))     added to the scores: alibi
"""

from __future__ import annotations

from typing import Any, NamedTuple

from minimha_autograd import Tensor, array_of, backend
from minimha_autograd.backend import Array, Rng, namespace

from ..functional import rope
from ..functional.checks import integer
from ..functional.rope import Llama3, angles
from ..masks.alignment import offset_of
from ..nn import Embedding

__all__ = ["Learned", "Llama3", "Rope", "alibi", "alibi_slopes", "sinusoidal"]


def sinusoidal(
    count: int,
    width: int,
    *,
    offset: int = 0,
    base: float = 10000.0,
    dtype: str = "float32",
    like: Any = None,
) -> Array:
    """The array (T, M) to add to T inputs of width M, for T = count and M = width.

        p[t, 2i] = sin(t · θᵢ),  p[t, 2i + 1] = cos(t · θᵢ),  θᵢ = base^(−2i/M),  t from offset on

    Row t + k is row t with each pair rotated by k · θᵢ: a linear map that depends only on k.

    like  an array or Tensor whose library and device the result gets; NumPy by default

    Raises ValueError for an odd or too small width, TypeError for sizes that are not integers and
    for a dtype that is not floating-point.
    Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.5.
    """
    count = integer(count, "sinusoidal: count", least=0)
    width = integer(width, "sinusoidal: width", least=2)
    if width % 2:
        raise ValueError(f"sinusoidal: width = {width} must be even: sin and cos come in pairs")
    offset = integer(offset, "sinusoidal: offset")
    like = backend.asarray(0) if like is None else array_of(like)
    xp = namespace(like)
    positions = xp.arange(count, device=like.device) + offset  # (T,)
    theta = angles(positions, width, base)  # (T, M/2)

    # sin and cos of an angle are neighbours in a row.
    table = xp.stack([xp.sin(theta), xp.cos(theta)], axis=-1)  # (T, M/2, 2)
    table = xp.reshape(table, (count, width))  # (T, M)
    table = xp.astype(table, backend.dtype(xp, dtype))
    if not backend.is_floating(table):
        raise TypeError(f"sinusoidal: dtype = {dtype!r} must be of floating-point numbers")
    return table


class Learned(Embedding):
    """A learned table (N, M) of positions: N = context rows, one for each position, of M = width
    numbers. A generator or seed, rng, draws them from the normal distribution with standard
    deviation std."""

    def __init__(
        self, context: int, width: int, *, std: float = 0.02, rng: Rng = 0, dtype: str = "float32"
    ) -> None:
        context = integer(context, "context", least=1)
        width = integer(width, "width", least=1)
        super().__init__(context, width, std=std, rng=rng, dtype=dtype)

    def __call__(self, count: int, offset: int = 0) -> Tensor:
        """The rows (T, M) of the positions offset, …, offset + T − 1, for T = count.

        Raises ValueError for positions beyond the context.
        """
        count = integer(count, "count", least=0)
        offset = integer(offset, "offset", least=0)
        context = self.table.shape[0]
        if offset + count > context:
            raise ValueError(
                f"{count} positions from {offset} on do not fit into the context of {context} "
                "learned positions"
            )
        return self._widened(self.table[offset : offset + count])


class Rope(NamedTuple):
    """The settings of rotary positions: they are arguments of `functional.rope`. A call with
    queries or keys rotates them.

    base         pair i of columns rotates by base^(−2i/width) from one position to the next
    width        how many of the first columns rotate; None for all D
    interleaved  whether pair i is columns 2i and 2i + 1; otherwise i and i + width/2
    scaling      `Llama3(…)`, which makes some pairs rotate more slowly; None for no change
    """

    base: float = 10000.0
    width: int | None = None
    interleaved: bool = False
    scaling: Llama3 | None = None

    def __call__(self, x: Any, offset: int = 0, positions: Any = None) -> Any:
        """Rotate the queries or keys x (…, T, D), as `functional.rope` does with these settings.
        The rows are at the positions offset, …, offset + T − 1 or, if given, at `positions`,
        integers (T,) or (…, T)."""
        return rope(x, offset=offset, positions=positions, **self._asdict())


def alibi_slopes(num_heads: int) -> Array:
    """The slope of each of H = num_heads heads, by which its bias decreases with each step of
    distance: (H,) in float64, on the host.

    For H a power of two, the slopes are 2^(−8/H), 2^(−16/H), …, 2^(−8). Otherwise they are those
    for P heads, with P the largest power of two below H, followed by the first H − P of the 1st,
    3rd, 5th … of those for 2P heads.
    Raises ValueError for fewer than one head.
    Source: Press, Smith and Lewis, "Train Short, Test Long" (2022), section 3 and its code.
    """
    num_heads = integer(num_heads, "alibi: num_heads", least=1)
    power = 1 << (num_heads.bit_length() - 1)  # the largest up to H
    slopes = [2 ** (-8 * k / power) for k in range(1, power + 1)]

    # The rest are the 1st, 3rd, 5th … slopes for 2·power heads; its 2nd, 4th … are in the list
    # already.
    slopes += [2 ** (-4 * k / power) for k in range(1, 2 * power + 1, 2)]
    return backend.asarray(slopes[:num_heads])


def alibi(
    num_heads: int,
    t: int,
    s: int,
    *,
    offset: int | None = None,
    align: str | None = None,
    like: Any = None,
) -> Array:
    """The bias (H, T, S) to add to scores: −slope · |i + offset − j| for query i and key j, where
    each head has its slope, an entry of `alibi_slopes(H)`. H is num_heads, T is t, and S is s.

    With a causal mask of the same offset, this is the bias of the paper; without one it decreases
    on both sides. With T = S the offset is 0 unless given; otherwise give offset=… or
    align="top-left" or "bottom-right", as in `masks.causal`.

    like  an array or Tensor of floats whose library, device and dtype the bias gets; float32 on the
          host by default

    Raises ValueError for T ≠ S without offset or align, and for fewer than one head.
    Source: Press, Smith and Lewis, "Train Short, Test Long" (2022), equation in section 3.
    """
    like = backend.full((), 0, dtype="float32") if like is None else array_of(like)
    if backend.is_complex(like):
        like = namespace(like).real(like)
    if not backend.is_floating(like):
        what = getattr(like, "dtype", type(like).__name__)
        raise TypeError(f"alibi: like must be an array of floating-point numbers, not {what}")
    t = integer(t, "alibi: t", least=0)
    s = integer(s, "alibi: s", least=0)
    start = offset_of("alibi", t, s, offset, align)
    xp = namespace(like)
    i = xp.arange(t, dtype=xp.float64, device=like.device)[:, None]  # (T, 1)
    j = xp.arange(s, dtype=xp.float64, device=like.device)[None, :]  # (1, S)
    slopes = backend.like(alibi_slopes(num_heads), like)[:, None, None]  # (H, 1, 1)
    distance = abs(i + start - j)  # (T, S)
    bias = 0 - slopes * distance  # (H, T, S); −x would hold −0
    return xp.astype(bias, like.dtype)
