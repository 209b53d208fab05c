"""Attention by compiled kernels, as operations: the ladder from one fused pass to the registers.

Where a kernel cannot serve, and where a result is not finite, the reference answers: it leaves
hidden pairs out by name, and kernels multiply them by 0, which is not enough for NaN.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from minimha_autograd import Pullback, backend, in_float32, operation, unbroadcast
from minimha_autograd.backend import Array

from .. import masks
from ..attention.reference import attention
from . import fused as in_one_pass
from . import tiles as in_tiles
from . import unavailable
from .given import Given

FLOATS = tuple(map(np.dtype, ("float16", "float32", "float64")))
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


def obstacle(query: Array, *others: Any) -> str | None:  # noqa: PLR0911  a reason each
    """Why kernels cannot serve these arguments of `attention`, or None if they can."""
    key, value, bias, sink, scale, softcap = others
    arrays = [x for x in (query, key, value, bias, sink) if x is not None]
    if any(type(x) is not np.ndarray for x in arrays):
        return "the arrays are not NumPy's"
    if query.dtype not in FLOATS:
        return f"nothing is compiled for {query.dtype}"
    if any(backend.is_array(x) or isinstance(x, complex) for x in (scale, softcap)):
        return "scale or softcap is an array, or complex"
    if softcap is not None and not softcap > SMALLEST:
        return "softcap is next to 0, which stands for none"
    if any(x.dtype != query.dtype for x in arrays):
        return "the arrays are of different types"
    if not (math.prod(query.shape) and math.prod(value.shape)):
        return "there is nothing to compute"
    return unavailable()


def fit(query: Array, *others: Any, keep: Array | None) -> bool:
    """Whether the shapes are those of attention: kernels would read what stands behind an array."""
    key, value, bias, sink, _, _ = others
    q, k, v = query.shape, key.shape, value.shape
    if not (1 < len(q) == len(k) and k[:-1] == v[:-1] and q[:-3] == k[:-3] and q[-1] == k[-1]):
        return False
    heads, scores = q[:-2], (*q[:-1], k[-2])
    extras = (bias, scores), (keep, scores), (sink, heads)
    if keep is not None and keep.dtype != bool:
        return False
    return (heads == k[:-2] or q[-3] % k[-3] == 0) and all(
        x is None or masks.broadcasts(x.shape, shape) for x, shape in extras
    )


def no_vectors() -> str | None:
    """Why products in the registers are not fast on this CPU, or None."""
    from .cpu import microkernel

    return microkernel.no_vectors()


def compiled(name: str, how: ModuleType, panels: bool, doc: str) -> Any:
    """`attention` by kernels, as an operation of this name."""

    def by_kernels(
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None = None,
        sink: Array | None = None,
        scale: Array | float | None = None,
        softcap: Array | float | None = None,
        *,
        mask: masks.Mask | Array | None = None,
        keep: Array | None = None,
        p: float = 0.0,
        return_weights: bool = True,
        wanted: tuple[bool, ...],
    ) -> tuple[Any, Pullback]:
        inputs = query, key, value, bias, sink, scale, softcap
        if backend.is_half(query):
            return in_float32(
                this, *inputs, mask=mask, keep=keep, p=p, return_weights=return_weights,
                wanted=wanted,
            )  # fmt: skip
        impossible = obstacle(*inputs) or how.obstacle(sink, softcap, keep, panels)
        if impossible or not fit(*inputs, keep=keep):
            return _reference(inputs, mask, keep, p, return_weights, wanted)
        given = Given.of(inputs, mask, keep, p, panels)
        with np.errstate(all="ignore"):  # the reference warns, of what is not hidden
            made = how.forward(given)
        if made is None:
            return _reference(inputs, mask, keep, p, return_weights, wanted)
        out, saved = made

        def pullback(dout: Array) -> tuple[Array | None, ...]:
            gradients = None
            if type(dout) is np.ndarray and (dout.shape, dout.dtype) == (out.shape, out.dtype):
                with np.errstate(all="ignore"):
                    gradients = how.backward(given, out, saved, dout, wanted)
            if gradients is None:
                return _reference(inputs, mask, keep, p, False, wanted)[1](dout)
            return gradients

        if not return_weights:
            return out, pullback
        (_, weights), through_weights = _reference(inputs, mask, keep, p, True, wanted)

        def both(dout: Array | None, dweights: Array | None) -> tuple[Array | None, ...]:
            if dweights is None:
                return pullback(dout)
            others = through_weights(None, dweights)
            if dout is None:
                return others
            return tuple(map(_total, pullback(dout), others))

        return (out, weights), both

    by_kernels.__name__ = by_kernels.__qualname__ = name
    by_kernels.__doc__ = f"""{doc}

    Arguments, values and pullback are those of `attention`, but mask may be one of `minimha.masks`:
    then its array is not made. The weights are made by `attention` too, for those who ask.
    """
    this = operation(by_kernels)
    return this


def _reference(
    inputs: tuple[Any, ...], mask: Any, keep: Any, p: float, return_weights: bool, wanted: Any
) -> tuple[Any, Pullback]:
    """What `attention` makes of the same."""
    if isinstance(mask, masks.Mask):
        query, key, *_ = inputs
        mask = mask.array((*query.shape[:-1], key.shape[-2]), like=query)
    return attention.with_pullback(
        *inputs, mask=mask, keep=keep, p=p, return_weights=return_weights, wanted=wanted
    )


def _total(x: Array | None, y: Array | None) -> Array | None:
    """x + y, where y has the shape of an argument, and x may have that of what it broadcasts to."""
    return x if y is None else y if x is None else unbroadcast(x, y.shape) + y


WAYS = {"fused": in_one_pass, "tiled": in_tiles, "microkernel": in_tiles}
fused = compiled(
    "fused", in_one_pass, False,
    "`attention` with scale, bias, mask and softmax in one pass over the scores.",
)  # fmt: skip
tiled = compiled(
    "tiled", in_tiles, False,
    "`attention` in tiles, whose products are BLAS's: see `kernels.cpu.attention_tiles`.",
)  # fmt: skip
microkernel = compiled(
    "microkernel", in_tiles, True,
    "`attention` in tiles, whose products stay in the registers: see `kernels.cpu.microkernel`.",
)  # fmt: skip
