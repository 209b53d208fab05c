"""Blocks that change how operations on Tensors behave: `no_grad` and `detect_anomaly`.

Which blocks are open is known to each thread and each asyncio task for itself. A block opened in a
generator holds while the generator runs, not while it is suspended: its consumer is not concerned.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType
from typing import Any

_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Block:
    """A with statement, or a decorator, that is in force while its owner runs."""

    def __init__(self) -> None:
        self._entries: list[tuple[Block, FrameType]] = []

    def __enter__(self) -> None:
        entry = self, _owner(sys._getframe(1))
        self._entries.append(entry)
        open_blocks.set((*open_blocks.get(), entry))

    def __exit__(self, *_: object) -> None:
        entry = self._entries.pop()
        open_blocks.set(tuple(other for other in open_blocks.get() if other is not entry))

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function, generator function or coroutine to run inside such a block."""
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def inside(*args: Any, **kwargs: Any) -> Any:
                with type(self)():
                    return (yield from function(*args, **kwargs))

        elif inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def inside(*args: Any, **kwargs: Any) -> Any:
                with type(self)():
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            def inside(*args: Any, **kwargs: Any) -> Any:
                with type(self)():
                    return function(*args, **kwargs)

        return inside


class no_grad(Block):  # noqa: N801  reads as a statement
    """Within the block, operations on Tensors are not recorded: `with no_grad():` or `@no_grad()`.

    It holds for this thread only, and in a generator only while the generator runs.
    """


class detect_anomaly(Block):  # noqa: N801
    """Within the block, NaN and infinity are errors where they first appear, forward or backward.

    FloatingPointError names the operation, the first such entry, and the line that called the
    operation. An infinity that was among the inputs, as in a mask of −∞, is no anomaly; a NaN is.
    Saved arrays are compared as a whole with what they were, on devices too. All this costs time
    and makes a GPU wait: it is for the search, not for training.
    """


open_blocks: ContextVar[tuple[tuple[Block, FrameType], ...]] = ContextVar("blocks", default=())


def in_force(kind: type[Block]) -> bool:
    """Whether a block of this kind is open here, and its owner runs."""
    return any(isinstance(block, kind) and _runs(owner) for block, owner in open_blocks.get())


def is_recording() -> bool:
    """Whether operations on Tensors are recorded here, that is, outside every `no_grad`."""
    return not in_force(no_grad)


def _runs(frame: FrameType) -> bool:
    """Whether a frame is not that of a suspended generator, which nothing has called."""
    return frame.f_back is not None or not frame.f_code.co_flags & _SUSPENDS


def _owner(frame: FrameType) -> FrameType:
    """The frame whose block it is.

    A generator that contextlib made a context manager of opens its block for the with statement
    that uses it.
    """
    while True:
        while _of_contextlib(frame) and frame.f_back is not None:
            frame = frame.f_back
        caller = frame.f_back
        if not (frame.f_code.co_flags & _SUSPENDS and caller and _of_contextlib(caller)):
            return frame
        frame = caller


def _of_contextlib(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "contextlib"
