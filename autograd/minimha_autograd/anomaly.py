"""Where a NaN or an infinity first appeared: the work of `detect_anomaly`."""

from __future__ import annotations

import linecache
import math
import os
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from . import backend
from .backend import Array
from .modes import detect_anomaly, in_force
from .pullback import named

_HERE = os.path.dirname(__file__) + os.sep


def calling_lines() -> str:
    """The lines outside the engine that led here, the innermost last, eight at most."""
    frame: FrameType | None = sys._getframe(1)
    lines: list[str] = []
    while frame is not None and len(lines) < 8:
        file = frame.f_code.co_filename
        if not file.startswith(_HERE):
            text = linecache.getline(file, frame.f_lineno, frame.f_globals).strip()
            lines.append(f"  {file}:{frame.f_lineno}, in {frame.f_code.co_name}\n    {text}")
            if frame.f_code.co_name == "<module>":  # a script or a cell; who ran that is no news
                break
        frame = frame.f_back
    return "\n".join(reversed(lines))


def in_values(
    operation: Any, inputs: Sequence[Any], settings: dict[str, Any], value: Any
) -> str | None:
    """The lines that called an operation, within `detect_anomaly`.

    Raises FloatingPointError if a value is NaN, or infinite where all inputs are finite.
    """
    if not in_force(detect_anomaly):
        return None
    lines, name = calling_lines(), operation.__name__
    given = {named(operation, k): x for k, x in enumerate(inputs)} | settings
    for one in value if isinstance(value, tuple) else (value,):
        what, place = _first(one)
        known = {label: _first(x) for label, x in given.items()} if what else {}
        if what == "infinity" and any(kind for kind, _ in known.values()):
            continue
        for label, (kind, there) in known.items():
            if what == kind == "NaN":
                at = f"{label} at {there}" if there else label
                raise FloatingPointError(f"{name} was given a NaN: {at}\ncalled from\n{lines}")
        if what:
            raise FloatingPointError(
                f"{what} first appeared in {name}, at {place}\ncalled from\n{lines}"
            )
    return lines


def in_gradient(node: Any, place: int, dx: Array) -> None:
    """Raise FloatingPointError if a gradient that a pullback returned is NaN or infinite."""
    what, where = _first(dx)
    if what:
        lines = node.where or "  (it was called outside detect_anomaly)"
        raise FloatingPointError(
            f"{what} first appeared in the backward of {node.operation.__name__}, in the gradient "
            f"of {named(node.operation, place)} at {where}\ncalled from\n{lines}"
        )


def in_sum(node: Any, dy: Array) -> None:
    """Raise FloatingPointError if the whole gradient of a node is NaN or infinite: by addition, by
    a hook, or because backward() was given it."""
    what, where = _first(dy)
    if what:
        of = f"the value of {node.operation.__name__}" if node.operation else "a leaf"
        lines = f"\ncalled from\n{node.where}" if node.where else ""
        raise FloatingPointError(f"{what} in the whole gradient of {of}, at {where}{lines}")


def _first(x: Any) -> tuple[str, tuple[int, ...]]:
    """What is not finite in x, a NaN before an infinity, and where it comes first."""
    if isinstance(x, float):
        return "NaN" if math.isnan(x) else "infinity" if math.isinf(x) else "", ()
    if backend.is_floating(x) or backend.is_complex(x):
        xp = backend.namespace(x)
        for what, test in (("NaN", xp.isnan), ("infinity", xp.isinf)):
            places = backend.to_numpy(test(x))
            if places.any():
                return what, tuple(int(k[0]) for k in places.nonzero()) if places.ndim else ()
    return "", ()
