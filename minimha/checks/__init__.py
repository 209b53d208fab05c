"""Checks of single arguments, with errors that name them."""

from __future__ import annotations

import operator
from typing import Any


def integer(n: Any, name: str, least: int | None = None) -> int:
    """n as a Python integer. Raises TypeError if it is not one, ValueError if it is below least."""
    try:
        n = operator.index(n)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {n!r}") from None
    if least is not None and n < least:
        raise ValueError(f"{name} = {n} must be at least {least}")
    return n
