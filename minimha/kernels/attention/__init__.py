"""Attention by compiled kernels: from one fused pass over the scores to products in registers.

If a kernel does not support the arguments, or a result is not finite, the reference computes
instead. The reference selects the visible pairs, while kernels multiply hidden pairs by 0, which
does not remove a NaN.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from minimha_autograd import Pullback, backend, unbroadcast
from minimha_autograd.backend import Array

from ...attention import Arguments, attention, attention_operation, register
from .. import unavailable
from . import fused, tiled
from .layout import KernelArguments

_FLOATS = tuple(map(np.dtype, ("float16", "float32", "float64")))
_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


def _obstacle(x: Arguments) -> str | None:  # noqa: PLR0911  one reason each
    """The reason why no kernel can compute these arguments, or None."""
    arrays = [a for a in x[:5] if a is not None]
    if any(type(a) is not np.ndarray for a in arrays):
        return "the arrays are not NumPy arrays"
    if x.query.dtype not in _FLOATS:
        return f"kernels do not support {x.query.dtype}"
    if any(backend.is_array(a) or isinstance(a, complex) for a in (x.scale, x.softcap)):
        return "scale or softcap is an array, or complex"
    if x.softcap is not None and not x.softcap > _SMALLEST:
        return "softcap is too close to 0, which kernels take for no softcap"
    if any(a.dtype != x.query.dtype for a in arrays):  # complex
        return "the arrays have different dtypes"
    if not (math.prod(x.query.shape) and math.prod(x.value.shape)):
        return "an array is empty"
    return unavailable()


def _slow_registers() -> str | None:
    """The reason why products in registers are not fast on this CPU, or None."""
    from ..cpu import microkernel

    return microkernel.no_vectors()


def _register(name: str, module: ModuleType, doc: str, *, in_registers: bool = False) -> None:
    """Register an implementation of attention by the kernels of a module."""

    def obstacle(x: Arguments, auto: bool) -> str | None:
        why = _obstacle(x) or (None if in_registers else module.obstacle(x))
        return _slow_registers() if why is None and auto and in_registers else why

    def by_kernels(
        x: Arguments, wanted: tuple[bool, ...]
    ) -> tuple[tuple[Array, Array | None], Pullback]:
        result = None
        if obstacle(x, auto=False) is None:
            laid_out = KernelArguments.of(x, in_registers)
            with np.errstate(all="ignore"):  # the reference warns if the pair is visible
                result = module.forward(laid_out)
        if result is None:
            return _reference(x, wanted)
        out, saved = result
        weights: Array | None = None
        through_weights: Any = None
        if x.return_weights:
            (_, weights), through_weights = _reference(x, wanted)

        def pullback(dout: Array | None, dweights: Array | None) -> tuple[Array | None, ...]:
            gradients: Any = None
            if type(dout) is np.ndarray and (dout.shape, dout.dtype) == (out.shape, out.dtype):
                with np.errstate(all="ignore"):
                    gradients = module.backward(laid_out, out, saved, dout, wanted)
            if gradients is None and dout is not None:
                gradients = _reference(x, wanted)[1](dout, None)
            if dweights is None:
                return gradients
            others = through_weights(None, dweights)
            return others if gradients is None else tuple(map(_sum, gradients, others))

        return (out, weights), pullback

    by_kernels.__name__ = by_kernels.__qualname__ = name
    by_kernels.__doc__ = f"""{doc}

    Arguments, values and pullback are those of `attention`, which also computes the weights if they
    are asked for.
    """
    register(name, attention_operation(by_kernels), obstacle)


def _reference(x: Arguments, wanted: tuple[bool, ...]) -> tuple[tuple[Array, Array], Pullback]:
    return attention.with_pullback(*x._replace(return_weights=True), wanted=wanted)


def _sum(x: Array | None, y: Array | None) -> Array | None:
    """x + y, where y has the shape of an argument, and x may have the shape it broadcasts to."""
    return x if y is None else y if x is None else unbroadcast(x, y.shape) + y


_register(
    "fused", fused, "`attention` with scale, bias, mask and softmax in one pass over the scores."
)
_register(
    "tiled", tiled, "`attention` in tiles that multiply by BLAS: see `kernels.cpu.attention_tiles`."
)
_register(
    "microkernel",
    tiled,
    "`attention` in tiles that multiply in the registers: see `kernels.cpu.microkernel`.",
    in_registers=True,
)
