"""Ranks in a browser, which has no threads: tasks that take turns, each until it has to wait.

A function can wait in the middle of a call because Pyodide can suspend it: `run_sync`, which needs
JavaScript Promise Integration (JSPI) of the browser.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any


def is_here() -> bool:
    """Whether this Python runs in a browser."""
    return sys.platform == "emscripten"


def run(work: Callable[[Any], None], args: Iterable[Any]) -> None:
    """Run work(arg) for each arg in `args`, each in a task of its own; the tasks take turns, and
    `run` returns when all have ended. Raises RuntimeError in a browser without JSPI, where a task
    cannot wait."""
    from pyodide.ffi import can_run_sync, run_sync

    if not can_run_sync():
        raise RuntimeError(
            "this browser cannot run ranks, as it has no JSPI: use Chrome or Edge 137 or later"
        )

    async def task(arg: Any) -> None:
        work(arg)

    async def tasks() -> None:
        await asyncio.gather(*map(task, args))

    collecting = gc.isenabled()
    gc.disable()  # while a call is suspended, the collector of Pyodide 314 crashes
    try:
        run_sync(tasks())
    finally:
        if collecting:
            gc.enable()


class Turns:
    """A stand-in for threading.Condition in a browser. Only one task runs at a time, so it needs no
    lock."""

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...

    def notify_all(self) -> None:
        """Do nothing: a waiting task checks its condition again at each of its turns."""

    def wait_for(self, holds: Callable[[], object], timeout: float) -> None:
        """Let the other tasks run until holds() is true, or until `timeout` seconds have passed."""
        from pyodide.ffi import run_sync

        end = time.monotonic() + timeout
        while not holds() and time.monotonic() < end:
            run_sync(asyncio.sleep(0))
