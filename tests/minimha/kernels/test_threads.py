"""The number of threads of a call, and BLAS limited to one thread."""

import contextlib
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

import minimha as mh
from minimha.kernels import blas, threads
from minimha_autograd import tape

SETTINGS = ("MINIMHA_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS")


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    threads._default.cache_clear()
    yield
    threads._default.cache_clear()


@pytest.mark.parametrize(("environment", "number"), [
    ({"MINIMHA_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, 3),
    ({"NUMBA_NUM_THREADS": "4", "OMP_NUM_THREADS": "5"}, 4),
    ({"OMP_NUM_THREADS": "many", "NUMBA_NUM_THREADS": "-1"}, None),
    ({"OMP_NUM_THREADS": "0", "MINIMHA_NUM_THREADS": ""}, None),
])  # fmt: skip
def test_the_environment_sets_the_number(monkeypatch, environment, number):
    default = threads.number()
    threads._default.cache_clear()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert threads.number() == (number or default)


@pytest.mark.parametrize("value", ["0", "-1", "two"])
def test_a_wrong_number_is_refused(monkeypatch, value):
    monkeypatch.setenv("MINIMHA_NUM_THREADS", value)
    with pytest.raises(
        ValueError, match=f"MINIMHA_NUM_THREADS is {value!r}; it must be a positive"
    ):
        threads.number()


@pytest.mark.parametrize(
    ("quota", "cpus"), [("150000 100000\n", 2), ("5000 100000\n", 1), ("max 100000\n", 64)]
)
def test_only_cpus_available_to_this_process_count(monkeypatch, quota, cpus):
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(threads.Path, "read_text", lambda *_, **__: quota)
    assert threads.number() == cpus


def test_a_limit_applies_to_its_block_and_thread_only():
    default = threads.number()
    with threads.limit(default + 2), ThreadPoolExecutor() as pool:
        with threads.limit(1):
            assert threads.number() == 1
        assert threads.number() == default + 2
        assert pool.submit(threads.number).result() == default
    assert threads.number() == default
    with pytest.raises(ValueError, match=r"limit\(0\): a call needs at least 1 thread"):
        threads.limit(0).__enter__()


@pytest.fixture
def numbers():
    """Set each BLAS library to three threads, and return a function that reads their numbers."""
    libraries = blas._libraries()
    if not libraries:
        pytest.skip("no BLAS whose threads can be set")
    before = [library.num_threads for library in libraries]
    for library in libraries:
        blas._set_threads(library, 3)
    yield lambda: {library.num_threads for library in libraries}
    for library, n in zip(libraries, before, strict=True):
        blas._set_threads(library, n)


def test_blas_uses_one_thread_inside_and_its_previous_number_afterwards(numbers):
    with contextlib.suppress(KeyError), blas.single_threaded():
        with blas.single_threaded():
            assert numbers() == {1}
        assert numbers() == {1}
        raise KeyError
    assert numbers() == {3}


def test_the_last_thread_to_leave_restores_blas(numbers):
    first, second = blas.single_threaded(), blas.single_threaded()
    with ThreadPoolExecutor() as pool:
        pool.submit(first.__enter__).result()
    with second:
        first.__exit__(None, None, None)
        assert numbers() == {1}
    assert numbers() == {3}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(("file", "lock"), [(blas, "_lock"), (tape, "_accumulating")])
def test_a_forked_process_does_not_wait_for_threads_that_it_lacks(numbers, file, lock):
    def work():
        with blas.single_threaded():
            mh.Tensor([1.0], requires_grad=True).sum().backward()
        assert numbers() == {3}

    child = multiprocessing.get_context("fork").Process(target=work)
    with blas.single_threaded(), getattr(file, lock):  # as if another thread held it
        child.start()
    child.join(10)
    child.kill()
    assert child.exitcode == 0
