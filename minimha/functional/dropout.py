"""Dropout: entries set to zero at random, the others enlarged so that the mean stays."""

from __future__ import annotations

from typing import Any

from minimha_autograd import Pullback, array_of, backend, operation
from minimha_autograd.backend import Array, namespace

from .acceleration import accelerated
from .checks import check_probability


def drop(x: Any, p: float, *, rng: backend.Generator | None = None, keep: Any = None) -> Any:
    """Drop each entry of x with probability p: `dropout` with keep drawn here, or a draw replayed.

    p     from 0 to 1; without a keep, 0 returns x itself and draws nothing
    rng   the generator to draw from. A draw is made on the host, of the shape of x, so that a seed
          gives the same for every library
    keep  a draw to replay: boolean, broadcasts to x; rng is then left alone. One is made by
          `backend.bernoulli(rng, x.shape, 1 - p, like=x)`

    Raises ValueError for p outside [0, 1] and for p > 0 without rng and keep, TypeError for an rng
    that is no generator: a seed would drop the same entries in every call.
    """
    like = array_of(x)
    if not backend.is_array(like):
        raise TypeError(f"drop: x must be an array or a Tensor, not {type(x).__name__}")
    if keep is None:
        keep = draw(p, rng, tuple(like.shape), like=like, name="drop: p")
    return x if keep is None else dropout(x, keep, p=p)


def draw(
    p: float, rng: backend.Generator | None, shape: tuple[int, ...], *, like: Array, name: str
) -> Array | None:
    """What dropout with probability p keeps of an array; None, and nothing drawn, for p = 0.

    Raises as `drop` does; name is that of p in the messages.
    """
    check_probability(p, name)
    if p == 0:
        return None
    if rng is None:
        raise ValueError(
            f"{name} = {p} needs rng, a numpy.random.Generator to draw from, or keep, a draw "
            "to replay: nothing is drawn from global state"
        )
    if not backend.is_generator(rng):
        raise TypeError(
            f"{name} = {p}: rng must be a generator, not {rng!r}: make one, once, by "
            "numpy.random.default_rng(seed); a seed would drop the same entries in every call"
        )
    return backend.bernoulli(rng, shape, 1 - p, like=like)


@operation
@accelerated
def dropout(x: Array, keep: Array, *, p: float) -> tuple[Array, Pullback]:
    """y = keep · x / (1 − p).   dx = keep · dy / (1 − p).   Both are 0 where p = 1.

    x (…), keep boolean and broadcasting to x, p from 0 to 1: the probability with which keep was
    drawn False, so that over all draws the mean of y is x. What is dropped is 0, a NaN too.

    Raises TypeError unless keep is boolean, ValueError for a shape that does not broadcast to x
    and for p outside [0, 1].
    Source: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting"
    (2014), scaled at training time.
    """
    check_probability(p, "p")
    backend.require(backend.is_boolean, keep, "keep")
    xp, shape = namespace(x), tuple(x.shape)
    lengths = zip(reversed(keep.shape), reversed(shape), strict=False)
    if keep.ndim > len(shape) or any(n not in (1, m) for n, m in lengths):
        raise ValueError(f"keep {tuple(keep.shape)} must broadcast to x {shape}")

    def kept(a: Array) -> Array:
        zero = xp.zeros_like(a)
        return zero if p == 1 else xp.where(keep, a / (1 - p), zero)

    return kept(x), lambda dy: (kept(dy), None)
