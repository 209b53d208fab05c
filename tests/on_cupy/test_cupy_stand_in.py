"""The stand-in for CuPy refuses what CuPy refuses, and gives way to a real one."""

import importlib.util
import operator
import re
import sys

import cupy_on_numpy
import list_cupy
import numpy as np
import pytest

import minimha as mh
from minimha_autograd import backend


def test_the_stand_in_refuses_what_cupy_refuses_and_counts(there, traffic):
    x = there(np.arange(3.0))
    for refused in (lambda: np.asarray(x), lambda: x + np.ones(3), lambda: np.ones(3) * x):
        with pytest.raises(TypeError):
            refused()
    assert not traffic
    assert bool(x[0] == 0) and float(x[1]) == x[1].item() == 1  # noqa: PT018
    x[x > 1], x.get()
    assert traffic == {"wait": 4, "to the host": 1}


def test_a_device_is_not_a_string_and_cannot_be_hashed(there):
    x = there(np.ones(2))
    assert x.device == backend.library("cupy").ones(1).device
    assert x.device is not x.device
    assert x.device != "cuda:0"
    assert x.device != 0
    with pytest.raises(TypeError, match="unhashable"):
        hash(x.device)


def test_an_array_cannot_serve_as_an_index_or_a_length(there):
    one = there(np.array(1))
    for use in (operator.index, range, [1, 2].__getitem__, np.zeros, there(np.ones(3)).reshape):
        with pytest.raises(TypeError):
            use(one)
    with pytest.raises(TypeError):
        there(np.ones(3))[one:]
    assert there(np.arange(3.0))[one].item() == 1  # but it selects, as any array


def test_two_additions_to_one_entry_differ_by_rounding(there):
    cupy = backend.library("cupy")
    rows = there(np.zeros(1000, int))
    updates = there(np.random.default_rng(0).standard_normal(1000))

    def added():
        total = cupy.zeros(1)
        cupy.add.at(total, rows, updates)
        return total.item()

    sums = {added() for _ in range(10)}
    assert len(sums) > 1
    assert max(sums) - min(sums) < 1e-12
    places = cupy.zeros(1)
    assert len({(places.__setitem__(rows, updates), places.item())[1] for _ in range(10)}) > 1


def test_the_stand_in_has_only_what_cupy_has(there):
    x, cupy = there(np.ones((2, 2))), sys.modules["cupy"]
    for name in ("errstate", "geomspace", "vecdot", "insert"):
        assert not hasattr(cupy, name), name
    for name in ("__index__", "__contains__", "__imatmul__", "__array_namespace__", "to_device"):
        assert not hasattr(x, name), name
    for refused in (
        lambda: cupy.sum([1.0, 2.0]),
        lambda: cupy.sum(x, where=x > 0),
        lambda: cupy.max(x, initial=0.0),
        lambda: cupy.zeros(2, device=x.device),
        lambda: cupy.exp(x, where=x > 0),
        lambda: cupy.exp([1.0]),
        lambda: x.item(0),
        lambda: x == [1.0],
        lambda: x == "cpu",
        lambda: cupy.add.at(there(np.zeros(1, complex)), there(np.array([0])), 1),
    ):
        with pytest.raises(TypeError):
            refused()
    for wrong in (lambda: cupy.array(["a"]), lambda: x.__setitem__(0, np.ones(2))):
        with pytest.raises(ValueError, match=r"Unsupported dtype|cannot be used for fill"):
            wrong()
    same = x
    same += 1  # in place
    assert x[0, 0].item() == 2
    assert not (x == None).any()  # noqa: E711  as CuPy: an array


def test_the_list_of_what_cupy_has_is_that_of_the_version_it_names():
    cupy = pytest.importorskip("cupy")
    if cupy.__version__ != cupy_on_numpy.VERSION.removeprefix("CuPy ") or not hasattr(
        cupy, "_core"
    ):
        pytest.skip(f"needs {cupy_on_numpy.VERSION}; here is {cupy.__version__}")
    with_numpy = set(dir(np)) | set(dir(np.linalg)) | set(dir(np.fft)) | set(dir(np.ndarray))
    found = [line for line in list_cupy.lines() if re.split(r"[.( ]", line)[-1] in with_numpy]
    assert set(found) <= set(list_cupy.FILE.read_text(encoding="ascii").splitlines())


def test_the_stand_in_is_isolated_from_another_cupy_and_gives_it_back():
    """A second copy of the stand-in plays the real CuPy."""
    spec = importlib.util.spec_from_file_location("another_cupy", cupy_on_numpy.__file__)
    another = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(another)
    with another.installed():
        x = mh.Tensor(backend.library("cupy").ones(3))
        with cupy_on_numpy.installed() as traffic:
            y = mh.Tensor(backend.library("cupy").ones(3))
            assert type(y.data) is cupy_on_numpy.ndarray
            assert type((y * 2 + 1).data) is cupy_on_numpy.ndarray
            assert type(backend.like(np.ones(2), y.data)) is cupy_on_numpy.ndarray
            assert traffic == {"to the device": 1}
        assert type((x * 2).data) is another.ndarray
        assert type(backend.like(np.ones(2), x.data)) is another.ndarray
        assert backend.on_cupy(x.data)


def test_the_plugin_gives_way_to_a_gpu(monkeypatch):
    spec = importlib.util.spec_from_file_location("another_cupy", cupy_on_numpy.__file__)
    another = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(another)
    with another.installed():  # it finds a GPU
        cupy_on_numpy.pytest_configure(None)
        assert sys.modules["cupy"] is another.MODULES["cupy"]
        assert "real" in cupy_on_numpy.pytest_report_header()
