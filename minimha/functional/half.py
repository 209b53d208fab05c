"""Numbers of 16 bits are computed with in 32."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from minimha_autograd import backend
from minimha_autograd.backend import namespace


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operation on arrays that takes float16, computes in float32, and gives float16 back:
    values, cotangents and gradients alike."""

    @functools.wraps(function)
    def widened(*arrays: Any, **settings: Any) -> Any:
        half = next((x for x in arrays if _is_half(x)), None)
        if half is None:
            return function(*arrays, **settings)
        value, pull = function(*map(_widen, arrays), **settings)

        def narrow(results: Any) -> Any:
            xp = namespace(half)
            if isinstance(results, tuple):
                return tuple(map(narrow, results))
            floats = backend.is_floating(results)
            return xp.astype(results, half.dtype) if floats else results

        return narrow(value), lambda *cotangents: narrow(pull(*map(_widen, cotangents)))

    return widened


def _is_half(x: Any) -> bool:
    return backend.is_array(x) and backend.is_half(x)


def _widen(x: Any) -> Any:
    return namespace(x).astype(x, namespace(x).float32) if _is_half(x) else x
