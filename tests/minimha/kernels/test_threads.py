"""How many threads a call may have, and BLAS, which has one meanwhile."""

import os
import subprocess
import sys
import threading
import time

import pytest

from minimha.kernels import blas, threads

pytestmark = pytest.mark.usefixtures("deadline")


@pytest.fixture(autouse=True)
def asked_anew():
    threads._usual.cache_clear()
    yield
    threads._usual.cache_clear()


SETTINGS = ("MINIMHA_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS")


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
    threads._usual.cache_clear()
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
