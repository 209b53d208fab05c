"""Work shared between threads, for kernels that let the interpreter's lock go."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from queue import SimpleQueue

from minimha.kernels.blas import silence_helper, single_blas

__all__ = ["limit", "number", "share", "single_blas"]

_limit: ContextVar[int | None] = ContextVar("limit", default=None)


def number() -> int:
    """How many threads a call may use.

    That of `limit`; else MINIMHA_NUM_THREADS; else NUMBA_NUM_THREADS, or OMP_NUM_THREADS; else the
    CPUs that this process may use. ValueError where MINIMHA_NUM_THREADS is no whole number above 0.
    """
    if limited := _limit.get():
        return limited
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


def share(work: Callable[[int], None], count: int) -> None:
    """Call work(0), work(1), … work(count − 1), each once, in `number` threads at a time.

    Turns start in this order, so put the heaviest first. The caller is one of the threads, and
    does alone what no helper came to in time; all callers together have `number` − 1 helpers. work
    should spend its time without the interpreter's lock. Inside work, share is a plain loop.

    After an exception no turn starts; it is raised when those under way have ended.
    """
    helpers = min(count, number()) - 1
    if helpers < 1 or getattr(_here, "sharing", False):
        for k in range(count):
            work(k)
        return
    job = _Job(work, count)
    _here.sharing = True
    try:
        try:
            _pool.call(job, helpers)
            for k in job.turns:
                work(k)
        finally:
            job.end()
    finally:
        _here.sharing = False
    if job.errors:
        raise job.errors.pop()  # popped: a job that holds its own traceback would keep arrays alive


_here = threading.local()


class _Job:
    """One call of share. Appends and next() are atomic, so it needs no lock."""

    def __init__(self, work: Callable[[int], None], count: int) -> None:
        self.work, self.turns = work, iter(range(count))
        self.begun: list[None] = []  # one a helper, as are those who ended
        self.ended: list[None] = []
        self.errors: list[BaseException] = []
        self.news: SimpleQueue[None] = SimpleQueue()

    def help(self) -> None:
        """What a helper does."""
        self.begun.append(None)
        try:
            silence_helper()
            for k in self.turns:
                self.work(k)
        except BaseException as error:
            deque(self.turns, maxlen=0)
            if not self.errors:
                self.errors.append(error)
        self.ended.append(None)
        self.news.put(None)

    def end(self) -> None:
        """Let nobody start another turn, and wait for those under way, through Ctrl-C too."""
        while True:
            try:
                deque(self.turns, maxlen=0)
                with contextlib.suppress(ValueError):
                    while True:
                        _pool.jobs.remove(self)
                while len(self.ended) < len(self.begun):
                    self.news.get()
                break
            except BaseException as error:  # to be raised when nobody writes to the arrays any more
                self.errors[:] = [error]
        del self.work  # a helper may let go of this job a moment later, of arrays not


class _Pool:
    """Helpers, started when first needed. They hold no job while they wait."""

    def __init__(self) -> None:
        self.jobs: deque[_Job] = deque()  # each as often as helpers may still join it
        self.wake: SimpleQueue[None] = SimpleQueue()
        self.size, self.lock = 0, threading.Lock()

    def call(self, job: _Job, helpers: int) -> None:
        """Ask so many helpers to join."""
        with self.lock:
            while self.size < helpers:
                try:
                    threading.Thread(target=self.serve, name="minimha", daemon=True).start()
                except RuntimeError:  # the system has no more, or Python is about to end
                    break
                self.size += 1
        for _ in range(min(helpers, self.size)):
            self.jobs.append(job)
            self.wake.put(None)

    def serve(self) -> None:
        """The life of a helper."""
        _here.sharing = True
        while True:
            self.wake.get()
            with contextlib.suppress(IndexError):  # its caller was faster
                self.jobs.popleft().help()


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.__init__)  # type: ignore[misc]  # no helper lives on
