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
import logging


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


OPTIONS = (
    "-p no:cacheprovider --doctest-modules --continue-on-collection-errors --strict-markers "
    "-W error test_homework.py test_imported.py"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("homework")
    sources = {
        "test_homework": HOMEWORK, "test_imported": IMPORTED, "test_many": MANY, "conftest": CONFTEST,
        "test_xp": USES_XP, "test_own": OWN_XP,
    }  # fmt: skip
    for name, source in sources.items():
        folder.joinpath(f"{name}.py").write_text(source, encoding="utf-8")
    return folder


RUNS = {
    "homework": OPTIONS,
    **{
        style: f"test_homework.py --tb={style} -k test_wrong" for style in ("short", "line", "long")
    },
    "full": "test_homework.py --full-trace -k test_wrong",
    "collect": "test_homework.py -m gradcheck -q --collect-only",
    "fixtures": "--fixtures test_xp.py",
    "markers": "--markers",
    "many": "test_many.py",
    "quiet": "test_many.py -q",
    "quieter": "test_many.py -qq",
    "no summary": "test_many.py --no-summary",
    "numpy": "test_xp.py",
    "each library once": "test_xp.py -rs --array-backend numpy,numpy,cupy",
    "own xp": "test_own.py --array-backend numpy,torch",
}


@pytest.fixture(scope="module")
def outputs(folder):
    """What pytest prints in each of these runs."""
    runs = [f"-p no:cacheprovider {options}" for options in RUNS.values()]
    done = call(folder, "-c", EACH, *runs)
    assert not done.stderr
    return dict(zip(RUNS, done.stdout.split("#####\n")[1:], strict=True))


@pytest.fixture(scope="module")
def homework(outputs):
    return outputs["homework"]


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


def test_numpy_is_the_default_and_every_library_named_gets_its_turn_once(outputs):
    assert "1 passed" in outputs["numpy"]
    text = outputs["each library once"]
    assert "= 1 passed, 1 skipped in" in text or "= 2 passed in" in text
    assert "skipped" not in text or "the array library cupy is" in text


def test_a_projects_own_xp_is_left_alone(outputs):
    assert "2 passed" in outputs["own xp"]


def test_an_unknown_library_is_one_line(folder):
    done = call(folder, "-m", "pytest", "--array-backend", "numpi")
    assert done.returncode == 4
    assert done.stderr.strip() == (
        "ERROR: --array-backend: 'numpi' is not one of numpy, array-api-strict, torch, cupy"
    )


def test_who_does_not_use_it_loads_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # others may load NumPy
    tmp_path.joinpath("test_plain.py").write_text(PLAIN, encoding="utf-8")
    done = call(tmp_path, "-m", "pytest", "-p", "no:cacheprovider", "-p", "minimha")
    assert "1 passed" in done.stdout, done.stdout
    assert "gradient check" not in done.stdout


WRONG = "GradcheckError: triple: the gradient of x is wrong"


@pytest.mark.parametrize(
    ("title", "where", "message"),
    [
        ("test_wrong[2.0]", "in test_wrong", "GradcheckError: triple: the gradient of row is wrong"),
        ("test_nothing", "in test_nothing", "Failed: returned nothing, not a function and its inputs"),
        ("test_no_inputs", "in test_no_inputs", "Failed: returned a function, not a function and"),
        ("test_axes", "in test_axes", "ValueError: axes: 3 names for x, which has shape (2, 3)"),
        ("test_unnamed", "in test_unnamed", "Failed: the mark gradcheck takes settings by name"),
        ("TestMarked.test_fixture", "in test_fixture", "GradcheckError: flat: the gradient of width is"),
        ("TestMarked.test_closest", "in test_closest", "GradcheckError: flat: the gradient of own is"),
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
    assert not re.search(r"^\S*minimha_(autograd|pytest)\S*\.py:\d+", homework, flags=re.MULTILINE)


def test_a_doctest_and_a_file_that_fails_on_import_show_it_too(homework):
    assert f".{WRONG}\n  worst entry" in failure(homework, "[doctest] test_homework.double")
    text = failure(homework, "ERROR collecting test_imported.py")
    assert re.search(
        r"test_imported.py:4: in <module>\n.*\nE +minimha_autograd.GradcheckError: <lambda>: the gradient",
        text,
    )


def test_the_short_summary_tells_the_diagnosis(homework):
    assert "FAILED test_homework.py::test_direct - triple: the gradient of x is wrong\n" in homework


def test_what_has_nothing_to_do_with_checks_is_as_ever(homework):
    assert "E       assert 1 == 2\nE        +  where 1 = len([1])" in failure(
        homework, "test_plain_failure"
    )


def test_nobody_elses_logs_hear_of_it(homework):
    assert "test_logs _" not in homework
    assert "minimha.gradcheck" not in homework


def test_what_passes_and_what_fails_is_counted(homework):
    assert re.search(r"= 18 failed, 5 passed, 3 errors in", homework), homework[-80:]


def test_the_summary_has_every_check_the_failures_first(homework):
    lines = summary(homework)
    assert [line[0] for line in lines] == ["wrong"] * 10 + ["ok"] * 4 + ["wrong", "ok"]
    assert lines[1] == [
        "wrong",
        "triple",
        "row",
        "5.0e-01",
        "1.0e-12",
        "test_homework.py::test_wrong[1.0]",
    ]
    assert lines[3][:4] == ["wrong", "flat", "width", "inf"]
    assert lines[3][5:8] == ["test_homework.py::TestMarked::test_fixture", "has", "shape"]
    assert ["wrong", "second", "y", "nan", "1.0e-12", "test_homework.py::test_second"] in lines
    assert lines[14][:4] == ["wrong", "as", "expected", "triple"]
    assert lines[15][-1] == "test_homework.py::test_logs"


def drawn(output):
    """The random numbers that the tests of the homework show."""
    return re.findall(r"^E +assert (0\.\d+) == 2$", output, flags=re.MULTILINE)


def test_every_test_and_every_set_of_its_parameters_draws_other_numbers(homework):
    assert len(set(drawn(homework))) == len(drawn(homework)) == 3


@pytest.mark.thorough
def test_several_processes_draw_the_same_numbers_and_the_summary_is_complete(folder, homework):
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    spread = call(folder, "-m", "pytest", "-n2", *OPTIONS.split()).stdout
    assert "2 workers" in spread
    assert sorted(drawn(spread)) == sorted(drawn(homework))
    assert sorted(summary(spread)) == sorted(summary(homework))


@pytest.mark.parametrize("style", ["short", "line", "long"])
def test_every_style_of_traceback_has_the_message_and_none_of_our_lines(outputs, style):
    text = outputs[style]
    assert " triple: the gradient of row is wrong\n" in text
    assert "worst entry" in text or style == "line"  # where pytest 8 has room for one line
    assert not re.search(r"minimha_(autograd|pytest)\W", text)


def test_all_of_it_is_there_for_who_asks(outputs):
    assert re.search(r"minimha_autograd.gradcheck.check\.py:\d+: ", outputs["full"])


def test_the_mark_selects(outputs):
    assert "test_fixture_unused" in outputs["collect"]
    assert "test_wrong[1.0]" in outputs["collect"]
    assert "test_direct" not in outputs["collect"]
    assert "@pytest.mark.gradcheck(**settings): the test returns" in outputs["markers"]


def test_the_fixtures_say_what_they_are(outputs):
    for words in (
        "the same numbers in every run",
        "compare the gradients of f",
        "each of those in",
    ):
        assert words in outputs["fixtures"]


def test_a_long_summary_ends_with_a_count(outputs):
    full, quiet, quieter, without = (outputs[k] for k in ("many", "quiet", "quieter", "no summary"))
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
