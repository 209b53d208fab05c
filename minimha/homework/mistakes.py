"""Naming a mistake: the one with which the solution returns what the student's function returned.

A task lists its usual mistakes as changes of its solution's text. While a check runs, the calls of
the student's function are recorded; if it fails, they are repeated on each changed solution.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .error_messages import file_of, line_of

MOST = 2000
"""The most calls of one function to record: a gradient check makes several hundred."""


class Mistake(NamedTuple):
    """A usual mistake: `new` in place of `old` in the solution makes it, and `text` names it."""

    old: str
    new: str
    text: str

    def made_in(self, solution: str) -> str:
        """The solution with this mistake. Raises ValueError unless `old` is in it once."""
        if (times := solution.count(self.old)) != 1:
            raise ValueError(f"{self.old!r} is in the solution {times} times, not once")
        return solution.replace(self.old, self.new)


def patches(text: str) -> list[Mistake]:
    """The mistakes in a text of patches.

        - query.shape[-1] ** 0.5
        + 1.0
        the factor 1/√D is missing
        + query.shape[-1]
        Q Kᵀ is divided by D; divide by √D

    A line with + replaces the lines with − above it, or the same as the one before. The text below
    names the mistake, and so do patches above it without a text of their own.
    """
    found, unnamed, old = list[Mistake](), list[tuple[str, str]](), ""
    for removed, added, said in PATCH.findall(text):
        old = _lines(removed) or old
        unnamed.append((old, _lines(added)))
        if said:
            found += [Mistake(*edit, " ".join(said.split())) for edit in unnamed]
            unnamed = []
    return found


PATCH = re.compile(r"((?:-(?: .*)?\n)*)((?:\+(?: .*)?\n)+)((?:(?![-+](?: |\n)).+\n)*)")


def _lines(marked: str) -> str:
    return "\n".join(line[2:] for line in marked.splitlines())


class Raised(NamedTuple):
    """An error in place of a result: the name of its class, and its text if NumPy or Python wrote
    it."""

    kind: str
    text: str


@dataclass
class Call:
    """One call of a function: its arguments, and what it returned or raised.

    pulled  the calls of each function that it returned, by place: usually its pullback
    given   what it passed to its keyword `tap`, by name
    tapped  what `tap` returned instead: None for no change
    """

    arguments: Any
    settings: dict[str, Any]
    result: Any = None
    pulled: dict[int, list[Call]] = field(default_factory=dict)
    given: dict[str, list[Any]] = field(default_factory=dict)
    tapped: dict[str, list[Any]] = field(default_factory=dict)


def calls_recorded(function: Callable[..., Any], calls: list[Call]) -> Callable[..., Any]:
    """The same function, which adds its calls, and those of its pullbacks, to the list."""

    @functools.wraps(function)
    def call(*arguments: Any, **settings: Any) -> Any:
        if len(calls) == MOST:
            return function(*arguments, **settings)
        new = Call(_copy(arguments), _copy(settings))
        calls.append(new)
        if "tap" in settings:
            settings["tap"] = _heard(settings["tap"], new)
        try:
            result = function(*arguments, **settings)
        except Exception as error:
            new.result = _raised(error, file_of(function))
            raise
        new.result = _copy(result)
        if type(result) is tuple:
            for k in [k for k, x in enumerate(result) if callable(x)]:
                pullback = calls_recorded(result[k], new.pulled.setdefault(k, []))
                result = (*result[:k], pullback, *result[k + 1 :])
        return result

    return call


def _heard(tap: Callable[..., Any], heard: Call) -> Callable[..., Any]:
    def call(name: str, x: Any) -> Any:
        heard.given.setdefault(name, []).append(_copy(x))
        answer = tap(name, x)
        heard.tapped.setdefault(name, []).append(None if answer is x else _copy(answer))
        return answer

    return call


def named(
    mistakes: Iterable[Mistake], solution: str, name: str, calls: list[Call],
    comes_here: Callable[[Callable[..., Any]], bool] = lambda function: True,
) -> str:  # fmt: skip
    """The text of the first mistake with which the solution repeats all calls, or "".

    comes_here  whether a function passes the earlier checks. Two mistakes may agree in the calls of
                one check, up to its first failure, and only one of them passes the checks before it

    If no mistake repeats all calls and the values are wrong, one that repeats the values is enough,
    whatever the pullbacks return. Silent if the solution itself repeats all calls: the results are
    right then.
    """
    right = _defined(solution, name)
    if not calls or _repeats(right, calls):
        return ""
    made = [(_defined(mistake.made_in(solution), name), mistake.text) for mistake in mistakes]
    values_are_wrong = not _repeats(right, calls, pulled=False)
    for pulled in [True, False][: 1 + values_are_wrong]:
        for function, text in made:
            if _repeats(function, calls, pulled) and comes_here(function):
                return text
    return ""


@functools.cache
def _defined(code: str, name: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"np": np}
    exec(code, names)
    return names[name]


def _repeats(function: Callable[..., Any], calls: list[Call], pulled: bool = True) -> bool:
    """Whether a function returns or raises in each call what was recorded, and its pullbacks too,
    if they count."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are not the student's
        return all(_repeats_one(function, call, pulled) for call in calls)


def _repeats_one(function: Callable[..., Any], call: Call, pulled: bool) -> bool:
    given: dict[str, list[Any]] = {}
    result = _answer(function, call, given)
    return (
        _same(result, call.result)
        and all(_same(given[name], call.given[name]) for name in given.keys() & call.given.keys())
        and (not pulled or all(_repeats(result[k], inner) for k, inner in call.pulled.items()))
    )


def _answer(function: Callable[..., Any], call: Call, given: dict[str, list[Any]]) -> Any:
    """The result of a function, or the error that it raises, for the arguments of a call.

    Adds to `given` what it passes to `tap`.
    """
    tapped = {name: list(answers) for name, answers in call.tapped.items()}

    def tap(name: str, x: Any) -> Any:
        given.setdefault(name, []).append(_copy(x))
        answer = tapped[name].pop(0) if tapped.get(name) else None
        return x if answer is None else answer

    settings = _copy(call.settings) | ({"tap": tap} if "tap" in call.settings else {})
    try:
        return function(*_copy(call.arguments), **settings)
    except Exception as error:  # a mistake may raise, as the student's function did
        return _raised(error, None)


def _raised(error: Exception, file: str | None) -> Raised:
    """The error; without its text if a `raise` in this file, or in a remote one, wrote it."""
    text = str(error)
    chosen = ": raise " in f"{line_of(error, file)}{text.partition(chr(10))[2]}"
    return Raised(type(error).__name__, "" if chosen else text.partition("\n")[0].strip())


def _same(a: Any, b: Any) -> bool:
    """Whether two results agree up to rounding; a list may stand for a tuple."""
    if isinstance(a, Raised) or isinstance(b, Raised):
        return type(a) is type(b) and a.kind == b.kind and b.text in (a.text, "")
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if callable(a) or callable(b):
        return callable(a) and callable(b)
    try:
        return _close(np.asarray(a), np.asarray(b))
    except Exception:  # whatever a student's function returned: it is not what a solution returns
        return False


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    if a.shape != b.shape or not {a.dtype.kind, b.dtype.kind} <= set("biufc"):
        return a.shape == b.shape and bool((a == b).all())
    # of the largest entry, not of each: sums in another order round differently
    largest = np.max(abs(b.astype(complex)), initial=0.0, where=np.isfinite(b))
    relative = 1e-5 if "float32" in (a.dtype, b.dtype) else 1e-11
    return np.allclose(a, b, rtol=relative, atol=relative * largest, equal_nan=True)


def _copy(x: Any) -> Any:
    """A copy that later changes of arrays, lists and dictionaries do not reach."""
    if isinstance(x, np.ndarray):
        return x.copy()
    if type(x) in (tuple, list):
        return type(x)(map(_copy, x))
    return {key: _copy(y) for key, y in x.items()} if type(x) is dict else x
