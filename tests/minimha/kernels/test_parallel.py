"""Threads share a range: every chunk is computed once, for any callers, and nothing hangs."""

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from minimha.kernels import threads, unavailable

if why := unavailable():
    pytest.skip(why, allow_module_level=True)

from minimha.kernels.cpu import parallel
from minimha.kernels.cpu.jit import kernel


@kernel
def count_up(chunk, x):
    for i in range(*parallel.share(chunk)):
        x[i] += 1
        parallel._yield_core()


@kernel
def meet(chunk, arrived, parties):
    """Each chunk waits until all have begun, which needs as many threads as chunks."""
    for _ in range(*parallel.share(chunk)):
        parallel._add(arrived, 0, 1)
        looks = 0
        while parallel._load(arrived, 0) < parties and looks < 100_000:
            parallel._yield_core()
            looks += 1
        if looks < 100_000:
            parallel._add(arrived, 8, 1)


@kernel(boundscheck=True)
def fill(chunk, x, bad):
    for i in range(*parallel.share(chunk)):
        x[i + (len(x) if i == bad else 0)] = 1


def met(parties):
    """Whether this many chunks run at once in one of twenty calls, since a helper may fall asleep."""
    for _ in range(20):
        arrived = np.zeros(16, np.int64)
        with threads.limit(parties):
            meet(parallel.whole(parties, parties), arrived, parties)
        if arrived[8] == parties:
            return True
    return False


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_each_index_of_a_range_is_computed_once(number):
    for count in (0, 1, 2, 100, 2**12):
        for chunks in {1, 2, 3, 7, count + 1}:
            x = np.zeros(count, np.int64)
            with threads.limit(number):
                count_up(parallel.whole(count, chunks), x)
            assert (x == 1).all()


@pytest.mark.thorough
def test_chunks_are_computed_in_parallel_by_helpers_awake_or_asleep():
    for number in (2, 3, 4, 2, 3):
        assert met(number)
    while parallel._pool.board[parallel.AWAKE]:  # they go to sleep when there is no work
        os.sched_yield() if hasattr(os, "sched_yield") else None
    assert met(3)


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or len(os.sched_getaffinity(0)) < 2,
    reason="a thread is moved on Linux, where there is another core",
)
def test_a_helper_leaves_the_core_of_its_leader_and_may_return_to_it():
    @kernel
    def leave(cores, found):
        found[0] = parallel._core()
        parallel._leave(found[0], cores)
        found[1] = parallel._core()

    allowed, left = os.sched_getaffinity(0), 0
    for _ in range(20):
        found = np.zeros(2, np.int64)
        leave(parallel._cores(), found)
        left += found[0] != found[1]
    assert left > 15  # the scheduler may move a thread as well
    assert os.sched_getaffinity(0) == allowed


def test_several_callers_at_once_compute_each_index_once():
    def call(_):
        for n in range(100):
            x = np.zeros(50 + n, np.int64)
            with threads.limit(3):
                count_up(parallel.whole(len(x), 9), x)
            assert (x == 1).all()

    with ThreadPoolExecutor(4) as callers:
        list(callers.map(call, range(4)))
    assert met(3)


@pytest.mark.parametrize("bad", [0, 57, 99])
@pytest.mark.parametrize("number", [1, 2])
def test_a_failing_chunk_raises_an_error_after_the_others_finish(bad, number):
    x = np.zeros(100)
    with threads.limit(number), pytest.raises((MemoryError, IndexError)):
        fill(parallel.whole(100, 100), x, bad)
    if number > 1:
        assert x.sum() == 99
    assert met(2)
    with threads.limit(2):
        fill(parallel.whole(100, 100), x, -1)
    assert x.all()


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_starts_its_own_helpers():
    assert met(3)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert all(pool.map(met, [3] * 4))
    assert met(3)


CODE = """
import atexit, logging, threading
import numpy as np
from minimha.kernels.cpu import elementwise, parallel
logging.getLogger("minimha").setLevel("ERROR")
def work():
    x, y = np.ones((2, 100), "f4")
    elementwise._gate_forward(parallel.whole(100, 10), x, (np.float32(1), np.float32(0), np.float32(80)), y)
    return int((y < 0.8).sum())
print(threading.active_count(), work(), threading.active_count())
atexit.register(lambda: print("late", work()))
threading.Thread(target=lambda: [work() for _ in range(10**9)], daemon=True).start()
"""


@pytest.mark.thorough
def test_threads_start_when_needed_and_end_with_the_interpreter():
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True, check=False, text=True, env={**os.environ, "MINIMHA_NUM_THREADS": "4"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1 100 4\nlate 100\n"


@pytest.mark.parametrize("cached", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_helpers_do_not_compile(cached, tmp_path):
    """Numba sets the filters of warnings while it compiles, and all threads share them."""
    code = """
from minimha.kernels.cpu import parallel
parallel.whole(100, 10)
print(len(parallel._serve.signatures))
"""
    places = {} if cached else {"NUMBA_CACHE_DIR": str(tmp_path)}
    settings = {**os.environ, **places, "MINIMHA_NUM_THREADS": "4"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, text=True, env=settings
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
