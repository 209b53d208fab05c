"""Blocks that change how operations on Tensors behave: `no_grad`, `detect_anomaly`, `watch`.

Which blocks are open is known to each thread and each asyncio task for itself. A block opened in a
generator holds while the generator runs, not while it is suspended: its consumer is not concerned.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType
from typing import Any

_MANAGING = frozenset({"__enter__", "__exit__", "__aenter__", "__aexit__"})
_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class _Entry:
    """A block that was entered: in which thread, and by which frame, None once it was left."""

    def __init__(self, block: Block, owner: FrameType) -> None:
        self.block, self.thread = block, threading.get_ident()
        self.owner: FrameType | None = owner

    def holds(self) -> bool:
        """Whether it concerns the code that runs here.

        The block of a generator or coroutine concerns what it calls, so its frame is on the stack.
        """
        if self.owner is None:
            return False
        if not self.owner.f_code.co_flags & _SUSPENDS:
            return self.thread == threading.get_ident()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self.owner:
            frame = frame.f_back
        return frame is not None


class Block:
    """A with statement, or a decorator, that is in force while its owner runs."""

    def __init__(self, *wrong: Any) -> None:
        if wrong:
            raise TypeError(f"{type(self).__name__} takes no arguments: write it with ()")
        self._entries: list[_Entry] = []

    def __enter__(self) -> None:
        entry = _Entry(self, _owner(sys._getframe(1)))
        self._entries.append(entry)
        open_blocks.set((*(e for e in open_blocks.get() if e.owner is not None), entry))

    def __exit__(self, *_: object) -> None:
        owner = _owner(sys._getframe(1))
        entry = next((e for e in reversed(self._entries) if e.owner is owner), self._entries[-1])
        self._entries.remove(entry)
        entry.owner = None
        open_blocks.set(tuple(e for e in open_blocks.get() if e.owner is not None))

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function, also one that yields or awaits, to run inside such a block."""
        block = type(self)
        if isinstance(function, type):
            raise TypeError(f"{block.__name__} decorates functions, not the class {function}")
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def inside(*args: Any, **kwargs: Any) -> Any:
                with block():
                    return (yield from function(*args, **kwargs))

        elif inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def inside(*args: Any, **kwargs: Any) -> Any:
                with block():
                    return await function(*args, **kwargs)

        elif inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def inside(*args: Any, **kwargs: Any) -> Any:
                with block():
                    made = function(*args, **kwargs)
                    step = made.asend(None)
                    try:
                        while True:
                            value = await step
                            try:
                                step = made.asend((yield value))
                            except GeneratorExit:
                                raise
                            except BaseException as error:  # which its consumer throws into it
                                step = made.athrow(error)
                    except StopAsyncIteration:
                        return
                    finally:
                        await made.aclose()

        else:

            @functools.wraps(function)
            def inside(*args: Any, **kwargs: Any) -> Any:
                with block():
                    return function(*args, **kwargs)

        return inside


class no_grad(Block):  # noqa: N801  reads as a statement
    """Within the block, operations on Tensors are not recorded: `with no_grad():` or `@no_grad()`.

    It holds for this thread only, and in a generator only while the generator runs: so a pytest
    fixture that yields inside it does not reach the test. A function made a context manager by
    contextlib does reach the with statement that uses it.
    """


class detect_anomaly(Block):  # noqa: N801
    """Within the block, NaN and infinity are errors where they first appear, forward or backward.

    FloatingPointError names the operation, the first such entry, and the lines that called the
    operation. An infinity that was among the inputs, as in a mask of −∞, is no anomaly; a NaN is.
    Arrays saved within it are compared as a whole with what they were, on devices too. All this
    costs time and makes a GPU wait: it is for the search, not for training.
    """


class watch(Block):  # noqa: N801
    """Within the block, function(name of the operation, value) sees every Tensor that an operation
    makes, and what it returns takes the Tensor's place. Gradient checks locate faults with it."""

    def __init__(self, function: Callable[[str, Any], Any]) -> None:
        super().__init__()
        self.function = function


open_blocks: ContextVar[tuple[_Entry, ...]] = ContextVar("open_blocks", default=())


def in_force(kind: type[Block]) -> bool:
    """Whether a block of this kind is open here."""
    return any(isinstance(entry.block, kind) and entry.holds() for entry in open_blocks.get())


def watched(name: str, value: Any) -> Any:
    """What an operation made, Tensor or tuple of them, as the watches that are open leave it."""
    for entry in open_blocks.get():
        if isinstance(entry.block, watch) and entry.holds():
            see = entry.block.function
            several = isinstance(value, tuple)
            value = tuple(see(name, y) for y in value) if several else see(name, value)
    return value


def is_recording() -> bool:
    """Whether operations on Tensors are recorded here, that is, outside every `no_grad`."""
    return not in_force(no_grad)


def _owner(frame: FrameType) -> FrameType:
    """The frame whose block it is.

    A context manager that opens it within does so for the with statement that uses it, be it of a
    class or what contextlib made of a generator.
    """
    while True:
        while _serves(frame) and frame.f_back is not None:
            frame = frame.f_back
        caller = frame.f_back
        if not (frame.f_code.co_flags & _SUSPENDS and caller and _serves(caller)):
            return frame
        frame = caller


def _serves(frame: FrameType) -> bool:
    """Whether it enters or leaves a block for the frame that called it."""
    return frame.f_code.co_name in _MANAGING or frame.f_globals.get("__name__") == "contextlib"
