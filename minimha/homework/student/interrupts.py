"""Interrupting a student's code when its time is up."""

from __future__ import annotations

import bdb
import functools
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import minimha_autograd

from ..checks.time_limit import Spent

SECONDS = 10
"""The seconds of processor time that loading a file or running one check may take."""

PACKAGES = [Path(__file__).parents[2], Path(minimha_autograd.__file__ or "").parent]
"""The folders of minimha and of minimha_autograd."""


class _Late(KeyboardInterrupt):
    """The error that interrupts code which takes too long. It is not an Exception, so `except
    Exception` does not catch it."""


def in_time(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of call(*arguments), or interrupt the call if it takes too long.

    Raises TimeoutError if the call computes for more than SECONDS, counting all threads, or takes
    PATIENCE times as long on the clock; `Spent.exceeds` says this exactly. There is no limit while
    a debugger is open, or outside the main thread. The call is interrupted by an alarm or, on
    Windows and in a browser, which have no alarms, by a trace hook.
    """
    if threading.current_thread() is not threading.main_thread():
        return call(*arguments)
    start = _spent()
    stop = (_alarm if hasattr(signal, "setitimer") else _hook)(start)
    try:
        return _limited(call, arguments)
    except _Late as error:
        timeout = TimeoutError(f"stopped after {error}")
        raise timeout.with_traceback(error.__traceback__) from None
    finally:
        stop()


def _limited(call: Callable[..., Any], arguments: Iterable[Any]) -> Any:
    """Return call(*arguments). On the stack, the frame of this function shows where the limited
    call begins: an alarm interrupts only code that runs inside it."""
    return call(*arguments)


def _inside(stack: Iterable[types.FrameType]) -> list[types.FrameType]:
    """Return the frames of the call that `in_time` limits, innermost first; if such calls are
    nested, the frames of the innermost one. Empty while `in_time` itself runs, before or after the
    call.

    stack  all frames that run at this moment, innermost first
    """
    found: list[types.FrameType] = []
    for frame in stack:
        if frame.f_code is _limited.__code__:
            return [*found, frame]
        if frame.f_code is in_time.__code__:
            break
        found.append(frame)
    return []


def _spent() -> Spent:
    return Spent(time.process_time(), time.monotonic())


def _alarm(start: Spent) -> Callable[[], None]:
    """Set an alarm that goes off after SECONDS and then ten times a second. Each time, it checks
    whether time is up and, if so, interrupts the call. The time counts from `start`, the reading of
    the times before the call. Returns a function that turns the alarm off.

    The alarm may go off at any moment, even while `in_time` handles the interruption: freeing a
    large list can take longer than the time between two alarms. So the alarm looks at the stack,
    and raises an error only inside the call.

    A bare `except:` may catch the interruption. So from the second interruption on, the error is
    raised twice: at once, and again at the next line of the call that runs, which is then inside
    the `except`. This ends even a loop around the `try`.
    """
    interrupted = False

    def interrupt(_: int, frame: types.FrameType | None) -> None:
        nonlocal interrupted
        late = _spent().since(start).exceeds(SECONDS)
        if not late:
            return
        stack = [frame for frame, _ in traceback.walk_stack(frame)]
        inside = _inside(stack)
        if not inside:
            return
        if any(frame.f_code.co_filename == bdb.__file__ for frame in stack):
            signal.setitimer(signal.ITIMER_REAL, 0)  # a debugger is open
            return
        if interrupted:
            _interrupt_next_line(inside, late)
        interrupted = True
        raise _Late(late)

    def stop() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.settrace(tracer)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)

    tracer = sys.gettrace()
    handler = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, SECONDS, 0.1)
    return stop


def _interrupt_next_line(stack: Iterable[types.FrameType], late: str) -> None:
    """Make the next line that runs in one of these stack frames raise `_Late` with the text `late`,
    which says what limit was exceeded. Frames of minimha's own code are left alone, since they
    clean up."""

    def hook(_: types.FrameType, event: str, __: Any) -> Any:
        if event == "line":
            raise _Late(late)
        return hook

    for frame in stack:
        if not any(Path(frame.f_code.co_filename).is_relative_to(ours) for ours in PACKAGES):
            frame.f_trace = hook
    sys.settrace(lambda *_: None)  # the frames have hooks of their own


def _hook(start: Spent) -> Callable[[], None]:
    """Set a trace hook that interrupts the call once, at the first line of Python that runs after
    time is up. The time counts from `start`, the reading of the times before the call. A debugger
    replaces the hook by its own, so that the call is no longer limited. Returns a function that
    removes the hook."""
    earliest = start.clock + SECONDS

    def hook(*_: Any) -> Any:
        if time.monotonic() > earliest and (late := _spent().since(start).exceeds(SECONDS)):
            raise _Late(late)
        return hook

    stop = functools.partial(sys.settrace, sys.gettrace())
    sys.settrace(hook)
    return stop
