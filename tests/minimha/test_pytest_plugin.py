"""The plugin, in a folder of a student's own."""

import subprocess
import sys

import pytest

USES_XP = "def test_it(xp):\n    assert xp.sum(xp.ones(3)) == 3\n"
OWN_XP = "import pytest\n\n@pytest.fixture(params=[1, 2])\ndef xp(request):\n    return request.param\n\ndef test_own(xp):\n    assert xp in (1, 2)\n"


@pytest.fixture
def run(tmp_path):
    def run(source, *options):
        tmp_path.joinpath("test_homework.py").write_text(source)
        command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", *options]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


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
