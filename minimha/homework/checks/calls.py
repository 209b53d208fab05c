"""Records the calls of a function: what it was given, what it returned or raised, and what it
passed to `tap`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .error_messages import file_of, line_of, text_of
from .nested import agree, mapped


class Raised(NamedTuple):
    """An error in place of a result: the name of its class, its text, and whether it comes from a
    `raise` in the function's own file rather than from NumPy or Python."""

    kind: str
    text: str
    is_own: bool


@dataclass
class Call:
    """One call of a function: its arguments, and its result or a `Raised`.

    arguments  the positional arguments
    settings   the keyword arguments
    given      the copies of both that the function got, and may have changed
    pulled     if the result is a tuple with functions, as in (value, pullback): the calls of each
               of these functions, by its index in the tuple
    tapped     for each call of the keyword `tap`: the name and the array that the function passed,
               and what `tap` returned, or None if it returned the array itself
    """

    arguments: Any
    settings: dict[str, Any]
    given: tuple[Any, dict[str, Any]]
    result: Any = None
    pulled: dict[int, list[Call]] = field(default_factory=dict)
    tapped: list[tuple[str, Any, Any]] = field(default_factory=list)


def calls_recorded(
    function: Callable[..., Any], calls: list[Call], inside: list[Any] | None = None
) -> Callable[..., Any]:
    """Return a function that does the same as `function`, and appends a record of each call to the
    list; calls of its pullbacks are recorded, too. The function gets copies of arrays, lists and
    dictionaries, so that the caller's own are never changed.

    inside  a list of the calls in progress, shared by several recorded functions: if one of them
            calls another, only the outer call is recorded
    """

    @functools.wraps(function)
    def call(*arguments: Any, **settings: Any) -> Any:
        if inside:
            return function(*arguments, **settings)
        new = Call(copied(arguments), copied(settings), copied((arguments, settings)))
        calls.append(new)

        # The function gets copies of its own, which are compared with the arguments afterwards.
        given, named = new.given
        if settings.get("tap"):
            named = named | {"tap": _heard(settings["tap"], new)}
        if inside is not None:
            inside.append(new)
        try:
            result = function(*given, **named)
        except Exception as error:
            new.result = raised(error, file_of(function))
            raise
        finally:
            if inside is not None:
                inside.pop()
        new.result = copied(result)

        # The calls of a pullback are recorded with the call that returned it.
        parts = list(result) if type(result) is tuple else []
        for k, part in enumerate(parts):
            if callable(part):
                pulled = new.pulled.setdefault(k, [])
                parts[k] = calls_recorded(part, pulled, inside)
        return tuple(parts) if new.pulled else result

    call.unrecorded = function  # type: ignore[attr-defined]
    return call


def unrecorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function from which `calls_recorded` made this one, so that calls of it are not
    recorded; any other function is returned itself. A check uses this for arguments that a solution
    should not be called with, such as serial numbers."""
    found: Callable[..., Any] = getattr(function, "unrecorded", function)
    return found


def _heard(tap: Callable[..., Any], heard: Call) -> Callable[..., Any]:
    def call(name: str, x: Any) -> Any:
        given = copied(x)
        answer = tap(name, x)
        heard.tapped.append((name, given, None if answer is x else copied(answer)))
        return answer

    return call


def raised(error: Exception, file: str | None) -> Raised:
    """Return the record of an error that a function in this file raised. The file is None if the
    function ran in another process; the text of the error then contains the line that raised it."""
    text = text_of(error)
    is_own = ": raise " in f"{line_of(error, file)}{text.partition(chr(10))[2]}"
    return Raised(type(error).__name__, text, is_own)


def changed_in_place(function: Callable[..., Any], calls: list[Call]) -> set[str]:
    """Return the names of the arguments that these calls of a function, or of its pullbacks,
    changed."""
    found = set[str]()
    for call in calls:
        arguments, settings = call.given
        places = [k for k, x in enumerate(call.arguments) if not agree(_unchanged, x, arguments[k])]
        names = _parameters(function) if places else []
        found.update(names[k] if k < len(names) else f"argument {k + 1}" for k in places)
        found.update(
            name for name, x in call.settings.items() if not agree(_unchanged, x, settings[name])
        )
        for k, inner in call.pulled.items():
            found |= changed_in_place(call.result[k], inner)
    return found


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # the function has no signature
        return []


def _unchanged(x: Any, y: Any) -> bool:
    """Whether two arrays are equal bit by bit, such as an array and an earlier copy of it; for
    other values, whether x and y are the same object."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return x.shape == y.shape and x.tobytes() == y.tobytes()
    return x is y


def copied(x: Any) -> Any:
    """Return a copy of x that has its own arrays, lists and dictionaries, so that later changes of
    x do not change the copy."""
    return mapped(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, x)
