"""BLAS in one thread while kernels that call it have threads of their own."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any


@contextlib.contextmanager
def single_blas() -> Iterator[None]:
    """Within it, BLAS uses one thread; when the last has left, as many as before the first.

    This holds for the whole process and for every BLAS library that was loaded at the first use,
    SciPy's among them, which Numba's np.dot calls. Share work inside it, not the other way round.
    """
    of_process, of_thread = _libraries()
    before = _silence(of_thread)
    try:
        with _users.lock:
            _users.number += 1
            if _users.number == 1:
                _users.before = _silence(of_process)
        yield
    finally:
        with _users.lock:
            _users.number = max(0, _users.number - 1)  # 0 already in a child forked within it
            if not _users.number:
                _restore(_users.before)
        _restore(before)


def silence_helper() -> None:
    """In a thread that does nothing but help: what single_blas is to the thread that is helped."""
    if known():
        _silence(_libraries()[1])


def known() -> bool:
    """Whether somebody used single_blas."""
    return _libraries.cache_info().currsize > 0


@functools.cache
def _libraries() -> tuple[list[Any], list[Any]]:
    """The libraries with one number of threads a process, and those with one a thread."""
    import scipy.linalg.cython_blas  # noqa: F401  # loads it
    import threadpoolctl

    kinds: tuple[list[Any], list[Any]] = [], []
    for library in threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers:
        kinds[getattr(library, "threading_layer", "") == "openmp"].append(library)
    return kinds


def _silence(libraries: Iterable[Any]) -> list[tuple[Any, int]]:
    """Set each to one thread; those that had more, with how many."""
    before = [(library, n) for library in libraries if (n := library.num_threads or 1) > 1]
    for library, _ in before:
        _set(library, 1)
    return before


def _restore(before: Iterable[tuple[Any, int]]) -> None:
    for library, n in before:
        if library.num_threads == 1:  # somebody else's wish stands
            _set(library, n)


def _set(library: Any, threads: int) -> None:
    """From any thread: threadpoolctl lets the first thread alone set OpenBLAS, until it lets go."""
    library.set_num_threads(threads)
    getattr(library, "clear_controlling_thread", lambda: None)()


class _Users:
    """How many are within single_blas, and what the libraries were set to before."""

    def __init__(self) -> None:
        self.lock, self.number = threading.Lock(), 0
        self.before: list[tuple[Any, int]] = []

    def forked(self) -> None:
        """In a child: those who were within it stayed behind, in other threads."""
        _restore(self.before)
        self.__init__()  # type: ignore[misc]


_users = _Users()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_users.forked)
