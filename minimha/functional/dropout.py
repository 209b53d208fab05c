"""Dropout: entries set to zero at random, the others scaled up to preserve the mean."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from minimha_autograd import Pullback, array_of, backend, operation
from minimha_autograd.backend import Array, namespace

from .checks import probability
from .implementations import accelerated


def drop(x: Any, p: float, *, rng: backend.Generator | None = None, keep: Any = None) -> Any:
    """Drop each entry of x with probability p: set it to 0, and multiply the other entries
    by 1/(1 − p). `dropout` has the formulas.

    p     from 0 to 1; if p is 0 and keep is not given, x itself is returned and nothing is drawn
    rng   the generator to draw from. It draws an array of the shape of x on the host, so that a
          seed gives the same result for every library
    keep  boolean, broadcasts to x: True for the entries to keep, drawn before the call; rng is then
          not used. For an array x draw it with `backend.bernoulli(rng, x.shape, 1 - p, like=x)`

    Raises ValueError for p outside [0, 1] and for p > 0 without rng and keep; TypeError if rng is
    needed and is not a generator. A seed is refused, since it would drop the same entries in every
    call.
    """
    like = array_of(x)
    if not backend.is_array(like):
        raise TypeError(f"drop: x must be an array or a Tensor, not {type(x).__name__}")
    p = probability(p, "drop: p")
    if keep is None:
        keep = draw(p, rng, tuple(like.shape), like=like, name="drop: p")
    if keep is None:  # p is 0
        return x
    return dropout(x, keep, p=p)


class Draw(NamedTuple):
    """Which entries dropout keeps, stored as a seed: a hash of the seed and of the index of an
    entry decides whether this entry is kept or, with probability p, dropped.

    A kernel on a GPU computes the hashes where it needs them, and again in the backward pass, so
    that no array of T × S entries is stored.
    Source of the hash: Wellons, "Prospecting for Hash Functions" (2018).
    """

    seed: int  # 0 … 2**32 − 1
    p: float

    @property
    def threshold(self) -> int:
        """An entry is kept if the first 24 bits of its hash are a number below this one."""
        return round((1 - self.p) * 2**24)

    def array(self, shape: tuple[int, ...], *, like: Array) -> Array:
        """The boolean array of this shape, (…, T, S), True where an entry is kept, in the library
        and on the device of the array `like`."""
        xp = namespace(like)
        *lead, t, s = shape
        count = functools.partial(xp.arange, dtype=xp.uint32, device=like.device)
        heads = xp.reshape(count(math.prod(lead)), (*lead, 1, 1))  # (…, 1, 1)
        queries = count(t)[:, None]  # (T, 1)
        keys = count(s)  # (S,)

        # Mix after each sum; otherwise places with equal index sums would get the same bits.
        bits = _mixed(heads + self.seed)  # (…, 1, 1)
        bits = _mixed(bits + queries)  # (…, T, 1)
        bits = _mixed(bits + keys)  # (…, T, S)
        first_24 = bits >> 8
        return first_24 < self.threshold


def _mixed(x: Array) -> Array:
    """A hash of 32-bit integers: every bit of the result depends on every bit of x."""
    # A shift carries high bits to low ones, a product (modulo 2³²) low bits to high ones.
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


def draw(
    p: float,
    rng: backend.Generator | None,
    shape: tuple[int, ...],
    *,
    like: Array,
    name: str,
    as_seed: bool = False,
) -> Array | Draw | None:
    """Draw which entries dropout keeps: a boolean array of this shape, in the library of the array
    `like`, True with probability 1 − p. If p is 0, nothing is drawn and the result is None.

    rng      the generator to draw from
    name     what error messages call p
    as_seed  whether to return a `Draw`, which stores only a seed, in place of the array

    Raises ValueError and TypeError as `drop` does.
    """
    p = probability(p, name)
    if p == 0:
        return None
    if rng is None:
        raise ValueError(
            f"{name} = {p} needs rng, a numpy.random.Generator to draw from, or keep, a draw "
            "to replay: minimha never draws from global state"
        )
    if not backend.is_generator(rng):
        raise TypeError(
            f"{name} = {p}: rng must be a generator, not {rng!r}: create one with "
            "numpy.random.default_rng(seed); a seed would drop the same entries in every call"
        )
    if as_seed:
        return Draw(int(rng.integers(2**32)), p)
    return backend.bernoulli(rng, shape, 1 - p, like=like)


@operation
@accelerated(exact=True)
def dropout(x: Array, keep: Array, *, p: float) -> tuple[Array, Pullback]:
    """y = keep · x / (1 − p).   dx = keep · dy / (1 − p).   Both are 0 where p = 1.

    x (…), keep boolean, True for the entries to keep, and broadcasting to x; p from 0 to 1, the
    probability with which keep was drawn False, so that for p < 1 the mean of y over all draws is
    x. A dropped entry is 0, even if it was NaN.

    Raises TypeError unless keep is boolean, ValueError for a shape that does not broadcast to x
    and for p outside [0, 1].
    Source: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting"
    (2014), scaled at training time.
    """
    p = probability(p, "p")
    backend.require(backend.is_boolean, keep, "keep")
    xp = namespace(x)
    shape = tuple(x.shape)
    lengths = zip(reversed(keep.shape), reversed(shape), strict=False)
    if keep.ndim > len(shape) or any(n not in (1, m) for n, m in lengths):
        raise ValueError(f"keep {tuple(keep.shape)} must broadcast to x {shape}")

    # The value and the gradient are the same function, of x and of dy.
    def kept(a: Array) -> Array:
        zeros = xp.zeros_like(a)  # (…)
        if p == 1:  # a / (1 − p) would divide by 0
            return zeros
        return xp.where(keep, a / (1 - p), zeros)  # (…)

    def pullback(dy: Array) -> tuple[Array, None]:
        return kept(dy), None

    return kept(x), pullback
