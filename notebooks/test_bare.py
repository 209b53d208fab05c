"""A chapter opened where minimha is not installed installs it, and goes on without a restart.

The environment is like Colab's, as far as it matters: an older NumPy, Numba and the autograd of
HIPS. Slow, and needs the network: pip makes the environment, and takes minimha from a wheel made
here.
"""

import json
import os
import subprocess
import sys
import venv

import nbclient
import nbformat
import pytest
from make import FOLDER

WAS = "import numpy\nbefore = numpy.__version__, numpy.__file__"
IS = """
import importlib.metadata
import minimha
assert "site-packages" in minimha.__file__, minimha.__file__
assert (numpy.__version__, numpy.__file__) == before
assert importlib.metadata.version("numpy") == numpy.__version__
import autograd
assert autograd.__file__ and "minimha" not in autograd.__file__
print("numpy", numpy.__version__)
from minimha import course
print(*[path.name for path in course.notebooks()])
"""


def pip(*arguments):
    """The pip that this environment was made with: it need not have one of its own."""
    subprocess.run([sys._base_executable, "-m", "pip", *map(str, arguments)], check=True)


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """The name of a kernel in a bare environment, whose pip finds a wheel of this clone."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path / "wheels", FOLDER.parent)
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    there = "pip", "numpy==2.1.*", "numba", "autograd", "ipykernel"
    pip("--python", python, "install", "--quiet", *there)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    kernel = tmp_path / "kernels" / "bare" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    command = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": command, "display_name": "bare", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    return "bare"


def test_a_chapter_installs_missing_packages(bare, tmp_path):
    chapter = nbformat.read(FOLDER / "05_attention.ipynb", as_version=4)
    chapter.cells.insert(0, nbformat.v4.new_code_cell(WAS))
    chapter.cells.append(nbformat.v4.new_code_cell(IS))
    nbclient.NotebookClient(
        chapter,
        timeout=1200,
        startup_timeout=600,
        kernel_name=bare,
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    code = [cell for cell in chapter.cells if cell.cell_type == "code"]
    for cell in code[:2]:
        print(cell.outputs)
    printed = "".join(output.text for output in code[-1].outputs)  # it comes in pieces
    version, carried = printed.splitlines()
    assert version.startswith("numpy 2.1.")
    assert carried.split() == sorted(path.name for path in FOLDER.glob("*.ipynb"))
