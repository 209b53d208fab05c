"""Extension points: how a higher room plugs into a lower one, which does not know it.

The lower room writes a function, the default, and makes it an extension point:

    @ExtensionPoint
    def explain(failed):
        return failed.message(), None

A package above both says, by their paths, which function computes it instead. That function is
imported at the first call, so a room that a program never needs costs it no time:

    provide({"engine.check:explain": "package.diagnosis:explain"})

An object may have an extension point of its own. Then another function takes over for good or
inside a block:

    layer.attend.provide(function)

    with layer.attend.replaced_by(function):
        ...
"""

from __future__ import annotations

import importlib
from _thread import allocate_lock  # `threading` is slow to import
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_PROVIDERS: dict[str, str] = {}
"""The path of the function that computes an extension point, by the path of its default."""

_CHANGING = allocate_lock()
"""Held while a function is replaced, but not while it runs."""


def provide(providers: Mapping[str, str]) -> None:
    """From now on, compute extension points by these functions: both are paths, "module:name"."""
    _PROVIDERS.update(providers)


class ExtensionPoint:
    """A function that another room may replace. A call returns what the replacement returns.

    default   the function called if nobody has provided another one
    function  the function called now: `point.function(x)` is `point(x)` without the time that a
              call of a class takes, for code that runs often
    """

    def __init__(self, default: Callable[..., Any]) -> None:
        self.default = default
        self.__doc__ = default.__doc__
        self.function = self._first_call
        self._functions: list[Callable[..., Any]] = [self._first_call]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def _first_call(self, *args: Any, **kwargs: Any) -> Any:
        """Import the function provided by its path, and call it from then on."""
        path = _PROVIDERS.get(f"{self.default.__module__}:{self.default.__qualname__}")
        if path is None:
            return self.default(*args, **kwargs)

        module, _, name = path.partition(":")
        function = getattr(importlib.import_module(module), name)
        self.provide(function)
        return function(*args, **kwargs)

    def provide(self, function: Callable[..., Any]) -> None:
        """From now on, call this function in place of the default."""
        with _CHANGING:
            self._functions[0] = function
            self.function = self._functions[-1]

    @contextmanager
    def replaced_by(self, function: Callable[..., Any]) -> Iterator[None]:
        """Inside the block, in all threads, call this function instead.

        Blocks may be nested, and blocks of several threads may end in any order.
        """
        with _CHANGING:
            self._functions.append(function)
            self.function = function
        try:
            yield
        finally:
            with _CHANGING:
                self._functions.remove(function)
                self.function = self._functions[-1]
