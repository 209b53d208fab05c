"""What a pullback saved must be the same when it is called: a checksum tells.

The cheap form, always on, sees the whole of arrays up to 1 KiB and 64 entries or so of larger ones,
on the host only. A change of few entries of a large array can escape it. Within `detect_anomaly`
every byte counts, on devices too, of what was recorded there.

Write-protecting the arrays would not do: a view made earlier still writes, and one made later stays
locked.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from . import backend
from .backend import SMALL, HostArray, checksum
from .pullback import Fitted

_ATOMS = frozenset({bool, float, int, slice, str, type, type(None), type(...), ModuleType})


def checksums(pull: Any, whole: bool = False, depth: int = 0) -> int:
    """A number that changes when one of the arrays does that a plain pullback closes over."""
    total: int = 0
    cells: Any = pull.__closure__ or ()
    try:
        if len(cells) == 1 and type(x := cells[0].cell_contents) is HostArray and x.nbytes <= SMALL:
            return hash(x.tobytes())  # the most frequent case, soon done
    except ValueError:  # named, and never assigned
        return 0
    for cell in cells:
        try:
            x = cell.cell_contents
        except ValueError:  # named, and never assigned
            continue
        kind = type(x)
        if kind is HostArray:
            if x.nbytes > SMALL:
                total = total * 31 + checksum(x, whole)
            else:
                total = total * 31 + hash(x.tobytes())
        elif kind not in _ATOMS and not (kind is tuple and _ATOMS.issuperset(map(type, x))):
            inner = x.pull if kind is Fitted else x
            if type(inner) is not FunctionType or inner.__defaults__ or inner.__kwdefaults__:
                total = total * 31 + _combined(x, whole)
            elif inner.__closure__:  # deeper down it may close over itself
                nested = checksums(inner, whole, depth + 1) if depth < 4 else _combined(x, whole)
                total = total * 31 + nested
    return total


def _combined(x: Any, whole: bool) -> int:
    """The same of anything that holds arrays."""
    return functools.reduce(
        lambda total, part: total * 31 + backend.checksum(part[1], whole), _arrays(x, "", set()), 0
    )


def _arrays(x: Any, name: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """The arrays in x with their names: in containers, and in what functions close over."""
    if type(x) in _ATOMS:
        return
    if backend.is_array(x):
        yield name, x
    elif id(x) not in seen:
        seen.add(id(x))
        for label, part in _parts(x):
            yield from _arrays(part, label or name, seen)


def _parts(x: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(x, tuple | list):
        yield from (("", part) for part in x)
    elif isinstance(x, dict):
        yield from (("", part) for part in x.values())
    elif isinstance(x, Fitted):
        yield "", x.pull
    elif isinstance(x, functools.partial):
        yield from (("", part) for part in (x.func, *x.args, *x.keywords.values()))
    elif isinstance(x, FunctionType):
        yield from (("", part) for part in (*(x.__defaults__ or ()), x.__kwdefaults__))
        for label, cell in zip(x.__code__.co_freevars, x.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # named, and never assigned
                part = cell.cell_contents
                yield "" if callable(part) else label, part
    elif callable(x) and not isinstance(x, type):  # a method, or an object that can be called
        yield "", getattr(x, "__self__", None)
        yield from getattr(x, "__dict__", {}).items()
        for label in getattr(type(x), "__slots__", ()):
            yield label, getattr(x, label, None)


def refuse_changed(node: Any) -> None:
    """Raise RuntimeError that names the arrays which a node saved."""
    names = dict.fromkeys(name or "an array" for name, _ in _arrays(node.pull, "", set()))
    raise RuntimeError(
        f"{node.operation.__name__} saved {', '.join(names)} for the backward pass, and "
        f"{'it' if len(names) == 1 else 'one of them'} was changed in place after the forward "
        "pass: call backward() before the change, or change a copy"
    )
