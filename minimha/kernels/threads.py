"""How many threads a call has, and the helpers among them, which `cpu.parallel` gives work."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from . import blas

WORK, CALL, ARGUMENTS, START, STOP, PIECES, DONE, FAILED, BUSY, AWAKE, CALLED_OFF = range(0, 88, 8)
"""What a leader and its helpers tell each other, each in a line of the cache of its own: what is
left of the call under way; the function that does a piece; its arguments; the range, in how many
pieces, how many are done, whether one failed; whether somebody leads; how many helpers look for
work; how often they were told to stop looking."""
MOST_PIECES, MOST_HELPERS = 2**16 - 1, 2**8 - 1

_LOOKS = 10_000
"""So often a helper looks for more before it sleeps: for some two milliseconds."""

_limit: ContextVar[int | None] = ContextVar("limit", default=None)


def number() -> int:
    """How many threads a call may use.

    That of `limit`; else, as it was when first asked for, MINIMHA_NUM_THREADS; or NUMBA_NUM_THREADS
    or OMP_NUM_THREADS; else the CPUs that this process may use. ValueError where
    MINIMHA_NUM_THREADS is no whole number above 0.
    """
    return _limit.get() or _usual()


@functools.cache
def _usual() -> int:
    for name in ("MINIMHA_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
        said = os.environ.get(name, "")
        first = said.split(",")[0].strip()  # OpenMP's has one number a level of nesting
        if first.isdecimal() and int(first):
            return int(first)
        if said and name == "MINIMHA_NUM_THREADS":
            raise ValueError(f"{name} is {said!r}; give a whole number above 0, or leave it unset")
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on
        cpus = os.process_cpu_count()
    elif hasattr(os, "sched_getaffinity"):
        cpus = len(os.sched_getaffinity(0))
    else:
        cpus = os.cpu_count()
    return min(cpus or 1, _quota())


@functools.cache
def _quota() -> int:
    """What a container may use (Linux, cgroup v2), in CPUs, rounded up."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return 1 << 30


@contextlib.contextmanager
def limit(threads: int) -> Iterator[None]:
    """Within it, each call of this thread or task uses so many threads, be they more or fewer."""
    if threads < 1:
        raise ValueError(f"limit({threads}): a call takes at least 1 thread, its own")
    token = _limit.set(threads)
    try:
        yield
    finally:
        _limit.reset(token)


@contextlib.contextmanager
def single_blas() -> Iterator[None]:
    """`blas.single_blas`, of which helpers learn that are awake already."""
    known = blas.known()
    with blas.single_blas():
        if not known:
            _pool.team[CALLED_OFF] += 1
        yield


def part(count: int, pieces: int = 1) -> tuple[int, int, int, np.ndarray]:
    """All of range(count), for a kernel to share in so many pieces: see `cpu.parallel`.

    (0, count, how it is shared, the team): how many pieces, and how many helpers at most, or 0
    where the caller is to be alone; and where they find each other. All callers together have
    `number` − 1 helpers. They are awake or about to be; those that are late, or that the system
    does not give, are done without.
    """
    pieces = min(pieces, MOST_PIECES)
    helpers = min(pieces, number(), MOST_HELPERS + 1) - 1
    if helpers < 1:
        return 0, count, 0, _pool.team
    return 0, count, pieces << 8 | helpers, _pool.call(helpers)


class _Pool:
    """Helpers, started when first needed: see `cpu.parallel`, which says what a team is."""

    def __init__(self) -> None:
        self.team = np.zeros(88, np.int64)
        self.wake: SimpleQueue[None] = SimpleQueue()
        self.size, self.lock = 0, threading.Lock()

    def call(self, helpers: int) -> np.ndarray:
        with self.lock:
            while self.size < helpers:
                try:
                    threading.Thread(target=self.serve, name="minimha", daemon=True).start()
                except RuntimeError:  # the system has no more, or Python is about to end
                    break
                self.size += 1
            asleep = min(helpers, self.size) - int(self.team[AWAKE])
            for _ in range(asleep - self.wake.qsize()):
                self.wake.put(None)
        return self.team

    def serve(self) -> None:
        """The life of a helper."""
        from .cpu.parallel import attend

        team = self.team  # held while it is looked at, whatever becomes of the pool
        while True:
            self.wake.get()
            called_off = int(team[CALLED_OFF])
            blas.silence_helper()
            attend(team, _LOOKS, called_off)


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.__init__)  # type: ignore[misc]  # no helper lives on
