"""Arrays inside tuples, lists and dictionaries: functions that go through all parts of such a
value.

A leaf is a part that is neither a tuple nor a list nor a dictionary, such as an array, a number or
a function; the argument `leaf` is the function to apply to each leaf. Subclasses such as
namedtuples and defaultdicts count as their bases. This file imports only the standard library,
because the process that runs submissions has it, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def mapped(leaf: Callable[[Any], Any], x: Any) -> Any:
    """Return a copy of x in which each leaf y, a part that is not a tuple, list or dictionary, is
    replaced by leaf(y)."""
    match x:
        case tuple():
            return tuple(mapped(leaf, part) for part in x)
        case list():
            return [mapped(leaf, part) for part in x]
        case dict():
            return {key: mapped(leaf, part) for key, part in x.items()}
    return leaf(x)


def agree(leaf: Callable[[Any, Any], bool], x: Any, y: Any) -> bool:
    """Whether x and y have the same structure, and leaf(a, b) is true for each leaf a of x and the
    leaf b at the same position in y. A list may stand for a tuple, and the order of a dictionary
    does not matter. A leaf is a part that is not a tuple, list or dictionary."""
    match x, y:
        case (tuple() | list(), tuple() | list()):
            return len(x) == len(y) and all(agree(leaf, a, b) for a, b in zip(x, y, strict=True))
        case (dict(), dict()):
            return x.keys() == y.keys() and all(agree(leaf, x[key], y[key]) for key in x)
    return leaf(x, y)


def packed(leaf: Callable[[Any], Any], x: Any) -> Any:
    """Convert x to values that JSON can store: a tuple becomes a list that begins with the string
    "tuple", a list one that begins with "list". A dictionary whose keys are all strings stays one.
    `leaf` converts every other part, such as an array or a dictionary with numbers as keys."""
    match x:
        case tuple():
            return ["tuple", *(packed(leaf, part) for part in x)]
        case list():
            return ["list", *(packed(leaf, part) for part in x)]
        case dict() if all(isinstance(key, str) for key in x):
            return {key: packed(leaf, part) for key, part in x.items()}
    return leaf(x)


def unpacked(leaf: Callable[[Any], Any], item: Any) -> Any:
    """Return the value that `packed` converted to `item`. `leaf` must undo what the argument `leaf`
    of `packed` did."""
    match item:
        case ["tuple", *parts]:
            return tuple(unpacked(leaf, part) for part in parts)
        case ["list", *parts]:
            return [unpacked(leaf, part) for part in parts]
        case dict():
            return {key: unpacked(leaf, part) for key, part in item.items()}
    return leaf(item)
