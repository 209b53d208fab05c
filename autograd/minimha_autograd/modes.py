"""Blocks that change what operations on Tensors do: `no_grad`, `detect_anomaly`, `watch`.

One context variable counts the open blocks, so each thread and each asyncio task has its own. As in
PyTorch, if a generator yields inside such a block, the block stays open for the generator's caller.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple


class Modes(NamedTuple):
    """How many blocks `with no_grad():` and `with detect_anomaly():` are open, and the functions of
    the open `watch` blocks. The blocks are counted, because blocks that are open in several
    generators may end in any order."""

    no_grad: int = 0
    detect_anomaly: int = 0
    watchers: tuple[Callable[[str, Any], Any], ...] = ()


RETURN_EARLY = (
    inspect.isgeneratorfunction,
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
)
"""Functions of these kinds return before their bodies run."""

_NOTHING_OPEN = Modes()
modes: ContextVar[Modes] = ContextVar("modes", default=_NOTHING_OPEN)


class _Counted(ContextDecorator):
    """The base class of `no_grad` and `detect_anomaly`, which are context managers and decorators.
    The field of `Modes` that has the name of the class counts its open blocks."""

    def __enter__(self) -> None:
        self._add(1)

    def __exit__(self, *_: object) -> None:
        self._add(-1)

    def _add(self, number: int) -> None:
        now, name = modes.get(), type(self).__name__
        modes.set(now._replace(**{name: getattr(now, name) + number}))

    def __call__(self, function: Any) -> Any:
        if any(returns_early(function) for returns_early in RETURN_EARLY):
            name = getattr(function, "__name__", repr(function))
            raise TypeError(f"{name} returns before its body runs: open the block inside it")
        return super().__call__(function)


class no_grad(_Counted):  # noqa: N801  reads as a statement
    """Inside `with no_grad():`, or a function decorated with `@no_grad()`, operations on Tensors
    are not recorded for backward(), and their results require no gradient. A block applies to the
    current thread or asyncio task alone (see `contextvars`) and to tasks that are created inside
    the block; to these it applies even after it has ended."""


class detect_anomaly(_Counted):  # noqa: N801
    """Inside `with detect_anomaly():`, or a function decorated with `@detect_anomaly()`, NaN and
    infinity raise FloatingPointError where they first appear, forward or backward.

    The error names the operation, the first such entry, and the lines that called the operation.
    A NaN in the value of an operation raises it, and so does an infinity, unless an input contains
    an infinity or a NaN already, as a mask of −∞ does. In a gradient, both raise it. To notice that
    an array that a pullback needs was changed in place, all its entries are compared, on devices
    too. All this takes time and synchronises a GPU: use it to search for a mistake, not for
    training.
    """


@contextmanager
def watch(function: Callable[[str, Any], Any]) -> Iterator[None]:
    """Within the `with` block, function(name of the operation, value) is called with every Tensor
    that an operation makes, and the result of the function replaces the Tensor. Gradient checks
    use this to locate mistakes."""
    modes.set(modes.get()._replace(watchers=(*modes.get().watchers, function)))
    try:
        yield
    finally:
        modes.set(modes.get()._replace(watchers=modes.get().watchers[:-1]))
