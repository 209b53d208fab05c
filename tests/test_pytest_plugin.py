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
    """Twice.

    >>> mh.gradcheck(triple, np.ones(3))
    """
    return 2 * x, lambda dy: (2 * dy,)


def triple(x):
    return 2 * x, lambda dy: (3 * dy,)


def flat(x):
    return 2 * x, lambda dy: (dy.sum(),)


def second(x, y):
    return x * y, lambda dy: (dy * y, dy * np.nan)


def todo(x):
    raise NotImplementedError("to be written")  # in todo


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


    @pytest.mark.gradcheck(names=["own"])
    def test_closest(self):
        return flat, np.ones(4)  # in test_closest


@mh.operation
def checking(x):
    mh.gradcheck(triple, np.ones(3))  # in checking
    return double(x)


def test_operation():
    checking(np.ones(3))


def test_second():
    mh.gradcheck(second, np.ones(3), np.ones(3))


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


@pytest.mark.parametrize("k", [1, 2])
def test_numbers(rng, k):
    assert rng.random() == 2


def test_other_numbers(rng):
    assert rng.random() == 2


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


@pytest.fixture(scope="module")
def spread(folder):
    """The same on two processes."""
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    return call(folder, "-m", "pytest", "-n2", *OPTIONS).stdout


@pytest.fixture(scope="module")
def styles(folder):
    """What other options show of some of it."""
    options = {
        style: f"--tb={style} -k test_wrong" for style in ("short", "line", "long", "native")
    }
    options |= {"full": "--full-trace -k test_wrong", "collect": "-m gradcheck -q --collect-only"}
    options |= {"fixtures": "--fixtures", "markers": "--markers"}
    parts = [f"-p no:cacheprovider test_homework.py {x}" for x in options.values()]
    outputs = call(folder, "-c", EACH, *parts).stdout.split("#####\n")[1:]
    return dict(zip(options, outputs, strict=True))


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
    assert "= 1 passed, 1 skipped in" in done.stdout or "= 2 passed in" in done.stdout
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


WRONG = "GradcheckError: triple: the gradient of x is wrong"


@pytest.mark.parametrize(
    ("title", "where", "message"),
    [
        ("test_wrong[2.0]", "in test_wrong", "GradcheckError: triple: the gradient of row is wrong"),
        ("test_nothing", "in test_nothing", "Failed: returned nothing, not a function and its inputs"),
        ("test_no_inputs", "in test_no_inputs", "Failed: returned a function, not a function and"),
        ("test_axes", "in test_axes", "ValueError: axes: 3 names for x, which has shape (2, 3)"),
        ("test_unnamed", "in test_unnamed", "Failed: the mark gradcheck takes settings by name"),
        ("test_later", "in test_later", WRONG),
        ("TestMarked.test_fixture", "in test_fixture", "GradcheckError: flat: the gradient of width is"),
        ("TestMarked.test_closest", "in test_closest", "GradcheckError: flat: the gradient of own is"),
        ("test_operation", "in checking", WRONG),
        ("test_direct", "in helper", WRONG),
        ("test_chained", "in helper", WRONG),
        ("test_chained", "in test_chained", "RuntimeError: the reason"),
        ("TestUnit.test_unit", "in test_unit", WRONG),
        ("ERROR at setup of test_setup", "in broken", WRONG),
        ("test_todo", "in todo", "NotImplementedError: to be written"),
    ],
)  # fmt: skip
def test_a_failure_shows_the_users_line_and_the_message(homework, title, where, message):
    text = failure(homework, title)
    (line,) = [k for k, x in enumerate(HOMEWORK.splitlines(), 1) if x.endswith(f"# {where}")]
    assert re.search(rf"^> .*# {where}$", text, flags=re.MULTILINE)
    assert re.search(rf"^E +{re.escape(message)}", text, flags=re.MULTILINE)
    assert f"\ntest_homework.py:{line}: {message.partition(':')[0]}\n" in text


def test_the_users_lines_on_the_way_are_shown(homework):
    for title, where in (("test_direct", "in test_direct"), ("test_todo", "in test_todo")):
        assert re.search(rf"^> .*# {where}$", failure(homework, title), flags=re.MULTILINE)


def test_a_failure_shows_the_whole_diagnosis(homework):
    lines = [
        r"worst entry  B \d, T \d",
        "yours .*",
        r"numeric .*\(complex step\)",
        "ratio .*1.5, the same.*",
        "error .*; allowed .*",
    ]
    assert re.search(
        "".join(f"E +{line}\n" for line in lines), failure(homework, "test_wrong[1.0]")
    )


def test_no_line_of_ours_is_shown(homework):
    assert not re.search(r"minimha_(autograd|pytest)", homework.replace("minimha_autograd'", ""))


def test_a_doctest_and_a_file_that_fails_on_import_show_it_too(homework):
    assert f"\n{WRONG}\n  worst entry" in failure(homework, "[doctest] test_homework.double")
    text = failure(homework, "ERROR collecting test_imported.py")
    assert re.search(
        r"test_imported.py:4: in <module>\n.*\nE +GradcheckError: <lambda>: the gradient", text
    )


def test_the_short_summary_tells_the_diagnosis(homework):
    assert "FAILED test_homework.py::test_direct - triple: the gradient of x is wrong\n" in homework
    assert "ERROR test_imported.py - <lambda>: the gradient of x is wrong\n" in homework


def test_what_has_nothing_to_do_with_checks_is_as_ever(homework):
    assert "E       assert 1 == 2\nE        +  where 1 = len([1])" in failure(
        homework, "test_plain_failure"
    )


def test_nobody_elses_logs_hear_of_it(homework):
    assert "test_logs _" not in homework
    assert "minimha.gradcheck" not in homework


def test_what_passes_and_what_fails_is_counted(homework):
    assert re.search(r"= 20 failed, 5 passed, 3 errors in", homework), homework[-80:]


def test_the_summary_has_every_check_the_failures_first(homework):
    lines = summary(homework)
    assert [line[0] for line in lines] == ["wrong"] * 12 + ["ok"] * 4 + ["wrong", "ok"]
    assert lines[1] == [
        "wrong",
        "triple",
        "row",
        "5.0e-01",
        "1.0e-12",
        "test_homework.py::test_wrong[1.0]",
    ]
    assert lines[4][:4] == ["wrong", "flat", "width", "inf"]
    assert lines[4][5:8] == ["test_homework.py::TestMarked::test_fixture", "has", "shape"]
    assert ["wrong", "second", "y", "nan", "1.0e-12", "test_homework.py::test_second"] in lines
    assert lines[16][:4] == ["wrong", "as", "expected", "triple"]
    assert lines[17][-1] == "test_homework.py::test_logs"


def test_a_test_draws_the_same_numbers_every_time(homework, spread):
    """And no other test does, nor the same with other parameters."""
    drawn = re.findall(r"^E +assert (0\.\d+) == 2$", homework, flags=re.MULTILINE)
    assert len(set(drawn)) == len(drawn) == 3
    assert sorted(drawn) == sorted(
        re.findall(r"^E +assert (0\.\d+) == 2$", spread, flags=re.MULTILINE)
    )


def test_the_summary_is_complete_on_several_processes(homework, spread):
    assert "2 workers" in spread
    assert sorted(summary(spread)) == sorted(summary(homework))


@pytest.mark.parametrize("style", ["short", "line", "long", "native"])
def test_every_style_of_traceback_has_the_message_and_none_of_our_lines(styles, style):
    text = styles[style]
    assert " triple: the gradient of row is wrong\n" in text
    assert "worst entry" in text or style == "line"  # where pytest 8 has room for one line
    assert not re.search(r"minimha_(autograd|pytest)\W", text)


def test_all_of_it_is_there_for_who_asks(styles):
    assert re.search(r"minimha_autograd.gradcheck.check\.py:\d+: ", styles["full"])


def test_the_mark_selects(styles):
    assert "test_fixture_unused" in styles["collect"]
    assert "test_wrong[1.0]" in styles["collect"]
    assert "test_direct" not in styles["collect"]
    assert "@pytest.mark.gradcheck(**settings): the test returns" in styles["markers"]


def test_the_fixtures_say_what_they_are(styles):
    for words in (
        "the same numbers in every run",
        "compare the gradients of f",
        "each of those in",
    ):
        assert words in styles["fixtures"]


def test_a_long_summary_ends_with_a_count(runs):
    full, quiet, quieter, without = runs(MANY, "", "-q", "-qq", "--no-summary")
    lines = summary(full)
    assert len(lines) == 21
    assert [line[0] for line in lines[:20]] == ["wrong"] + ["ok"] * 19
    assert re.search(
        r"^… and 12 more, 1 wrong as expected, in \d+\.\d s$", full, flags=re.MULTILINE
    )
    counted = r"^32 gradient checks, 1 wrong, 1 wrong as expected, in \d+\.\d s$"
    assert re.search(counted, quiet, flags=re.MULTILINE)
    for output in (quiet, quieter, without):
        assert "= gradient checks" not in output
    assert "gradient checks" not in quieter + without
    assert "\033" not in full
