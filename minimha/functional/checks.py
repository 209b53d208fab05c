"""Checks of single arguments, with errors that name them.

A number may be given as an array without axes, even on a device, for which the host then waits. The
checks return it as a Python number: use what they return, not the argument.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from minimha_autograd import backend


def integer(n: Any, name: str, least: int | None = None) -> int:
    """n as a Python integer.

    Raises TypeError if n is not an integer, ValueError if it is less than `least`. The messages
    call it `name`.
    """
    try:
        n = backend.index(n)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {n!r}") from None
    if least is not None and n < least:
        raise ValueError(f"{name} = {n} must be at least {least}")
    return n


def at_least_0(x: Any, name: str) -> float:
    """x as a Python number.

    Raises TypeError if x is not a number, ValueError if it is negative, infinite or NaN. The
    messages call it `name`.
    """
    x = backend.setting(x)
    if not isinstance(x, Real) or isinstance(x, bool):
        raise TypeError(f"{name} must be a number of at least 0, not {x!r}")
    if not 0.0 <= float(x) < math.inf:
        raise ValueError(f"{name} = {x} must be at least 0 and finite")
    return x  # type: ignore[return-value]


def probability(p: Any, name: str) -> float:
    """p as a Python number.

    Raises TypeError if p is not a number, ValueError if it is not in [0, 1]. The messages call it
    `name`.
    """
    p = backend.setting(p)
    if not isinstance(p, Real) or isinstance(p, bool):
        raise TypeError(f"{name} must be a number from 0 to 1, not a {type(p).__name__}")
    if not 0.0 <= float(p) <= 1.0:
        raise ValueError(f"{name} must be a probability, from 0 to 1, not {p}")
    return p  # type: ignore[return-value]
