"""Extension points: how a higher room plugs into a lower one, which does not know it.

A room is a folder of the package; a higher one may import a lower one, but not the reverse. The
lower room writes a function, the default, and makes it an extension point:

    @extension_point
    def explain(failed):
        return failed.message(), None

A package above both says, by their paths, which function computes it instead. That function is
imported at the first call, so a room that a program never needs costs it no time:

    providers["engine.check:explain"] = "package.diagnosis:explain"

`ExtensionPoint(default)` makes an extension point that is in no such list and may be an attribute
of an object. Another function can replace the default for good or within a block:

    layer.combine = ExtensionPoint(linear)

    layer.combine.provide(function)

    with layer.combine.replaced_by(function):
        ...
"""

from __future__ import annotations

import functools
import importlib
from _thread import allocate_lock  # `threading` is slow to import
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

providers: dict[str, str] = {}
"""A dictionary from the path of an extension point to the path of the function that computes it."""

_CHANGING = allocate_lock()
"""Held while a function is replaced, but not while it runs."""


class _Block:
    """An open `with point.replaced_by(function)` block and its function. A block equals only
    itself: if two open blocks have the same function, the one that ends is removed from the list
    of open blocks, not the other."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


class ExtensionPoint:
    """A function that another room, a folder of the package, may replace. A call of the extension
    point calls the replacement and returns its result.

    default   the function that is called until another one is provided
    function  the function called now. Code that runs often calls `point.function(x)`, which saves
              the time of a call of this class
    """

    def __init__(self, default: Callable[..., Any]) -> None:
        # The name, the docstring and the signature are those of the default.
        functools.update_wrapper(self, default, updated=())
        self.default = default
        self.function = default
        self._provided = default
        self._blocks: list[_Block] = []  # those that are open, in the order in which they began

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def provide(self, function: Callable[..., Any]) -> None:
        """From now on, call this function in place of the default, except inside the blocks of
        `replaced_by`."""
        with _CHANGING:
            self._provided = function
            self._choose()

    @contextmanager
    def replaced_by(self, function: Callable[..., Any]) -> Iterator[None]:
        """Inside the `with` block, in all threads, call this function in place of the default or of
        the one that was provided.

        Blocks may be nested, and blocks of several threads may end in any order.
        """
        block = _Block(function)
        with _CHANGING:
            self._blocks.append(block)
            self._choose()
        try:
            yield
        finally:
            with _CHANGING:
                self._blocks.remove(block)
                self._choose()

    def _choose(self) -> None:
        """Set `function` to that of the open block that began last or, if no block is open, to the
        one that was provided."""
        self.function = self._provided
        if self._blocks:
            self.function = self._blocks[-1].function


def extension_point(default: Callable[..., Any]) -> ExtensionPoint:
    """Turn a function of a module, the default, into an extension point. If the dictionary
    `providers` names a function for it, calls go to that function, which is imported at the first
    of them; otherwise they go to the default."""
    point = ExtensionPoint(default)

    def first_call(*args: Any, **kwargs: Any) -> Any:
        """Import the function that `providers` names for this extension point, call it, and let
        later calls go to it directly. If `providers` names none, call the default."""
        path = providers.get(f"{default.__module__}:{default.__qualname__}")
        if path is None:
            return default(*args, **kwargs)

        module, _, name = path.partition(":")
        function = getattr(importlib.import_module(module), name)
        point.provide(function)
        return function(*args, **kwargs)

    point.provide(first_call)
    return point
