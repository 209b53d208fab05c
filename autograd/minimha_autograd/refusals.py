"""Checks of the arguments and values of operations, and the errors that operations raise."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from numbers import Number
from typing import Any

from . import backend
from .backend import Array

_EXPLAINED = (AttributeError, IndexError, OverflowError, RuntimeError, TypeError, ValueError)


def common_dtype(name: str, arrays: Mapping[str, Any], optional: set[str]) -> Any:
    """The dtype that the floating-point arrays among the arguments of an operation share; None if
    there are no such arrays.

    name      the name of the operation, for messages
    arrays    its arguments by name
    optional  the names of those that may be None

    Raises TypeError for arrays of two libraries or of two floating-point dtypes, since nothing is
    converted silently; for an array whose entries are neither numbers nor booleans; for one whose
    entries are floats in the byte order of another machine; and for an argument that is neither an
    array nor a number.
    """
    present = {label: x for label, x in arrays.items() if backend.is_array(x)}
    for label, x in arrays.items():
        if not (label in present or isinstance(x, Number) or (x is None and label in optional)):
            fix = ": make it one first" if isinstance(x, list | tuple) else ""
            raise TypeError(f"{name}: {label} must be an array, not {backend.described(x)}{fix}")
    if not all(backend.has_kind(x, ("bool", "numeric")) for x in present.values()):
        raise TypeError(f"{name}: {_described(present)}: numbers are required")
    for label, x in present.items():
        if not (getattr(x.dtype, "isnative", True) or backend.is_exact(x)):
            what = f"{label} is {backend.described(x)}, in the byte order of another machine"
            raise TypeError(f"{name}: {what}: pass {label}.astype({x.dtype.name!r})")
    floats = [x.dtype for x in present.values() if backend.is_floating(x)]
    if len({*map(backend.namespace, present.values())}) > 1 or len(set(floats)) > 1:
        fix = "convert one, nothing is converted silently"
        raise TypeError(f"{name}: {_described(present)}: {fix}")
    return floats[0] if floats else None


def check_dtype(y: Array, dtype: Any, recorded: bool) -> None:
    """Raise TypeError if y, the value of an operation, is a floating-point array whose dtype is not
    `dtype`, that of the arguments; if dtype is None, y may have any dtype. Also raise TypeError if
    y is complex and the call is `recorded` on the tape."""
    if recorded and backend.is_complex(y):
        raise TypeError("complex values have no gradient: use no_grad()")
    if dtype is not None and y.dtype != dtype and backend.is_floating(y):
        fix = f"convert the other arguments to {dtype}, integers too"
        raise TypeError(f"{dtype} went in and {y.dtype} came out: {fix}")


def explained(
    error: Exception,
    name: str,
    arrays: Mapping[str, Any],
    requirement: Callable[[], str | None] | None,
) -> Exception:
    """An error to raise in place of `error`, which a call of the operation `name` raised. Its
    message has the name, the text that `requirement` returns or, without one, the old message,
    and the shape and dtype of each argument in `arrays`, by name.

    The new error has the class of the old one or, if this class cannot be made from a message
    alone, its nearest base class that can. But if an argument is not an array, an AttributeError
    becomes a TypeError; and if one is an array of another library than NumPy, a RuntimeError
    becomes a ValueError. An error of a class that is not in `_EXPLAINED` is returned unchanged.
    """
    backend.explain_memory(error)
    if not isinstance(error, _EXPLAINED):
        return error
    what = None
    if requirement is not None:
        with contextlib.suppress(Exception):
            what = requirement()
    present = [x for x in arrays.values() if backend.is_array(x)]
    kinds: tuple[type, ...] = type(error).__mro__
    if type(error) is RuntimeError and not all(type(x) is backend.HostArray for x in present):
        kinds = (ValueError,)  # torch's RuntimeError for shapes that do not match
    if isinstance(error, AttributeError) and len(present) < len(arrays):
        kinds, what = (TypeError,), what or "it needs arrays, not numbers"
    text = f"{name}: {what or error}" + (f" ({_described(arrays)})" if arrays else "")
    for kind in kinds:
        with contextlib.suppress(Exception):
            new: Any = kind(text)
            if str(new) == text:
                return new
    return error


def _described(arrays: Mapping[str, Any]) -> str:
    return ", ".join(f"{label} is {backend.described(x)}" for label, x in arrays.items())
