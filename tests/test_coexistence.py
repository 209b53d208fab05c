"""minimha can be installed next to the package `autograd` of HIPS and uninstalled without harm."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

USE_THEIRS = "import autograd, autograd.numpy as np; assert autograd.grad(np.tanh)(0.0) == 1.0"
USE_BOTH = f"""{USE_THEIRS}
import minimha as mh, minimha_autograd
x = mh.Tensor([0.5, -1.0], requires_grad=True)
mh.ops.tanh(x).sum().backward()
expected = autograd.grad(lambda v: np.sum(np.tanh(v)))(np.array([0.5, -1.0]))
assert np.allclose(x.grad, expected, rtol=1e-15)
assert {str(ROOT / "autograd")!r} not in autograd.__file__
"""


@pytest.fixture
def environment(tmp_path):
    """An empty virtual environment that finds the dependencies of both packages in this one.

    A .pth file adds this environment's folder. Python does not read .pth files in that folder, so an
    editable minimha there stays invisible.
    """
    home = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    site = _run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout
    needs = sysconfig.get_path("purelib")
    Path(site.strip(), "needs.pth").write_text(needs, encoding="utf-8")
    return python


def _run(python, *arguments):
    """Run Python in a folder from which neither package can be imported by chance."""
    home = Path(python).parents[1]
    return subprocess.run(
        [python, *arguments], cwd=home, capture_output=True, text=True, check=False
    )


def _pip(python, *arguments):
    for runner in (sys.executable, sys._base_executable):
        if _run(runner, "-c", "import pip").returncode == 0:
            return _run(
                runner, "-m", "pip", "--disable-pip-version-check", "--python", python, *arguments
            )
    pytest.skip("no pip is installed")


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["wheel", "editable"])
def test_both_packages_work_together_and_uninstalling_ours_keeps_theirs(mode, environment):
    theirs = _pip(environment, "install", "--no-deps", "autograd")
    if theirs.returncode:
        stop, why = pytest.fail if os.environ.get("CI") else pytest.skip, theirs.stderr.strip()
        stop(f"HIPS autograd cannot be installed here: {why.splitlines()[-1]}")
    options = ["--editable", str(ROOT)] if mode == "editable" else [str(ROOT)]
    ours = _pip(environment, "install", "--no-deps", "--force-reinstall", *options)
    assert ours.returncode == 0, ours.stderr
    used = _run(environment, "-c", USE_BOTH)
    assert used.returncode == 0, used.stderr
    gone = _pip(environment, "uninstall", "--yes", "minimha")
    assert "Successfully uninstalled minimha" in gone.stdout, gone.stderr
    assert _run(environment, "-c", USE_THEIRS).returncode == 0
    assert "No module named 'minimha'" in _run(environment, "-c", "import minimha").stderr
