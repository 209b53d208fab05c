"""What a student reads about an error: the line of their file, and the values it worked with."""

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
"""At most so many variables of a line are shown with their values."""


def file_of(function: Callable[..., Any]) -> str | None:
    """The file that a function was defined in."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code and str(code.co_filename)


def error_message(error: BaseException, file: str | None) -> str:
    """The message for a student: a check's own words, or their own error with its line."""
    innermost = traceback.extract_tb(error.__traceback__)[-1].filename
    if isinstance(error, AssertionError) and innermost != file:
        return str(error)
    return error_with_line(error, file)


def error_with_line(error: BaseException, file: str | None) -> str:
    """The error, the innermost line of this file that led to it, and that line's variables.

    If that line is in a helper, the line of the outer function that called it follows.
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
    """The innermost line of this file that led to an error, "line 14: …", or ""."""
    places = _places(error, file)
    return f"line {places[-1][1].lineno}: {places[-1][1].line}" if places else ""


def _places(
    error: BaseException, file: str | None
) -> list[tuple[types.FrameType, traceback.FrameSummary]]:
    """The frames of this file that led to an error, outermost first."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    pairs = zip(frames, traceback.extract_tb(error.__traceback__), strict=True)
    return [(frame, summary) for frame, summary in pairs if summary.filename == file]


def _values(frame: types.FrameType, line: str) -> list[str]:
    """The variables in a line when it failed: "x has shape (4, 6)"."""
    names = dict.fromkeys(re.findall(r"(?<![\w.])[^\W\d]\w*", line))
    known = {name: frame.f_locals[name] for name in names if name in frame.f_locals}
    facts = [f"{name} {fact}" for name, x in known.items() if (fact := _fact(x))]
    return facts[:NAMES]


def _fact(x: Any) -> str:
    """A short description of a value: an array by its shape, a long value by its type."""
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


def arguments_watched(function: Callable[..., Any], changed: set[str]) -> Callable[..., Any]:
    """The same function, which adds to `changed` the arguments that a call modifies in place."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []

    @functools.wraps(function)
    def call(*arguments: Any, **settings: Any) -> Any:
        before = [_fingerprint(x) for x in arguments]
        try:
            return function(*arguments, **settings)
        finally:
            places = [k for k, x in enumerate(arguments) if _fingerprint(x) != before[k]]
            changed.update(names[k] if k < len(names) else f"argument {k + 1}" for k in places)

    return call


def _fingerprint(x: Any) -> Any:
    """What differs once an array, or one in lists and dictionaries, is modified in place."""
    if type(x) is np.ndarray:
        return x.shape, x.tobytes()
    if type(x) is list:
        return [_fingerprint(y) for y in x]
    return {key: _fingerprint(y) for key, y in x.items()} if type(x) is dict else id(x)
