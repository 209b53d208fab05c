"""Solutions without their code: the results of their calls, recorded once and replayed.

A check compares a student's function with the solution, which students must not have. A check draws
its inputs from a fixed seed, so they are always the same. A release therefore contains, for each
check, what the solution returned in its first call, its second call, and so on. Of large arrays it
contains only sketches.
"""

from __future__ import annotations

import base64
import builtins
import functools
import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import nested
from .calls import Call, Raised

FILE = Path(__file__).parents[1] / "tasks" / "results.json"
"""Where a release keeps the results; the teacher's copy has no such file."""

Calls = list[dict[str, Any]]
"""The recorded calls of one function: for each, what it passed to `tap`, and its result or
error."""


LARGE = 1000
"""The largest number of entries that an array may have for a release to store it whole."""


@dataclass(frozen=True)
class Sketch:
    """A summary of a large array, which a release, the homework without its solutions, stores in
    its place: its shape, its dtype, and its products with four random arrays. Another array of this
    shape with the same products is taken for the same array."""

    shape: tuple[int, ...]
    dtype: np.dtype
    products: np.ndarray

    @staticmethod
    def of(x: np.ndarray) -> Sketch:
        """Return the sketch of an array."""
        # The same random arrays each time, so that sketches can be compared.
        random = np.random.default_rng(0).standard_normal((4, x.size))
        return Sketch(x.shape, x.dtype, random @ x.ravel())


def _kept(x: Any) -> Any:
    """Return a result as a release stores it: with sketches in place of large arrays, and None in
    place of functions."""

    def leaf(x: Any) -> Any:
        if isinstance(x, np.ndarray) and x.size > LARGE:
            return Sketch.of(x)
        return None if callable(x) else x

    return nested.mapped(leaf, x)


def stored(call: Call) -> dict[str, Any]:
    """Convert a recorded call to the dictionary that a release stores."""
    entry: dict[str, Any] = {
        "tapped": [(name, _kept(x)) for name, x, _ in call.tapped],
        "pullbacks": {k: list(map(stored, calls)) for k, calls in call.pulled.items()},
    }
    if isinstance(call.result, Raised):
        return entry | {"error": [call.result.kind, call.result.text]}
    single = not isinstance(call.result, tuple)
    parts = [call.result] if single else call.result
    return entry | {"single": single, "parts": list(map(_kept, parts))}


def replaying(calls: Calls) -> Callable[..., Any]:
    """Return a function that replays the recorded calls, whatever its arguments are: its first call
    returns the result of the first recorded call or raises its error, and so on. Pullbacks among
    the results are such functions, too."""
    rest: Iterator[dict[str, Any]] = iter(calls)

    def call(*_: Any, tap: Any = None, **__: Any) -> Any:
        entry = deepcopy(next(rest))
        for name, x in entry["tapped"] if tap else ():
            tap(name, x)
        if "error" in entry:
            kind, text = entry["error"]
            raise getattr(builtins, kind, Exception)(text)
        parts = entry["parts"]
        for k, pulled in entry["pullbacks"].items():
            parts[k] = replaying(pulled)
        return parts[0] if entry["single"] else tuple(parts)

    return call


Results = dict[str, dict[str, dict[str, Calls]]]
"""The recorded calls of solutions, by the name of the task and of the check that makes the calls,
and by the name of the solution that is called."""


@functools.cache
def results() -> Results:
    """Return the recorded results that a release, the homework without its solutions, contains.
    They are empty in the teacher's copy, which has the solutions."""
    return unpacked(FILE.read_bytes()) if FILE.exists() else {}


def packed(results: Results) -> bytes:
    """Convert the results to JSON."""

    def leaf(x: Any) -> Any:
        match x:
            case np.ndarray() | np.generic():
                data = base64.b64encode(np.asarray(x).tobytes()).decode()
                return ["array", x.dtype.str, list(x.shape), data]
            case Sketch():
                return ["sketch", list(x.shape), x.dtype.str, leaf(x.products)]
            case dict():  # with numbers as keys
                return ["dict", *([key, nested.packed(leaf, part)] for key, part in x.items())]
        return x

    return json.dumps(nested.packed(leaf, results)).encode()


def unpacked(data: bytes) -> Results:
    """Return the results that `packed` converted to JSON."""

    def leaf(item: Any) -> Any:
        match item:
            case ["array", dtype, shape, text]:
                return np.frombuffer(bytearray(base64.b64decode(text)), dtype).reshape(shape)[()]
            case ["sketch", shape, dtype, products]:
                return Sketch(tuple(shape), np.dtype(dtype), leaf(products))
            case ["dict", *pairs]:
                return {key: nested.unpacked(leaf, part) for key, part in pairs}
        return item

    found: Results = nested.unpacked(leaf, json.loads(data))
    return found
