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

from .calls import Call, Raised

FILE = Path(__file__).parents[1] / "tasks" / "results.json"
"""Where a release keeps the results; the teacher's copy has no such file."""

Calls = list[dict[str, Any]]
"""The calls of one function: what each passed to `tap`, and its result or error."""


LARGE = 1000
"""The most entries of an array that a release keeps."""


@dataclass(frozen=True)
class Sketch:
    """What a release keeps of a large array: its shape, its dtype, and its products with four
    random arrays. Another array of this shape with the same products is the same array."""

    shape: tuple[int, ...]
    dtype: np.dtype
    products: np.ndarray

    @staticmethod
    def of(x: np.ndarray) -> Sketch:
        """The sketch of an array."""
        random = np.random.default_rng(0).standard_normal((4, x.size))
        return Sketch(x.shape, x.dtype, random @ x.ravel())


def _kept(x: Any) -> Any:
    """The same with sketches in place of large arrays, and None in place of functions."""
    if isinstance(x, np.ndarray) and x.size > LARGE:
        return Sketch.of(x)
    if isinstance(x, dict):
        return {key: _kept(y) for key, y in x.items()}
    return None if callable(x) else x


def stored(call: Call) -> dict[str, Any]:
    """What a release keeps of a call."""
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
    """The function whose calls were recorded: it returns the same results in the same order."""
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
"""The calls of solutions, by the task and the check that make them and by the solution's name."""


@functools.cache
def results() -> Results:
    """The results in a release; empty in the teacher's copy, which has the solutions."""
    return unpacked(FILE.read_bytes()) if FILE.exists() else {}


def packed(results: Results) -> bytes:
    """The results as JSON."""

    def item(x: Any) -> Any:
        match x:
            case np.ndarray() | np.generic():
                data = base64.b64encode(np.asarray(x).tobytes()).decode()
                return {"dtype": x.dtype.str, "shape": x.shape, "data": data}
            case Sketch():
                return {"sketch": [item(part) for part in (x.shape, x.dtype.str, x.products)]}
            case tuple():
                return {"tuple": [item(part) for part in x]}
            case list():
                return [item(part) for part in x]
            case dict():
                return {"dict": [[item(key), item(part)] for key, part in x.items()]}
        return x

    return json.dumps(item(results)).encode()


def unpacked(data: bytes) -> Results:
    """The results that were packed."""

    def value(item: Any) -> Any:
        match item:
            case {"dtype": dtype, "shape": shape, "data": text}:
                return np.frombuffer(bytearray(base64.b64decode(text)), dtype).reshape(shape)[()]
            case {"sketch": parts}:
                shape, dtype, products = map(value, parts)
                return Sketch(shape, np.dtype(dtype), products)
            case {"tuple": parts}:
                return tuple(map(value, parts))
            case {"dict": pairs}:
                return {value(key): value(part) for key, part in pairs}
            case list():
                return [value(part) for part in item]
        return item

    found: Results = value(json.loads(data))
    return found
