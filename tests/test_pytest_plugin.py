"""The plugin, in a student's folder."""

import os
import re
import subprocess
import sys

import pytest

FILES = {}
"""The student's files, by name."""

FILES["test_nothing_loaded"] = """
import sys

def test_nothing_is_loaded(pytestconfig):
    assert pytestconfig.pluginmanager.has_plugin("minimha")
    heavy = {"minimha", "minimha_autograd", "numpy", "numba", "matplotlib", "rich"}
    assert not heavy & set(sys.modules)
"""

FILES["test_xp"] = """
def test_it(xp):
    assert xp.sum(xp.ones(3)) == 3
"""

FILES["test_engine_alone"] = """
import sys
import numpy as np

sys.modules["minimha"] = None  # as if it were not installed

def test_right(gradcheck):
    gradcheck(lambda x: (x, lambda dy: (dy,)), np.ones(3))

def test_wrong(gradcheck):
    gradcheck(lambda x: (x, lambda dy: (2 * dy,)), np.ones(3))
"""

FILES["test_own_xp"] = """
import pytest

@pytest.fixture(params=[1, 2])
def xp(request):
    return request.param

def test_own(xp):
    assert xp in (1, 2)
"""

FILES["own_conftest"] = """
import pytest

def pytest_addoption(parser):
    parser.addoption("--array-backend")

@pytest.fixture
def rng():
    return "ours"
"""

FILES["own_test_own"] = """
def test_own(pytestconfig, rng):
    assert rng == "ours"
    assert pytestconfig.getoption("--array-backend") == "mine"

def test_ours(xp):
    assert xp.__name__ == "numpy"
"""

FILES["test_imported"] = """
import numpy as np
import minimha as mh

mh.gradcheck(lambda x: (x, lambda dy: (2 * dy,)), np.ones(3))
"""

FILES["test_many"] = """
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

FILES["test_homework"] = '''
import logging

import numpy as np
import pytest

import minimha as mh

def double(x):
    """Twice.

    >>> mh.gradcheck(triple, np.ones(3))
    """
    return 2 * x, lambda dy: (2 * dy,)

def triple(x):
    return 2 * x, lambda dy: (3 * dy,)

def flat(x):
    return 2 * x, lambda dy: (dy.sum(),)

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

@pytest.mark.parametrize("k", [1, 2])
def test_numbers(rng, k):
    assert rng.random() == 2

def test_other_numbers(rng):
    assert rng.random() == 2

def test_logs(caplog):
    caplog.set_level(logging.DEBUG)
    helper(double, np.ones(3))
    logging.getLogger("mine").debug("mine")
    assert caplog.messages == ["mine"]
'''

EACH = "import sys, pytest\nfor options in sys.argv[1:]:\n    print('#####', flush=True)\n    pytest.main(options.split())"
"""Several runs of pytest in one process, which imports everything only once."""

OPTIONS = (
    "--doctest-modules --continue-on-collection-errors --strict-markers -W error "
    "test_homework.py test_imported.py"
)
RUNS = {
    "homework": OPTIONS,
    "short": "test_homework.py --tb=short -k test_wrong",
    "line": "test_homework.py --tb=line -k test_wrong",
    "full": "test_homework.py --full-trace -k test_wrong",
    "marked": "test_homework.py -m gradcheck -q --collect-only",
    "many": "test_many.py",
    "quiet": "test_many.py -q",
    "quieter": "test_many.py -qq",
    "no summary": "test_many.py --no-summary",
    "numpy": "test_xp.py",
    "each library once": "test_xp.py --array-backend numpy,numpy,cupy",
    "own xp": "test_own_xp.py --array-backend numpy,torch",
}


def call(folder, *command):
    dropped = ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS")
    environment = {key: value for key, value in os.environ.items() if key not in dropped}
    environment |= {"COLUMNS": "100", "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    settings = {"cwd": folder, "env": environment, "capture_output": True, "encoding": "utf-8"}
    return subprocess.run([sys.executable, *command], check=False, **settings)


def call_pytest(folder, options):
    return call(folder, "-m", "pytest", "-p", "no:cacheprovider", *options.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("homework")
    for name, source in FILES.items():
        folder.joinpath(f"{name}.py").write_text(source, encoding="utf-8")
    return folder


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


def found(pattern, text):
    return re.search(pattern, text, flags=re.MULTILINE)


def failure(output, title):
    """The part of the output under the title of a failure."""
    rest = output[found(rf"^_+ {re.escape(title)} _+$", output).end() :]
    return rest[: found(r"^(?:_{3,}|={3,}) .* (?:_{3,}|={3,})$", rest).start()]


def summary(output):
    """The lines of the summary of all checks, without their times."""
    (part,) = re.findall(r"^=+ gradient checks =+\n(.*?)^=", output, flags=re.MULTILINE | re.DOTALL)
    return [re.sub(r" \d+\.\d\d s ", " ", line).split() for line in part.splitlines()[1:]]


def test_numpy_is_the_default_and_each_named_library_runs_once(outputs):
    assert "1 passed" in outputs["numpy"]
    text = outputs["each library once"]
    assert "= 1 passed, 1 skipped in" in text or "= 2 passed in" in text
    assert "skipped" not in text or "Skipped: the array library cupy is" in text


def test_without_minimha_the_plugin_checks_with_the_engine_alone(folder):
    output = call_pytest(folder, "test_engine_alone.py").stdout
    assert "GradcheckError" in output
    assert "looks like" not in output
    assert "1 failed, 1 passed" in output


def test_a_project_may_define_its_own_xp_fixture(outputs):
    assert "2 passed" in outputs["own xp"]


def test_a_project_may_have_an_option_and_fixtures_of_these_names(tmp_path):
    for name in ("conftest", "test_own"):
        tmp_path.joinpath(f"{name}.py").write_text(FILES[f"own_{name}"], encoding="utf-8")
    done = call_pytest(tmp_path, "--array-backend mine")
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_an_unknown_library_is_reported_in_one_line(folder):
    done = call_pytest(folder, "--array-backend numpi")
    assert done.returncode == 4
    assert done.stderr.strip() == (
        "ERROR: --array-backend: 'numpi' is not one of numpy, array-api-strict, torch, cupy"
    )


def test_a_project_that_does_not_use_the_plugin_loads_nothing(folder, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # others may load NumPy
    done = call_pytest(folder, "-p minimha test_nothing_loaded.py")
    assert "1 passed" in done.stdout, done.stdout
    assert "gradient check" not in done.stdout


WRONG = "GradcheckError: triple: the gradient of x is wrong"


@pytest.mark.parametrize(("title", "where", "message"), [
    ("test_wrong[2.0]", "in test_wrong", "GradcheckError: triple: the gradient of row is wrong"),
    ("test_nothing", "in test_nothing", "Failed: returned nothing, not a function and its inputs"),
    ("test_no_inputs", "in test_no_inputs", "Failed: returned a function, not a function and"),
    ("test_unnamed", "in test_unnamed", "Failed: the mark gradcheck takes settings by name"),
    ("TestMarked.test_fixture", "in test_fixture", "GradcheckError: flat: the gradient of width is"),
    ("TestMarked.test_closest", "in test_closest", "GradcheckError: flat: the gradient of own is"),
    ("test_chained", "in helper", WRONG),
    ("test_chained", "in test_chained", "RuntimeError: the reason"),
    ("ERROR at setup of test_setup", "in broken", WRONG),
    ("test_todo", "in todo", "NotImplementedError: to be written"),
])  # fmt: skip
def test_a_failure_shows_the_users_line_and_the_message(homework, title, where, message):
    text, source = failure(homework, title), FILES["test_homework"].splitlines()
    (line,) = [k for k, x in enumerate(source, 1) if x.endswith(f"# {where}")]
    assert found(rf"^> .*# {where}$", text)
    assert found(rf"^E +{re.escape(message)}", text)
    assert f"\ntest_homework.py:{line}: {message.partition(':')[0]}\n" in text


def test_a_failure_shows_the_users_calls_and_the_whole_diagnosis_but_no_line_of_the_plugin(
    homework,
):
    assert found(r"^> .*# in test_todo$", failure(homework, "test_todo"))
    place, ratio = r"worst entry  \[\d, \d\]  \(B, T\)", "ratio .*1.5, the same"
    facts = place, "yours", "numeric", ratio, "error"
    assert found("".join(f"E +{fact}.*\n" for fact in facts), failure(homework, "test_wrong[1.0]"))
    assert not found(r"^\S*minimha_(autograd|pytest)\S*\.py:\d+", homework)
    assert "FAILED test_homework.py::test_wrong[2.0] - triple: the gradient of row is" in homework


def test_a_doctest_and_a_file_that_fails_on_import_show_the_message_too(homework):
    assert f".{WRONG}\n  worst entry" in failure(homework, "[doctest] test_homework.double")
    text = failure(homework, "ERROR collecting test_imported.py")
    assert found(
        r"^test_imported.py:5: in <module>\n.*\nE +minimha_autograd.GradcheckError: ", text
    )


@pytest.mark.parametrize("style", ["short", "line"])
def test_every_traceback_style_shows_the_message_and_no_line_of_the_plugin(outputs, style):
    text = outputs[style]
    assert " triple: the gradient of row is wrong\n" in text
    assert "worst entry" in text or style == "line"  # pytest 8 has room for only one line
    assert not re.search(r"minimha_(autograd|pytest)\W", text)
    assert re.search(r"minimha_autograd.gradcheck.check\.py:\d+: ", outputs["full"])


def test_no_log_records_appear_in_other_tests(homework):
    assert "test_logs _" not in homework
    assert "minimha.gradcheck" not in homework


def test_the_mark_selects_gradient_checks(outputs):
    assert "test_fixture" in outputs["marked"]
    assert "test_wrong[1.0]" in outputs["marked"]
    assert "test_chained" not in outputs["marked"]


def test_the_summary_lists_every_check_with_failures_first(homework):
    assert "= 13 failed, 4 passed, 3 errors in" in homework
    lines = summary(homework)
    assert [line[0] for line in lines] == ["wrong"] * 7 + ["ok"] * 4 + ["wrong", "ok"]
    test = "test_homework.py::test_wrong[1.0]"
    assert lines[1] == ["wrong", "triple", "row", "5.0e-01", "1.0e-12", test]
    assert lines[3][:4] == ["wrong", "flat", "width", "inf"]
    assert lines[3][5:8] == ["test_homework.py::TestMarked::test_fixture", "has", "shape"]
    assert lines[11][:4] == ["wrong", "as", "expected", "triple"]
    assert lines[12][-1] == "test_homework.py::test_logs"


def test_a_long_summary_ends_with_a_count(outputs):
    full, quiet, quieter, without = (outputs[k] for k in ("many", "quiet", "quieter", "no summary"))
    lines = summary(full)
    assert [line[0] for line in lines] == ["wrong"] + ["ok"] * 19 + ["…"]
    assert found(r"^… and 12 more, 1 wrong as expected, in \d+\.\d s$", full)
    assert found(r"^32 gradient checks, 1 wrong, 1 wrong as expected, in \d+\.\d s$", quiet)
    assert "= gradient checks" not in quiet
    assert "gradient checks" not in quieter + without


def drawn(output):
    """The random numbers that the tests of the homework show."""
    return re.findall(r"^E +assert (0\.\d+) == 2$", output, flags=re.MULTILINE)


def test_each_test_and_parameter_set_draws_different_numbers(homework):
    assert len(set(drawn(homework))) == len(drawn(homework)) == 3


@pytest.mark.thorough
def test_several_processes_draw_the_same_numbers_and_the_summary_is_complete(folder, homework):
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    spread = call_pytest(folder, f"-n2 {OPTIONS}").stdout
    assert "2 workers" in spread
    assert sorted(drawn(spread)) == sorted(drawn(homework))
    assert sorted(summary(spread)) == sorted(summary(homework))
