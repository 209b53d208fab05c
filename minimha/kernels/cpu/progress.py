"""One line for those who wait while kernels are compiled."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from typing import Any

from numba.core import event

from minimha.kernels.cpu import cache


class Progress(event.Listener):
    """Numba tells it when compiling begins and ends; one kernel's may contain others'."""

    def __init__(self) -> None:
        self.kernels: weakref.WeakSet[Any] = weakref.WeakSet()
        self.patience, self.depth, self.started = 1.0, 0, 0.0  # patience in seconds
        self.timer = threading.Timer(0, self.say)

    def on_start(self, event: Any) -> None:
        if event.data["dispatcher"] not in self.kernels:
            return
        self.depth += 1
        if self.depth == 1 and self.patience > 0:
            self.started = time.perf_counter()
            self.timer = threading.Timer(self.patience, self.say)
            self.timer.daemon = True
            with contextlib.suppress(RuntimeError):  # no thread to be had
                self.timer.start()

    def on_end(self, event: Any) -> None:
        if event.data["dispatcher"] in self.kernels:
            self.depth -= 1
            if not self.depth:
                self.timer.cancel()
                self.patience -= time.perf_counter() - self.started

    def say(self) -> None:
        """Said once, and only where it is true: else the cache tells what is the matter."""
        self.patience = 0
        if cache.ready():
            text = "minimha: compiling kernels for this machine, once (kept in %s)"
            cache.log.warning(text, cache.folder())


progress = Progress()
event.register("numba:compile", progress)


def watch(kernel: Any, _: dict[str, Any]) -> None:
    """Count the time that this one takes."""
    progress.kernels.add(kernel)
