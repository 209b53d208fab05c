"""Operations that reduce axes: axis is an integer, a tuple of them, or None for all.

The shapes in the comments are those of x of shape (B, T, M), reduced over its last axis.
"""

from __future__ import annotations

import functools
import math

from ..backend import Array, is_complex, is_exact, namespace, total
from ..operation import operation
from ..tape import Pullback
from .requirements import axes, one_axis

Axis = int | tuple[int, ...] | None


@operation(requirement=axes)
def sum(
    x: Array,
    *,
    axis: Axis = None,
    keepdims: bool = False,
) -> tuple[Array, Pullback]:
    """y = Σ x over axis.   dx = dy, repeated along axis."""
    xp = namespace(x)
    shape = x.shape
    kept = _kept(shape, axis)  # the shape (B, T, 1)
    y = total(x, axis, keepdims)  # (B, T), with keepdims (B, T, 1)

    # Only shapes are saved: the gradient of a sum does not depend on its terms.
    def pullback(dy: Array) -> tuple[Array]:
        dy = xp.reshape(dy, kept)  # (B, T, 1), with or without keepdims
        dx = xp.broadcast_to(dy, shape)  # (B, T, M), a view: no entry is copied
        return (dx,)

    return y, pullback


@operation(requirement=axes)
def mean(
    x: Array,
    *,
    axis: Axis = None,
    keepdims: bool = False,
) -> tuple[Array, Pullback]:
    """y = Σ x / n over the n entries of axis.   dx = dy / n, repeated along axis."""
    xp = namespace(x)
    shape = x.shape
    kept = _kept(shape, axis)
    n = _count(shape, kept)  # the entries in each mean: M
    y = total(x, axis, keepdims) / n  # (B, T)

    # Divided before it is repeated, since dy has n times fewer entries than dx.
    def pullback(dy: Array) -> tuple[Array]:
        share = xp.reshape(dy / n, kept)  # (B, T, 1)
        dx = xp.broadcast_to(share, shape)  # (B, T, M)
        return (dx,)

    return y, pullback


@operation(requirement=axes)
def var(
    x: Array,
    *,
    axis: Axis = None,
    correction: float = 0.0,
    keepdims: bool = False,
) -> tuple[Array, Pullback]:
    """y = Σ (x − mean)² / (n − correction) over axis.   dx = dy · 2 (x − mean) / (n − correction).

    correction  0 for the variance of these n numbers, 1 for an unbiased estimate from a sample; y
                is NaN if correction ≥ n
    """
    xp = namespace(x)
    kept = _kept(x.shape, axis)
    n = _count(x.shape, kept)
    mean = total(x, axis, keepdims=True) / n  # (B, T, 1)
    centred = x - mean  # (B, T, M)

    # NaN instead of an error, as for the mean of no numbers.
    freedom = n - correction
    if freedom <= 0:
        freedom = math.nan
    squares = centred * centred
    y = total(squares, axis, keepdims) / freedom  # (B, T)

    # The mean depends on x, too, but its part of the gradient is 0, since Σ (x − mean) = 0.
    def pullback(dy: Array) -> tuple[Array]:
        slope = xp.reshape(dy * (2 / freedom), kept)  # (B, T, 1)
        dx = slope * centred  # (B, T, M)
        return (dx,)

    return y, pullback


@operation(requirement=axes)
def max(
    x: Array,
    *,
    axis: Axis = None,
    keepdims: bool = False,
) -> tuple[Array, Pullback]:
    """y = the largest entry over axis.   dx = dy at the largest, shared evenly between ties."""
    return _extreme(x, "max", axis, keepdims)


@operation(requirement=axes)
def min(
    x: Array,
    *,
    axis: Axis = None,
    keepdims: bool = False,
) -> tuple[Array, Pullback]:
    """y = the smallest entry over axis.   dx = dy at the smallest, shared evenly between ties."""
    return _extreme(x, "min", axis, keepdims)


def _extreme(x: Array, name: str, axis: Axis, keepdims: bool) -> tuple[Array, Pullback]:
    """The value and the pullback of `max` or `min`, according to `name`. Complex entries are
    compared by their real parts: the value is the entry with the largest or smallest real part,
    or the mean of these entries if several are tied."""
    xp = namespace(x)
    kept = _kept(x.shape, axis)
    extreme = getattr(xp, name)
    real = x
    if is_complex(x):
        real = xp.real(x)
    y = extreme(real, axis=axis, keepdims=keepdims)

    # The entry is searched for here rather than above, where its index would cost a second pass
    # over x even if no gradient is wanted.
    def pullback(dy: Array) -> tuple[Array]:
        is_extreme = real == xp.reshape(y, kept)  # (B, T, M)
        hit = xp.astype(is_extreme, dy.dtype)  # 1 at the extreme entries, else 0
        ties = total(hit, axis, keepdims=True)  # (B, T, 1), how many there are
        share = xp.reshape(dy, kept) / ties  # (B, T, 1)
        dx = hit * share
        return (dx,)

    # So far y is real. Its imaginary part comes from the entries that share the gradient.
    if is_complex(x):
        ones = xp.ones(y.shape, dtype=x.dtype, device=x.device)
        (share,) = pullback(ones)
        followed = xp.sum(x * share, axis=axis, keepdims=keepdims)
        return followed, pullback
    return y, pullback


@operation(requirement=axes)
def logsumexp(
    x: Array,
    *,
    axis: Axis = None,
    keepdims: bool = False,
) -> tuple[Array, Pullback]:
    """y = log Σ eˣ over axis.   dx = dy · eˣ⁻ʸ, the softmax of x.

    The largest entry is subtracted first, so that no exponential of finite entries overflows. If
    all entries are −∞, or there are none, y is −∞ and, for a finite dy, dx is 0.
    """
    xp = namespace(x)
    kept = _kept(x.shape, axis)
    if is_exact(x):
        x = xp.astype(x, xp.float64)  # a difference of narrow integers overflows
    real = x
    if is_complex(x):
        real = xp.real(x)

    # 0 instead of an infinite largest entry: ∞ − ∞ is NaN. No entries have no largest one.
    if 0 in x.shape:
        peak = xp.zeros(kept, dtype=real.dtype, device=x.device)
    else:
        peak = xp.max(real, axis=axis, keepdims=True)  # (B, T, 1)
        peak = xp.where(xp.isinf(peak), xp.zeros_like(peak), peak)

    exps = xp.exp(x - peak)  # (B, T, M)
    sums = total(exps, axis, keepdims=True)  # (B, T, 1)

    # The largest exponential is e⁰ = 1, so a sum is 0 only if all entries are −∞ or none exists.
    empty = sums == 0
    sums = xp.where(empty, xp.ones_like(sums), sums)  # log 0 would warn, and 0 / 0 be NaN
    nothing = xp.full_like(sums, -math.inf)
    y = xp.where(empty, nothing, xp.log(sums) + peak)  # (B, T, 1)
    y = xp.sum(y, axis=axis, keepdims=keepdims)  # of one number: only the axes are removed

    def pullback(dy: Array) -> tuple[Array]:
        softmax = exps / sums  # (B, T, M), without another exponential
        dx = xp.reshape(dy, kept) * softmax  # (B, T, M)
        return (dx,)

    return y, pullback


@operation(requirement=one_axis)
def cumsum(x: Array, *, axis: int) -> tuple[Array, Pullback]:
    """yₖ = Σ xⱼ over j ≤ k, along axis.   dxⱼ = Σ dyₖ over k ≥ j."""
    xp = namespace(x)
    axis = range(x.ndim)[axis]  # raises IndexError for one that x lacks
    y = xp.cumulative_sum(x, axis=axis)

    # Sums from the last entry on: reversed, summed from the first on, and reversed again.
    def pullback(dy: Array) -> tuple[Array]:
        reverse = xp.flip(dy, axis=axis)
        sums = xp.cumulative_sum(reverse, axis=axis)
        dx = xp.flip(sums, axis=axis)
        return (dx,)

    return y, pullback


# Remembered, since a training step computes the same few shapes again and again.
@functools.lru_cache(maxsize=1024)
def _kept(shape: tuple[int, ...], axis: Axis) -> tuple[int, ...]:
    """The shape that a reduction over `axis` with keepdims=True returns: `shape`, but with length 1
    along the reduced axes."""
    if axis is None:
        return (1,) * len(shape)
    if isinstance(axis, int):
        axis = (axis,)

    ndim = len(shape) or 1  # NumPy accepts the axes 0 and −1 of a number
    kept = list(shape)
    for k in {k % ndim for k in axis}:
        if k < len(shape):
            kept[k] = 1
    return tuple(kept)


@functools.lru_cache(maxsize=1024)
def _count(shape: tuple[int, ...], kept: tuple[int, ...]) -> int:
    """The number n of entries that a reduction from shape to kept, the shape with length 1 along
    the reduced axes, combines into one."""
    return math.prod(n for n, m in zip(shape, kept, strict=True) if m == 1)
