"""Work is shared between threads: each turn once, in order, whoever calls, and nothing hangs."""

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest

from minimha.kernels import blas, threads

SETTINGS = ("MINIMHA_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS")


@pytest.fixture(autouse=True)
def deadline():
    """What hangs fails."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def late(*_):
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def run(code, **environment):
    kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
        env={**kept, **environment},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100])
@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_each_turn_is_taken_once(count, number):
    taken = []
    with threads.limit(number):
        threads.share(taken.append, count)
    assert sorted(taken) == list(range(count))


def test_turns_start_in_order():
    started = []

    def work(k):
        started.append(k)
        time.sleep(0.001)

    with threads.limit(3):
        threads.share(work, 30)
    # a thread may lose its turn at the interpreter's lock between taking it and telling
    assert max(abs(place - k) for place, k in enumerate(started)) <= 2


def test_the_caller_is_one_of_the_threads():
    who = set()

    def work(k):
        who.add(threading.current_thread())
        time.sleep(0.01)

    with threads.limit(3):
        threads.share(work, 12)
    assert threading.current_thread() in who
    assert len(who) == 3


def test_one_turn_is_taken_by_the_caller():
    who = []
    threads.share(lambda k: who.append(threading.current_thread()), 1)
    assert who == [threading.current_thread()]


def meet(parties):
    """Work that goes on only when so many turns are under way at once."""
    barrier = threading.Barrier(parties)
    return lambda k: barrier.wait(10)


def test_turns_run_at_the_same_time_again_and_again():
    with threads.limit(4):
        for _ in range(50):
            threads.share(lambda k: None, 4)  # helpers may be late for this
            threads.share(meet(4), 4)


@pytest.mark.parametrize("inside_helper", [False, True])
def test_inside_work_share_is_a_loop(monkeypatch, inside_helper):
    monkeypatch.setenv("MINIMHA_NUM_THREADS", "3")
    threads.share(meet(3), 3)  # so that a helper is free
    caller, both, where = threading.current_thread(), threading.Barrier(2), []

    def work(k):
        both.wait(10)
        outer = threading.current_thread()

        def inner(j):
            where.append(threading.current_thread() is outer)
            time.sleep(0.005)

        if (outer is not caller) is inside_helper:
            threads.share(inner, 10)

    with threads.limit(2):
        threads.share(work, 2)
    assert where == [True] * 10
    threads.share(meet(3), 3)  # no longer after it


@pytest.mark.parametrize("bad", [0, 1])
def test_an_exception_comes_when_all_have_stopped_and_no_turn_starts_after_it(bad):
    begun, ended = [], []

    def work(k):
        begun.append(k)
        if k < 2:
            both.wait(10)
        if k == bad:
            raise ValueError(f"turn {k}")
        time.sleep(0.05)
        ended.append(k)

    both = threading.Barrier(2)
    with threads.limit(2), pytest.raises(ValueError, match=f"turn {bad}"):
        threads.share(work, 1000)
    assert sorted([*ended, bad]) == sorted(begun)
    assert len(begun) <= 3  # the other may have had time for one more
    with threads.limit(2):
        threads.share(meet(2), 2)


@pytest.mark.parametrize("fail", [False, True])
def test_when_share_is_over_nothing_holds_the_arrays(monkeypatch, fail):
    helped = threads._Job.help

    def help_and_linger(job):
        helped(job)
        time.sleep(0.2)

    def go():
        array = threading.Event()  # stands for one

        def work(k, array=array):
            both.wait(10)
            if fail and threading.current_thread() is not caller:
                raise KeyError(k)

        both, caller = threading.Barrier(2), threading.current_thread()
        with threads.limit(2), contextlib.suppress(KeyError):
            threads.share(work, 2)
        return weakref.ref(array)

    monkeypatch.setattr(threads._Job, "help", help_and_linger)
    gc.disable()
    try:
        assert go()() is None
    finally:
        gc.enable()


def test_jobs_that_no_helper_came_to_are_forgotten():
    done = threading.Event()
    helpers = max(1, threads._pool.size)

    def occupy():
        with threads.limit(helpers + 1):
            threads.share(lambda k: done.wait(10), helpers + 1)

    caller = threading.Thread(target=occupy)
    caller.start()
    while threads._pool.size < helpers or threads._pool.jobs:
        time.sleep(0.05)
    with threads.limit(helpers + 1):
        for _ in range(10):
            threads.share(lambda k: None, 9)
    assert not threads._pool.jobs
    done.set()
    caller.join(10)


def test_many_callers_at_once_share_the_helpers():
    most, now, lock = 0, set(), threading.Lock()

    def work(k):
        nonlocal most
        with lock:
            now.add(threading.current_thread())
            most = max(most, len([t for t in now if t.name == "minimha"]))
        time.sleep(0.0005)
        with lock:
            now.discard(threading.current_thread())
        taken.append(k)

    taken = []
    before = threads._pool.size
    callers = [
        threading.Thread(target=lambda: [threads.share(work, 5) for _ in range(20)])
        for _ in range(6)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(30)
    assert len(taken) == 6 * 20 * 5
    assert most <= max(before, threads.number() - 1)
    assert not threads._pool.jobs


CTRL_C = """
import os, signal, threading, time
from minimha.kernels import threads
ended = []
def work(k):
    time.sleep(0.3 if threading.current_thread() is {thread} else 0.6)
    ended.append(k)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
def press():
    time.sleep({when})
    os.kill(os.getpid(), signal.SIGINT)
main = threading.main_thread()
with threads.limit(2):
    threads.share(lambda k: time.sleep(0.01), 2)
    threading.Thread(target=press).start()
    try:
        threads.share(work, 2)
    except KeyboardInterrupt:
        print("stopped", len(ended))
    both = threading.Barrier(2)
    threads.share(lambda k: both.wait(10), 2)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals to oneself differ there")
@pytest.mark.parametrize(("when", "ended"), [(0.1, 1), (0.45, 2)], ids=["at work", "waiting"])
def test_ctrl_c_waits_for_those_who_still_write(when, ended):
    assert run(CTRL_C.format(thread="main", when=when)) == f"stopped {ended}\n"


def test_nothing_starts_before_it_is_needed():
    code = "import threading, minimha.kernels.threads; print(threading.active_count())"
    assert run(code) == "1\n"


def test_the_end_of_the_interpreter_is_quiet():
    code = """
import atexit, threading, time
from minimha.kernels import threads
def work(k): time.sleep(0.01)
def late():
    threads.share(work, 8)
    print("late")
threads.share(work, 8)
atexit.register(late)
threading.Thread(target=lambda: (time.sleep(0.2), threads.share(work, 8))).start()
busy = lambda: [threads.share(lambda k: time.sleep(0.001), 8) for _ in range(10**6)]
threading.Thread(target=busy, daemon=True).start()
"""
    assert run(code, MINIMHA_NUM_THREADS="4") == "late\n"


def test_where_helpers_are_gone_the_caller_does_the_work():
    code = """
from minimha.kernels import threads
class Last:
    def __del__(self, share=threads.share, print=print):
        done = []
        share(done.append, 3)
        print(len(done))
threads.share(lambda k: None, 8)
last = Last()  # lives until after the threads
"""
    assert run(code, MINIMHA_NUM_THREADS="4") == "3\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_helpers_of_its_own():
    with threads.limit(3):
        threads.share(meet(3), 3)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map_async(in_child, range(4)).get(30) == [True] * 4
        threads.share(meet(3), 3)


def in_child(_):
    with threads.limit(3):
        threads.share(meet(3), 3)
    return True


def test_small_work_costs_little():
    def once(share):
        start = time.perf_counter()
        for _ in range(200):
            share(lambda k: None, 2)
        return (time.perf_counter() - start) / 200

    with threads.limit(2):
        assert min(once(threads.share) for _ in range(20)) < 60e-6  # 8e-6 where this was written


@pytest.mark.parametrize(
    ("environment", "number"),
    [
        ({"MINIMHA_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, 3),
        ({"NUMBA_NUM_THREADS": "4", "OMP_NUM_THREADS": "5"}, 4),
        ({"OMP_NUM_THREADS": "5, 2"}, 5),
        ({"OMP_NUM_THREADS": "many", "NUMBA_NUM_THREADS": "-1"}, None),
        ({"OMP_NUM_THREADS": "0", "MINIMHA_NUM_THREADS": ""}, None),
    ],
)
def test_the_environment_says_how_many(monkeypatch, environment, number):
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    usual = threads.number()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert threads.number() == (number or usual)


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "²"])
def test_a_wrong_number_is_refused(monkeypatch, value):
    monkeypatch.setenv("MINIMHA_NUM_THREADS", value)
    with pytest.raises(ValueError, match=f"MINIMHA_NUM_THREADS is {value!r}; give a whole number"):
        threads.number()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="not known there")
def test_only_cpus_that_this_process_may_use_count():
    code = """
import os
from minimha.kernels.threads import number
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(number())
"""
    assert run(code) == "1\n"


@pytest.mark.parametrize(
    ("said", "cpus"), [("150000 100000\n", 2), ("5000 100000\n", 1), ("max 100000\n", 1 << 30)]
)
def test_a_containers_quota_counts(monkeypatch, said, cpus):
    monkeypatch.setattr(threads.Path, "read_text", lambda *_, **__: said)
    assert threads._quota.__wrapped__() == cpus


def test_a_limit_holds_within_it_and_in_its_own_thread():
    usual, others = threads.number(), []
    with threads.limit(usual + 2):
        with threads.limit(1):
            assert threads.number() == 1
        assert threads.number() == usual + 2
        thread = threading.Thread(target=lambda: others.append(threads.number()))
        thread.start()
        thread.join()
    assert [threads.number(), *others] == [usual, usual]
    with pytest.raises(ValueError, match=r"limit\(0\): a call takes at least 1 thread"):
        threads.limit(0).__enter__()


@pytest.fixture
def blases():
    """The BLAS libraries, each set to three threads, so that one is a change wherever tests run."""
    libraries = blas._libraries()[0]
    before = [library.num_threads for library in libraries]
    for library in libraries:
        blas._set(library, 3)
    yield lambda: {library.num_threads for library in libraries}
    for library, n in zip(libraries, before, strict=True):
        blas._set(library, n)


needs_blas = pytest.mark.skipif(not blas._libraries()[0], reason="no BLAS that can be set")


@needs_blas
def test_blas_has_one_thread_and_gets_its_own_back(blases):
    with threads.single_blas():
        assert blases() == {1}
        with threads.single_blas():
            assert blases() == {1}
        assert blases() == {1}
    assert blases() == {3}


@needs_blas
def test_blas_is_restored_after_an_exception(blases):
    with pytest.raises(KeyError), threads.single_blas():
        raise KeyError
    assert blases() == {3}


@needs_blas
def test_the_last_thread_to_leave_restores_blas_though_another_came_first(blases):
    first, both, left = threading.Event(), threading.Barrier(2), threading.Event()

    def early():
        with threads.single_blas():
            first.set()
            both.wait(10)
        left.wait(10)  # lives on: threadpoolctl lets a living thread keep OpenBLAS to itself

    thread = threading.Thread(target=early)
    thread.start()
    first.wait(10)
    with threads.single_blas():
        both.wait(10)
        time.sleep(0.05)
        assert blases() == {1}
    assert blases() == {3}
    left.set()
    thread.join()


@needs_blas
def test_many_threads_in_and_out_leave_blas_as_it_was(blases):
    seen = set()

    def in_and_out():
        for _ in range(200):
            with threads.single_blas():
                seen.update(blases())

    callers = [threading.Thread(target=in_and_out) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(30)
    assert (seen, blases()) == ({1}, {3})


@needs_blas
def test_what_somebody_else_sets_meanwhile_stays(blases):
    with threads.single_blas():
        for library in blas._libraries()[0]:
            blas._set(library, 2)
    assert blases() == {2}


@needs_blas
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_meanwhile_has_its_blas_back(blases):
    with threads.single_blas():
        child = os.fork()
        if not child:
            os._exit(0 if blases() == {3} else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert blases() == {3}


class OpenMP:
    """OpenBLAS over OpenMP: a number of threads for each thread that calls it."""

    def __init__(self):
        self.own = threading.local()

    @property
    def num_threads(self):
        return getattr(self.own, "number", 4)

    def set_num_threads(self, number):
        self.own.number = number


def test_helpers_have_one_thread_of_a_blas_that_counts_by_thread(monkeypatch):
    library, seen = OpenMP(), []
    monkeypatch.setattr(blas, "_libraries", lambda: ([], [library]))
    both = threading.Barrier(2)

    def work(k):
        both.wait(10)
        seen.append(library.num_threads)

    with threads.limit(2), threads.single_blas():
        threads.share(work, 2)
    assert (seen, library.num_threads) == ([1, 1], 4)
