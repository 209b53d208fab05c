"""Work shared between threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_pool = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1), "minimha")


def number() -> int:
    """How many threads a call may use."""
    return len(os.sched_getaffinity(0))


def share(work: Callable[[int], None], count: int) -> None:
    """Call work(0), work(1), … work(count − 1), each once, in `number` threads at a time.

    The caller is one of the threads. work should spend its time without the interpreter's lock.
    """
    turns = iter(range(count))  # next() of it is atomic

    def some() -> None:
        for k in turns:
            work(k)

    helpers = [_pool.submit(some) for _ in range(min(number(), count) - 1)]
    some()
    for helper in helpers:
        helper.result()
