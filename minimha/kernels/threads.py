"""The number of threads that a kernel may use."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

_NAMES = "MINIMHA_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS"
_limit: ContextVar[int | None] = ContextVar("limit", default=None)


def number() -> int:
    """The number of threads that a call of a kernel may use.

    Inside `limit`, the number given there. Otherwise that of an environment variable, which is read
    once: MINIMHA_NUM_THREADS, else NUMBA_NUM_THREADS, else OMP_NUM_THREADS. If none is set, the
    number of CPUs available to this process. Raises ValueError if MINIMHA_NUM_THREADS is not a
    positive integer.
    """
    return _limit.get() or _default()


@functools.cache
def _default() -> int:
    for name in _NAMES:
        text = os.environ.get(name, "")
        if text.isdecimal() and int(text):
            return int(text)
        if text and name == "MINIMHA_NUM_THREADS":
            raise ValueError(f"{name} is {text!r}; it must be a positive integer, or unset")
    affinity = hasattr(os, "sched_getaffinity")
    cpus = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    return min(cpus, _quota())


def divide_cpus(processes: int) -> None:
    """Divide the CPUs of this machine among this many processes, of which this is one: limit the
    threads of kernels and of BLAS in this process to its share. Does nothing if an environment
    variable sets the number of threads (see `number`)."""
    if any(os.environ.get(name) for name in _NAMES):
        return
    threads = min(number(), max(1, min(os.cpu_count() or 1, _quota()) // processes))
    os.environ["OMP_NUM_THREADS"] = str(threads)  # also for libraries that are loaded later
    _default.cache_clear()
    import threadpoolctl

    threadpoolctl.threadpool_limits(threads, user_api="blas")


def _quota() -> int:
    """The number of CPUs that the quota of a container allows (Linux, cgroup v2), rounded up, or
    2³⁰ if there is no quota."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return 1 << 30


@contextlib.contextmanager
def limit(threads: int) -> Iterator[None]:
    """Within the `with` block, a kernel that this Python thread calls may use this many threads.
    Raises ValueError for fewer than 1."""
    if threads < 1:
        raise ValueError(f"limit({threads}): a call needs at least 1 thread")
    token = _limit.set(threads)
    try:
        yield
    finally:
        _limit.reset(token)
