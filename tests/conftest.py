"""Fixtures and options shared by all tests."""

import contextlib
import gc
import os
from collections import defaultdict
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from minimha_autograd import backend
from minimha_autograd.gradcheck import text_table

pytest.register_assert_rewrite("invariants")  # so that its failures show the values


def pytest_addoption(parser):
    text = "run the tests marked thorough too, and every test on every array library"
    parser.addoption("--thorough", action="store_true", help=text)
    text = "with --thorough, leave out the tests that passed in this output of pytest -rp"
    parser.addoption("--passed", metavar="FILE", type=Path, help=text)
    text = "round as on another machine; each whole number stands for one: see other_cpu.py"
    parser.addoption("--other-cpu", metavar="SEED", type=int, help=text)


def pytest_configure(config):
    if config.getoption("numprocesses", None):
        # pytest-xdist's workers inherit this. If each of them has two threads on two cores, the
        # threads wait for one another: a test of attention took 78 s of processor time, not 10.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of NumPy
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # of PyTorch
    config.addinivalue_line("markers", "thorough: runs only with --thorough")
    text = "half: needs 16-bit floats, which array-api-strict does not have"
    config.addinivalue_line("markers", text)
    config.addinivalue_line("markers", "this_cpu(reason): does not run with --other-cpu")
    if config.getoption("--other-cpu") is not None:
        from other_cpu import other_cpu

        rounding = contextlib.ExitStack()
        rounding.enter_context(other_cpu(config.getoption("--other-cpu")))
        config.add_cleanup(rounding.close)
    try:
        from hypothesis import settings
    except ModuleNotFoundError:  # homework checked by pytest in a clone loads this file, too
        return
    draws = 100 if config.getoption("--thorough") else 10  # tests use multiples of it
    settings.register_profile(
        "house", max_examples=draws, deadline=None, derandomize=True, database=None
    )
    settings.load_profile("house")


def pytest_collection_modifyitems(config, items):
    """Skip tests that run only with --thorough; with it, those that passed and have no more cases."""
    thorough, file = config.getoption("--thorough"), config.getoption("--passed")
    passed = set(file.read_text(encoding="utf-8").splitlines()) if thorough and file else set()
    first = _libraries(config)[0]
    seen, chosen, left_out = set(), [], []
    for item in items:
        sample = _sample(item)
        library = sample[-1]
        if thorough:
            more = _draws(item.path) or ("record" in item.fixturenames and library != first)
            skipped = f"PASSED {item.nodeid}" in passed and not more
        else:
            repeated = library not in (None, first) and sample in seen
            skipped = repeated or item.get_closest_marker("thorough")
        if skipped:
            left_out.append(item)
        else:
            chosen.append(item)
            seen.add(sample)
    config.hook.pytest_deselected(items=left_out)
    items[:] = chosen


def pytest_runtest_setup(item):
    mark = item.get_closest_marker("this_cpu")
    if mark and item.config.getoption("--other-cpu") is not None:
        pytest.skip(*mark.args)


def pytest_collection_finish():
    """Leave all tests out of garbage collections: each pytest.main in a test makes five."""
    gc.freeze()


@cache
def _draws(path):
    """Whether the tests of a file draw cases, and so draw more of them with --thorough."""
    return "hypothesis" in path.read_text(encoding="utf-8")


def _sample(item):
    """What a library other than the first one runs once: a test, of an operation or of any."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    record = parameters.get("record") or parameters.get("sample", (None,))[0]
    library = parameters.get("place") or parameters.get("xp")
    return item.path, item.originalname, record and record.operation, library


def _libraries(config):
    return [name.strip() for name in config.getoption("--array-backend").split(",")]


@pytest.fixture
def rng():
    return np.random.default_rng(20170612)


@pytest.fixture
def library(xp, request):
    """The name of the array library xp."""
    return request.node.callspec.params["xp"]


class Place(NamedTuple):
    """A place for arrays: a library and one of its devices."""

    name: str
    xp: Any
    device: Any = None

    def __call__(self, host):
        """A host array moved to this place; anything else unchanged."""
        return backend.move(host, self.xp, self.device) if isinstance(host, np.ndarray) else host


def pytest_generate_tests(metafunc):
    """`place` is each requested library; array-api-strict's device1 stands in for a GPU.

    The first library runs every case. The others run the first case of each test, or of each
    operation if a test loops over operations. With --thorough they run every case.
    """
    if "place" in metafunc.fixturenames:
        names = _libraries(metafunc.config)
        if metafunc.definition.get_closest_marker("half"):
            names = [name for name in names if name != "array-api-strict"]
        names += ["array-api-strict:device1"] * ("array-api-strict" in names)
        metafunc.parametrize("place", names, indirect=True)


@pytest.fixture
def place(request):
    name, _, device = request.param.partition(":")
    try:
        xp = backend.library(name)
    except RuntimeError as error:
        pytest.skip(str(error))
    return Place(name, xp, xp.Device(device) if device else None)


@pytest.fixture
def tables(record_property):
    """Tables to print after the tests, as rows of cells by title: tables[title].append(row)."""
    rows = defaultdict(list)
    yield rows
    record_property("tables", dict(rows))  # the report transports it, also from xdist's workers


def pytest_terminal_summary(terminalreporter):
    tables = defaultdict(list)
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if getattr(report, "when", None) == "teardown":
            for title, rows in dict(report.user_properties).get("tables", {}).items():
                tables[title] += rows
    for title, rows in tables.items():
        terminalreporter.section(title)
        terminalreporter.write_line(text_table([""] * max(map(len, rows)), rows).strip("\n"))
