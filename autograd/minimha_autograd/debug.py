"""Checks of values and gradients inside `detect_anomaly`: where did a NaN or an infinity come
from?"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from . import backend

_HERE = os.path.dirname(__file__) + os.sep


def calling_lines() -> str:
    """The lines of code outside `minimha_autograd` that led to this call, as a traceback shows
    them: at most eight, the innermost last, none from outside the script or notebook cell."""
    import traceback

    frames = [f for f in traceback.extract_stack() if not f.filename.startswith(_HERE)]

    # A frame called "<module>" is a script or a notebook cell: its callers do not matter.
    modules = [k for k, frame in enumerate(frames) if frame.name == "<module>"]
    start = max([0, len(frames) - 8, *modules])
    lines = traceback.format_list(frames[start:])
    return "".join(lines).rstrip()


def check_values(name: str, arguments: dict[str, Any], values: Sequence[Any]) -> None:
    """Raise FloatingPointError if a value of the operation `name` contains a NaN, or an infinity
    though all arguments are finite."""
    for what, place in map(_first_not_finite, values):
        if not what:
            continue

        # A NaN that came in with an argument was made by an earlier operation.
        before = {label: _first_not_finite(x) for label, x in arguments.items()}
        for label, (kind, at) in before.items():
            if what == kind == "NaN":
                raise _anomaly(f"{name} received a NaN: {label}{at}", calling_lines())

        # An infinity may be right if an argument has one, as in exp(inf).
        if what == "NaN" or not any(kind for kind, _ in before.values()):
            raise _anomaly(f"{what} first appeared in {name}{place}", calling_lines())


def check_gradient(gradient: Any, where: str, lines: str) -> None:
    """Raise FloatingPointError if a gradient contains a NaN or an infinity. `where` says in words
    which gradient it is; `lines` are the lines of code that called the operation."""
    what, place = _first_not_finite(gradient)
    if what:
        raise _anomaly(f"{what} {where}{place}", lines or "  (a line outside detect_anomaly)")


def _first_not_finite(x: Any) -> tuple[str, str]:
    """What x contains, "NaN" or else "infinity", and where the first one is, such as " at (2, 5)",
    or "" for a Python number. Both texts are empty if x is finite."""
    if isinstance(x, float):
        if math.isnan(x):
            return "NaN", ""
        if math.isinf(x):
            return "infinity", ""
        return "", ""
    if not (backend.is_floating(x) or backend.is_complex(x)):
        return "", ""

    xp = backend.namespace(x)
    for what, test in (("NaN", xp.isnan), ("infinity", xp.isinf)):
        places = backend.to_numpy(test(x))  # booleans of the shape of x
        if places.any():
            first: tuple[int, ...] = ()
            if places.ndim:
                first = tuple(int(indices[0]) for indices in places.nonzero())  # one for each axis
            return what, f" at {first}"
    return "", ""


def _anomaly(text: str, lines: str) -> FloatingPointError:
    return FloatingPointError(f"{text}\ncalled from\n{lines}")
