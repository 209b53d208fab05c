"""A range is shared between threads: each piece once, whoever calls, and nothing hangs."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from minimha.kernels import blas, threads, unavailable

if why := unavailable():
    pytest.skip(why, allow_module_level=True)

from minimha.kernels.cpu import parallel
from minimha.kernels.cpu.jit import kernel

pytestmark = pytest.mark.usefixtures("deadline")
LONG = 5 * 10**9  # looks at a number: some seconds


@pytest.fixture(autouse=True, scope="module")
def compiled():
    """Else helpers would be late, or asleep again, the first time."""
    x = np.zeros(16, np.int64)
    parallel.attend(threads._pool.team, 1, 0)
    meet(threads.part(1), x, 1, 1)
    crowd(threads.part(1), x)
    spend(threads.part(1), x, 1)


@kernel
def count_up(part, x):
    if parallel.led(part):
        return
    for i in range(part[0], part[1]):
        x[i] += 1


@kernel
def meet(part, arrived, parties, looks):
    """Each piece waits until so many have begun; arrived[8] is how many saw that."""
    if parallel.led(part):
        return
    parallel._add(arrived, 0, 1)
    for _ in range(looks):
        if parallel._load(arrived, 0) >= parties:
            parallel._add(arrived, 8, 1)
            break


@kernel
def crowd(part, now):
    """now[8 + k] is how many were at work when k of them were."""
    if parallel.led(part):
        return
    k = parallel._add(now, 0, 1)
    parallel._add(now, 8 + k, 1)
    for _ in range(300):
        parallel._give_way()  # to those who should not be there
    parallel._add(now, 0, -1)


@kernel
def count_up_slowly(part, x):
    if parallel.led(part):
        return
    for i in range(part[0], part[1]):
        x[i] += 1
        parallel._give_way()


@kernel(boundscheck=True)
def fill(part, x, bad):
    if parallel.led(part):
        return
    for i in range(part[0], part[1]):
        x[i + (len(x) if i == bad else 0)] = 1


@kernel
def spend(part, x, looks):
    if parallel.led(part):
        return
    for _ in range(looks):
        parallel._add(x, part[0], 1)


def met(parties, looks=LONG):
    """How many of so many pieces saw each other, in as many threads."""
    arrived = np.zeros(16, np.int64)
    with threads.limit(parties):
        meet(threads.part(parties, parties), arrived, parties, looks)
    return arrived[8]


def all_asleep():
    """Wait until no helper looks for work."""
    while threads._pool.team[threads.AWAKE]:
        time.sleep(0.05)


@pytest.mark.parametrize("count", [0, 1, 2, 100, 2**17])
@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_each_number_of_a_range_comes_once(count, number):
    for pieces in {1, 2, 3, 7, count + 1}:
        x = np.zeros(count, np.int64)
        with threads.limit(number):
            count_up(threads.part(count, pieces), x)
        assert (x == 1).all()


def test_a_part_need_not_begin_at_0():
    x = np.zeros(100, np.int64)
    with threads.limit(2):
        _, _, share, team = threads.part(100, 5)
    count_up((10, 37, share, team), x)
    assert (x[10:37] == 1).all()
    assert x.sum() == 27


def test_pieces_are_done_at_the_same_time_again_and_again():
    for number in (2, 3, 4) * 10:
        assert met(number) == number


def test_helpers_that_went_to_sleep_are_woken():
    assert met(3) == 3
    for _ in range(3):
        all_asleep()
        assert met(3) == 3


def test_no_more_threads_join_than_the_limit_says():
    assert met(5) == 5  # four helpers, awake
    for _ in range(20):
        now = np.zeros(16, np.int64)
        with threads.limit(2):
            crowd(threads.part(40, 40), now)
        assert now[8:].sum() == 40
        assert not now[10:].any()


def test_what_several_callers_share_is_done_once():
    wrong = []

    def call():
        for n in range(200):
            x = np.zeros(50 + n, np.int64)
            with threads.limit(3):
                count_up_slowly(threads.part(len(x), 9), x)
            wrong.extend(x[x != 1])

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(50)
    assert not wrong
    assert met(3) == 3


@pytest.mark.parametrize("bad", [0, 57, 99])
@pytest.mark.parametrize("number", [1, 2])
def test_a_piece_that_fails_is_told_and_the_others_are_done(bad, number):
    x = np.zeros(100)
    with threads.limit(number), pytest.raises((MemoryError, IndexError)):
        fill(threads.part(100, 100), x, bad)
    if number > 1:
        assert x.sum() == 99
    assert met(2) == 2
    with threads.limit(2):
        fill(threads.part(100, 100), x, -1)
    assert x.all()


def test_when_all_is_done_nothing_holds_the_arrays():
    x = np.zeros(10, np.int64)
    before = sys.getrefcount(x)
    with threads.limit(3):
        count_up(threads.part(10, 10), x)
    assert sys.getrefcount(x) == before


def test_an_awake_helper_costs_little():
    def once():
        start = time.perf_counter()
        for _ in range(200):
            count_up(threads.part(2, 2), x)
        return (time.perf_counter() - start) / 200

    x = np.zeros(2, np.int64)
    with threads.limit(2):
        assert min(once() for _ in range(20)) < 60e-6  # 2e-6 where this was written


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_helpers_of_its_own():
    for rest in (0, 0.1):  # with helpers awake and asleep
        assert met(3) == 3
        time.sleep(rest)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map_async(met, [3] * 4).get(50) == [3] * 4
    assert met(3) == 3


@pytest.mark.skipif(os.name == "nt", reason="signals to oneself differ there")
def test_ctrl_c_waits_for_those_who_still_write():
    x = np.zeros(16, np.int64)
    with threads.limit(2):
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        timer.start()
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            spend(threads.part(2, 2), x, 10**8)
            time.sleep(0)
        signal.signal(signal.SIGINT, before)
    assert list(x[:2]) == [10**8] * 2
    assert met(2) == 2


class OpenMP:
    """OpenBLAS over OpenMP: a number of threads for each thread that calls it."""

    def __init__(self):
        self.own, self.told = threading.local(), set()

    @property
    def num_threads(self):
        return getattr(self.own, "number", 4)

    def set_num_threads(self, number):
        self.own.number = number
        if number == 1:
            self.told.add(threading.current_thread().name)


def test_helpers_have_one_thread_of_a_blas_that_counts_by_thread(monkeypatch):
    library, used = OpenMP(), []
    monkeypatch.setattr(blas, "known", lambda: bool(used))
    monkeypatch.setattr(blas, "_libraries", lambda: (used.append(1) or [], [library]))
    assert met(2) == 2  # a helper is awake, and has not heard of it
    assert not library.told
    with threads.single_blas():
        together = met(2, looks=10**6) == 2
        assert not together or "minimha" in library.told  # it had gone to sleep
        all_asleep()
        assert met(2) == 2
    assert "minimha" in library.told
    assert library.num_threads == 4


def run(code, **environment):
    kept = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
        env={**kept, "MINIMHA_NUM_THREADS": "4", **environment},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


PRELUDE = """
import atexit, logging, threading, time
import numpy as np
from minimha.kernels import threads
from minimha.kernels.cpu.gates import _silu
logging.getLogger("minimha").setLevel("ERROR")
def work(x=np.ones(100, "f4")):
    y = np.zeros(100, "f4")
    _silu(threads.part(100, 10), x, y)
    return int((y > 0.7).sum())
"""


def test_nothing_starts_before_it_is_needed():
    assert run("print(threading.active_count()); work(); print(threading.active_count())") == (
        "1\n4\n"
    )


def test_the_end_of_the_interpreter_is_quiet():
    code = """
work()
atexit.register(lambda: print("late", work()))
threading.Thread(target=lambda: (time.sleep(0.2), work())).start()
threading.Thread(target=lambda: [work() for _ in range(10**9)], daemon=True).start()
"""
    assert run(code) == "late 100\n"


def test_where_helpers_are_gone_the_caller_does_the_work():
    code = """
class Last:
    def __del__(self, work=work, print=print):
        print(work())
work()
last = Last()  # lives until after the threads
"""
    assert run(code) == "100\n"


def test_without_a_compiler_it_is_a_plain_loop():
    assert run("print(work())", NUMBA_DISABLE_JIT="1") == "100\n"
