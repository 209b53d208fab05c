"""The plugin, in a folder of a student's own."""

import os
import re
import subprocess
import sys

import pytest

USES_XP = "def test_it(xp):\n    assert xp.sum(xp.ones(3)) == 3\n"
OWN_XP = "import pytest\n\n@pytest.fixture(params=[1, 2])\ndef xp(request):\n    return request.param\n\ndef test_own(xp):\n    assert xp in (1, 2)\n"

PLAIN = """
import sys

def test_plain(pytestconfig):
    assert pytestconfig.pluginmanager.has_plugin("minimha")
    heavy = {"minimha", "minimha_autograd", "numpy", "numba", "matplotlib", "rich"}
    assert not heavy & set(sys.modules)
"""

HOMEWORK = '''
import logging
import unittest

import numpy as np
import pytest

import minimha as mh

SEEN = []
logging.getLogger().addHandler(type("Own", (logging.Handler,), {"emit": lambda self, record: SEEN.append(record)})())


def double(x):
    """
    >>> mh.gradcheck(triple, np.ones(3))
    """
    return 2 * x, lambda dy: (2 * dy,)


def triple(x):
    return 2 * x, lambda dy: (3 * dy,)


def flat(x):
    return 2 * x, lambda dy: (dy.sum(),)


def todo(x):
    raise NotImplementedError("to be written")


def helper(f, x):
    mh.gradcheck(f, x)  # in helper


@pytest.fixture
def broken(rng):
    mh.gradcheck(triple, rng.standard_normal(3))  # in broken


@pytest.mark.gradcheck(axes=["B T"])
def test_right(rng):
    return double, rng.standard_normal((3, 5))


@pytest.mark.gradcheck(axes=["B T"], names=["row"])
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_wrong(rng, scale):
    x = rng.standard_normal((3, 5))
    return (  # in test_wrong
        triple,
        scale * x,
    )


@pytest.mark.gradcheck
def test_todo(rng):
    return todo, rng.standard_normal(3)  # in test_todo


@pytest.mark.gradcheck
def test_nothing():
    mh.ops.exp, np.ones(3)  # in test_nothing


@pytest.mark.gradcheck
def test_no_inputs():
    return double  # in test_no_inputs


@pytest.mark.gradcheck(axes=["B T H"])
def test_axes():
    return double, np.ones((2, 3))  # in test_axes


@pytest.mark.gradcheck(["B T"])
def test_unnamed():
    return double, np.ones((2, 3))  # in test_unnamed


@pytest.mark.gradcheck
async def test_later():
    return triple, np.ones(3)  # in test_later


@pytest.mark.gradcheck
def test_that_checks_itself():
    helper(double, np.ones(3))


@pytest.mark.gradcheck(names=["width"])
class TestMarked:
    def test_fixture(self, gradcheck, rng):
        assert gradcheck(double, rng.standard_normal(4)).rows[0].input == "width"
        assert gradcheck(double, rng.standard_normal(4), names=["x"]).rows[0].input == "x"
        gradcheck(flat, rng.standard_normal(4))  # in test_fixture


def test_fixture_unused(gradcheck):
    assert gradcheck


def test_direct():
    helper(triple, np.ones(3))  # in test_direct


def test_chained():
    try:
        helper(triple, np.ones(3))
    except mh.GradcheckError as error:
        raise RuntimeError("the reason") from error  # in test_chained


def test_expected():
    with pytest.raises(mh.GradcheckError):
        helper(triple, np.ones(3))


def test_setup(broken):
    pass


class TestUnit(unittest.TestCase):
    def test_unit(self):
        mh.gradcheck(triple, np.ones(3))  # in test_unit


def test_plain_failure():
    assert len([1]) == 2


def test_logs(caplog):
    caplog.set_level(logging.DEBUG)
    helper(double, np.ones(3))
    logging.getLogger("mine").debug("mine")
    assert caplog.messages == ["mine"] == [record.getMessage() for record in SEEN]
'''

IMPORTED = "import numpy as np\nimport minimha as mh\n\nmh.gradcheck(lambda x: (x, lambda dy: (2 * dy,)), np.ones(3))\n"

CONFTEST = """
import asyncio
import inspect
import logging

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):  # as plugins for async tests do
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
        return True


def pytest_sessionfinish():
    logger = logging.getLogger("minimha.gradcheck")
    assert not (logger.level or logger.handlers or logger.filters) and logger.propagate
"""

MANY = """
import minimha as mh
import numpy as np
import pytest

def right(x):
    return x, lambda dy: (dy,)

def wrong(x):
    return x, lambda dy: (2 * dy,)

def test_many():
    for _ in range(30):
        mh.gradcheck(right, np.ones(3))
    with pytest.raises(mh.GradcheckError):
        mh.gradcheck(wrong, np.ones(3))

def test_wrong():
    mh.gradcheck(wrong, np.ones(3))
"""

EACH = "import sys, pytest\nfor options in sys.argv[1:]:\n    print('#####', flush=True)\n    pytest.main(options.split())"
"""Several runs of pytest in one process, which imports everything but once."""


def call(folder, *command):
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS")
    }
    environment |= {"COLUMNS": "100", "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


@pytest.fixture
def run(tmp_path):
    def run(source, *options):
        tmp_path.joinpath("test_homework.py").write_text(source, encoding="utf-8")
        return call(tmp_path, "-m", "pytest", "-rs", "-p", "no:cacheprovider", *options)

    return run


@pytest.fixture
def runs(tmp_path):
    """What pytest prints for each of several sets of options."""

    def runs(source, *options):
        tmp_path.joinpath("test_homework.py").write_text(source, encoding="utf-8")
        command = [f"-p no:cacheprovider {x}" for x in options]
        return call(tmp_path, "-c", EACH, *command).stdout.split("#####\n")[1:]

    return runs


OPTIONS = [
    "--doctest-modules",
    "--continue-on-collection-errors",
    "--strict-markers",
    "-W",
    "error",
    "-p",
    "no:cacheprovider",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("homework")
    folder.joinpath("test_homework.py").write_text(HOMEWORK, encoding="utf-8")
    folder.joinpath("test_imported.py").write_text(IMPORTED, encoding="utf-8")
    folder.joinpath("conftest.py").write_text(CONFTEST, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def homework(folder):
    done = call(folder, "-m", "pytest", *OPTIONS)
    assert not done.stderr
    return done.stdout


def failure(output, title):
    """The part of the output under the title of a failure."""
    _, _, rest = re.split(rf"^(_+ {re.escape(title)} _+)$", output, maxsplit=1, flags=re.MULTILINE)
    return re.split(r"^(?:_{3,}|={3,}) .* (?:_{3,}|={3,})$", rest, maxsplit=1, flags=re.MULTILINE)[
        0
    ]


def summary(output):
    """The lines of the summary of all checks, without their times."""
    (part,) = re.findall(r"^=+ gradient checks =+\n(.*?)^=", output, flags=re.MULTILINE | re.DOTALL)
    return [re.sub(r" \d+\.\d\d s ", " ", line).split() for line in part.splitlines()[1:]]


def test_numpy_is_the_default(run):
    assert "1 passed" in run(USES_XP).stdout


def test_every_library_named_gets_its_turn_once(run, monkeypatch):
    done = run(USES_XP, "--array-backend", "numpy, numpy,cupy")
    assert "1 passed, 1 skipped" in done.stdout or "2 passed" in done.stdout
    if "skipped" in done.stdout:
        assert "cupy is" in done.stdout.replace("the array library cupy is", "cupy is")


def test_an_unknown_library_is_one_line(run):
    done = run(USES_XP, "--array-backend", "numpi")
    assert done.returncode == 4
    assert done.stderr.strip() == (
        "ERROR: --array-backend: 'numpi' is not one of numpy, array-api-strict, torch, cupy"
    )


def test_a_projects_own_xp_is_left_alone(run):
    assert "2 passed" in run(OWN_XP, "--array-backend", "numpy,torch").stdout


def test_who_does_not_use_it_loads_nothing(run, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # others may load NumPy
    done = run(PLAIN, "-p", "minimha")
    assert "1 passed" in done.stdout, done.stdout
    assert "gradient check" not in done.stdout


def test_it_can_be_left_out(runs):
    (output,) = runs("def test_it(gradcheck):\n    pass\n", "-p no:minimha")
    assert "fixture 'gradcheck' not found" in output


@pytest.mark.parametrize(
    ("title", "marker", "first", "place"),
    [
        ("test_wrong[2.0]", "test_wrong", "GradcheckError: triple: the gradient of row is wrong", None),
        ("test_todo", "test_todo", "NotImplementedError: to be written", "to be written"),
        ("test_nothing", "test_nothing", "Failed: returned nothing, not a function and its inputs", None),
        ("test_no_inputs", "test_no_inputs", "Failed: returned a function, not a function and", None),
        ("test_axes", "test_axes", "ValueError: axes: 3 names for x, which has shape (2, 3)", None),
        ("test_unnamed", "test_unnamed", "Failed: the mark gradcheck takes settings by name", None),
        ("test_later", "test_later", "GradcheckError: triple: the gradient of x is wrong", None),
        ("TestMarked.test_fixture", "test_fixture", "GradcheckError: flat: the gradient of width has", None),
        ("test_direct", "test_direct", "GradcheckError: triple: the gradient of x is wrong", "in helper"),
        ("test_chained", "test_chained", "RuntimeError: the reason", None),
        ("test_chained", "test_chained", "GradcheckError: triple: the gradient of x is wrong", None),
        ("TestUnit.test_unit", "test_unit", "GradcheckError: triple: the gradient of x is wrong", None),
        ("ERROR at setup of test_setup", "broken", "GradcheckError: triple: the gradient of x", None),
    ],
)  # fmt: skip
def test_a_failure_shows_the_users_line_and_the_message(homework, title, marker, first, place):
    text = failure(homework, title)
    assert re.search(rf"^>.*# in {marker}$", text, flags=re.MULTILINE), text
    assert re.search(rf"^E +{re.escape(first)}", text, flags=re.MULTILINE), text
    lines = HOMEWORK.splitlines()
    (line,) = [k for k, x in enumerate(lines, 1) if x.endswith(place and f'"{place}")' if place == "to be written" else f"# {place or 'in ' + marker}")]
    assert f"\ntest_homework.py:{line}: {first.partition(':')[0]}\n" in text


def test_a_failure_shows_the_whole_diagnosis(homework):
    text = failure(homework, "test_wrong[1.0]")
    assert re.search(r"^E +worst entry  B \d, T \d\nE +yours .*\nE +numeric .*\nE +ratio +1\.5, the same", text, flags=re.MULTILINE)
