"""BLAS on a single thread, for kernels that call it from several threads of their own."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from typing import Any

_lock = threading.Lock()
_inside = 0
_before: list[tuple[Any, int]] = []


def _renew() -> None:
    global _lock, _inside
    _lock, _inside = threading.Lock(), 0


if hasattr(os, "register_at_fork"):  # a child lacks the threads that are inside or hold the lock
    os.register_at_fork(after_in_child=_renew)


@contextlib.contextmanager
def single_threaded() -> Iterator[None]:
    """Within the `with` block, every BLAS library in the process uses one thread.

    Several threads may be inside such blocks at once: the first to enter sets the number of BLAS
    threads to 1, and the last to leave restores it.
    """
    global _inside, _before  # noqa: PLW0603
    with _lock:
        _inside += 1
        if _inside == 1:
            _before = _before or [  # a forked child may have its parent's
                (library, library.num_threads or 1) for library in _libraries()
            ]
            for library, _ in _before:
                _set_threads(library, 1)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                for library, threads in _before:
                    _set_threads(library, threads)
                _before = []


@functools.cache
def _libraries() -> list[Any]:
    import scipy.linalg.cython_blas  # noqa: F401  # loads the BLAS that Numba's np.dot calls
    import threadpoolctl

    return threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers


def _set_threads(library: Any, threads: int) -> None:
    library.set_num_threads(threads)
    if hasattr(library, "clear_controlling_thread"):  # else only this thread could change it
        library.clear_controlling_thread()
