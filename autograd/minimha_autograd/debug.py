"""Aids for finding mistakes: have saved arrays changed, and where did a NaN come from?"""

from __future__ import annotations

import functools
import math
import os
import traceback
from collections.abc import Sequence
from types import CellType, EllipsisType, FunctionType, ModuleType
from typing import Any

from . import backend

_WITHOUT_ARRAYS = frozenset(
    {bool, int, float, complex, str, slice, type, type(None), EllipsisType, ModuleType}
)
_HERE = os.path.dirname(__file__) + os.sep


def find_arrays(holder: Any, found: list[Any], depth: int = 0) -> None:
    """Append to found the arrays that a pullback saved.

    Looks into closures and defaults of functions, tuples, lists, dictionaries, partials, methods
    and the attributes of callable objects.
    """
    kind = type(holder)
    parts: Any = ()
    if kind is FunctionType:
        try:
            parts = [cell.cell_contents for cell in holder.__closure__ or ()]
        except ValueError:  # this name was never assigned; others may be
            parts = [cell.cell_contents for cell in holder.__closure__ if cell != CellType()]
        if holder.__defaults__ or holder.__kwdefaults__:
            parts += [holder.__defaults__, holder.__kwdefaults__]
    elif kind is tuple or kind is list:
        parts = holder
    elif kind is dict:
        parts = holder.values()
    elif kind is functools.partial:
        parts = (holder.func, holder.args, holder.keywords)
    elif backend.is_array(holder):
        found.append(holder)
    elif callable(holder):
        parts = (getattr(holder, "__self__", None), getattr(holder, "__dict__", None))
    for part in parts:
        kind = type(part)
        if kind in backend.known:
            found.append(part)
        elif kind is tuple and _WITHOUT_ARRAYS.issuperset(map(type, part)):
            continue  # a shape, for speed
        elif kind not in _WITHOUT_ARRAYS and depth < 8:  # it may close over itself
            find_arrays(part, found, depth + 1)


def checksum(arrays: Sequence[Any], whole: bool = False) -> int:
    """A number that changes when one of the arrays changes.

    Covers every byte of arrays up to 1 KiB and 16 entries of larger ones, so a change of a few
    entries can go unseen. Arrays on a device do not count, since reading them would synchronise
    it. With whole=True every byte of every array counts.
    """
    total = 0
    for x in arrays:
        if whole or backend.on_host(x):
            entries = backend.to_numpy(x) if whole else backend.sample(x)
            total = 31 * total + hash(entries.tobytes())
    return total


def calling_lines() -> str:
    """The lines outside the engine that led here, the innermost last, at most eight."""
    frames = [f for f in traceback.extract_stack() if not f.filename.startswith(_HERE)]
    modules = [k for k, frame in enumerate(frames) if frame.name == "<module>"]
    start = max([len(frames) - 8, *modules])  # a script or a cell: its callers do not matter
    return "".join(traceback.format_list(frames[max(start, 0) :])).rstrip()


def check_values(name: str, arguments: dict[str, Any], values: Sequence[Any]) -> None:
    """Raise FloatingPointError if a value is NaN, or infinite though all arguments are finite."""
    for what, place in map(_first_not_finite, values):
        if not what:
            continue
        before = {label: _first_not_finite(x) for label, x in arguments.items()}
        for label, (kind, at) in before.items():
            if what == kind == "NaN":
                raise _anomaly(f"{name} received a NaN: {label}{at}", calling_lines())
        if what == "NaN" or not any(kind for kind, _ in before.values()):
            raise _anomaly(f"{what} first appeared in {name}{place}", calling_lines())


def check_gradient(gradient: Any, where: str, lines: str) -> None:
    """Raise FloatingPointError if a gradient is NaN or infinite; `lines` called the operation."""
    what, place = _first_not_finite(gradient)
    if what:
        raise _anomaly(f"{what} {where}{place}", lines or "  (a line outside detect_anomaly)")


def _first_not_finite(x: Any) -> tuple[str, str]:
    """A NaN or else an infinity in x, and the place of the first one."""
    if isinstance(x, float):
        return "NaN" if math.isnan(x) else "infinity" if math.isinf(x) else "", ""
    if backend.is_floating(x) or backend.is_complex(x):
        xp = backend.namespace(x)
        for what, test in (("NaN", xp.isnan), ("infinity", xp.isinf)):
            places = backend.to_numpy(test(x))
            if places.any():
                first = tuple(int(k[0]) for k in places.nonzero()) if places.ndim else ()
                return what, f" at {first}"
    return "", ""


def _anomaly(text: str, lines: str) -> FloatingPointError:
    return FloatingPointError(f"{text}\ncalled from\n{lines}")
