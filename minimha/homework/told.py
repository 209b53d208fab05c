"""What a student is told of an error: where in their file, and with what it was called there."""

from __future__ import annotations

import functools
import inspect
import re
import traceback
import types
from collections.abc import Callable
from typing import Any

import numpy as np

NAMES = 6
"""The most variables of a line whose values are told."""


def file_of(function: Callable[..., Any]) -> str | None:
    """The file of a function, as its code says it."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code and str(code.co_filename)


def told(error: BaseException, file: str | None) -> str:
    """What a student is told of an error: of a check, what it says; of theirs, the line as well."""
    innermost = traceback.extract_tb(error.__traceback__)[-1].filename
    if isinstance(error, AssertionError) and innermost != file:
        return str(error)
    return with_line(error, file)


def with_line(error: BaseException, file: str | None) -> str:
    """The error, the last line of this file on the way to it, and what its variables were.

    Where that line is not in the function that was called first, the line there as well.
    """
    lines = [f"{type(error).__name__}: {error}".rstrip(": ")]
    places = _places(error, file)
    if places:
        frame, last = places[-1]
        lines.append(f"  in {last.name}, line {last.lineno}: {last.line}")
        if values := _values(frame, last.line or ""):
            lines.append(f"  where {', '.join(values)}")
        first_frame, first = places[0]
        if first_frame is not frame:
            lines.append(f"  called in {first.name}, line {first.lineno}: {first.line}")
    return "\n".join(lines)


def line_of(error: BaseException, file: str | None) -> str:
    """The last line of this file on the way to an error, "line 14: …"; "" where there is none."""
    places = _places(error, file)
    return f"line {places[-1][1].lineno}: {places[-1][1].line}" if places else ""


def _places(
    error: BaseException, file: str | None
) -> list[tuple[types.FrameType, traceback.FrameSummary]]:
    """The frames of this file on the way to an error, the outermost first."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    pairs = zip(frames, traceback.extract_tb(error.__traceback__), strict=True)
    return [(frame, summary) for frame, summary in pairs if summary.filename == file]


def _values(frame: types.FrameType, line: str) -> list[str]:
    """What the variables in a line were when it failed: "x has shape (4, 6)"."""
    names = dict.fromkeys(re.findall(r"(?<![\w.])[^\W\d]\w*", line))
    known = {name: frame.f_locals[name] for name in names if name in frame.f_locals}
    facts = [f"{name} {fact}" for name, x in known.items() if (fact := _fact(x))]
    return facts[:NAMES]


def _fact(x: Any) -> str:
    """What is worth telling of a value: of an array its shape, of what is long the kind."""
    if isinstance(x, np.ndarray):
        return f"has shape {x.shape}{'' if x.dtype == float else f', {x.dtype}'}"
    if callable(x) or isinstance(x, types.ModuleType):
        return ""
    kind = type(x).__name__
    short = x.item() if isinstance(x, np.generic) else x
    return f"is {short!r}" if _short(short) else f"is a{'n' * (kind[0] in 'aeiou')} {kind}"


def _short(x: Any) -> bool:
    if type(x) in (tuple, list):
        return len(x) < 8 and all(type(y) is int and _short(y) for y in x)
    if type(x) is int:
        return abs(x) < 1e15
    return len(x) < 30 if type(x) is str else type(x) in (type(None), bool, float, complex)


def watched(function: Callable[..., Any], changed: set[str]) -> Callable[..., Any]:
    """The same function; the names of arguments that a call changes in place go into changed."""
    names = _names(function)

    @functools.wraps(function)
    def call(*arguments: Any, **settings: Any) -> Any:
        before = [_kept(x) for x in arguments]
        try:
            return function(*arguments, **settings)
        finally:
            places = (k for k, x in enumerate(arguments) if not _as_kept(x, before[k]))
            changed.update(names[k] if k < len(names) else f"argument {k + 1}" for k in places)

    return call


def _names(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _kept(x: Any) -> Any:
    """A copy of what can be changed in place."""
    if type(x) is np.ndarray:
        return x.copy()
    if type(x) is list:
        return [_kept(y) for y in x]
    return {key: _kept(y) for key, y in x.items()} if type(x) is dict else x


def _as_kept(x: Any, before: Any) -> bool:
    if type(x) is np.ndarray:
        return x.shape == before.shape and x.tobytes() == before.tobytes()
    if type(x) in (list, dict):
        if len(x) != len(before):
            return False
        keys = range(len(x)) if type(x) is list else before
        return all((type(x) is list or k in x) and _as_kept(x[k], before[k]) for k in keys)
    return x is before
