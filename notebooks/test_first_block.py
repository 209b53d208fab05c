"""The README's first block, typed in an empty home folder, leads into every chapter, and each runs
from top to bottom as students get it.

Slow, and needs the network: pip makes the environment for a copy of this clone. CI takes the
chapters for the site from build/chapters, where they are left as they ran.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest
from make import FOLDER, SOURCES, exercises

CLONE = FOLDER.parent
EXECUTED = CLONE / "build" / "chapters"
BLOCK = re.search(r"```sh\n(.*?)```", (CLONE / "README.md").read_text(encoding="utf-8"), re.S)[1]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the block is for Linux's shell")


@pytest.fixture
def usual():
    """The folder of a Python as its makers ship it."""
    return Path(sys.base_prefix, "bin")


@pytest.fixture
def without_ensurepip(tmp_path):
    """The folder of a Python without ensurepip, as on a Debian without the package python3-venv."""
    library = f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
    for folder, left_out in (("lib", Path(library).name), (library, "ensurepip")):
        (tmp_path / "python" / folder).mkdir(parents=True)
        for entry in Path(sys.base_prefix, folder).iterdir():
            if entry.name != left_out:
                (tmp_path / "python" / folder / entry.name).symlink_to(entry)
    python = tmp_path / "python" / "bin" / "python3"
    python.parent.mkdir()
    shutil.copy(sys._base_executable, python)
    assert subprocess.run([python, "-m", "venv", tmp_path / "x"], check=False).returncode == 1
    return python.parent


@pytest.mark.parametrize("python", ["usual", "without_ensurepip"])
def test_the_first_block_leads_into_every_chapter(python, tmp_path, request):
    home = tmp_path / "home"
    leave = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "minimha-notebooks")
    clone = shutil.copytree(CLONE, home / "minimha", ignore=leave)
    path = f"{request.getfixturevalue(python)}:/usr/bin:/bin"

    def typed(text):
        env = {"HOME": str(home), "LANG": "C.UTF-8", "PATH": path}
        command = ["bash", "-euo", "pipefail", "-c", text]
        return subprocess.Popen(command, cwd=clone, env=env, start_new_session=True)

    jupyter = typed(BLOCK)
    try:
        assert "minimha-notebooks/01_arrays.ipynb" in _opened(jupyter, home)
    finally:
        os.killpg(jupyter.pid, signal.SIGTERM)
        jupyter.wait()

    folder = clone / "minimha-notebooks"
    chapters = sorted(folder.glob("*.ipynb"))
    assert [chapter.stem for chapter in chapters] == [source.stem for source in SOURCES]
    cell = nbformat.v4.new_code_cell("!minimha homework hint softmax")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), folder / "hint.ipynb")
    those = "*.ipynb" if python == "usual" else "{01_arrays,hint}.ipynb"
    execute = f"jupyter execute --inplace minimha-notebooks/{those}"  # stops where a cell fails
    offline = "PIP_NO_INDEX=1"  # the block has installed all that a chapter imports
    text = f"source .venv/bin/activate; export {offline}; {execute} 2> errors ||"
    again = f"grep 'Address already in use' errors && {execute}"  # a port taken meanwhile
    assert typed(f"{text} {{ cat errors; {again}; }}").wait(timeout=3600) == 0
    for chapter, source in zip(chapters, SOURCES, strict=True):
        if python == "usual" or source is SOURCES[0]:
            _has_run_as_students_get_it(chapter, source)
    if python == "usual":
        EXECUTED.mkdir(parents=True, exist_ok=True)
        for chapter in chapters:
            shutil.copy(chapter, EXECUTED)
    assert "softmax, hint 1 of 3" in (folder / "hint.ipynb").read_text(encoding="utf-8")

    homework = "minimha homework start softmax && pytest --pyargs minimha.homework -k softmax"
    assert typed(f"source .venv/bin/activate && {homework}").wait(timeout=600) == 0


def _has_run_as_students_get_it(chapter, source):
    cells = nbformat.read(chapter, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    text = "".join(output.get("text", "") for output in outputs)
    for name in exercises(source):
        assert re.search(f"^to do +{name}: ", text, re.MULTILINE)
    assert any({"image/png", "image/svg+xml"} & set(o.get("data", {})) for o in outputs)


def _opened(jupyter, home):
    """The address that Jupyter tells the browser to open, once its server answers there."""
    link = None
    while not link:  # the page exists a moment before its text does
        assert jupyter.poll() is None
        time.sleep(0.1)
        pages = home.glob(".local/share/jupyter/runtime/*-open.html")
        text = "".join(page.read_text(encoding="utf-8") for page in pages)
        link = re.search(r'href="(http[^"]*)"', text)
    while True:
        assert jupyter.poll() is None
        try:
            with urllib.request.urlopen(link[1]) as answer:
                assert answer.status == 200
            return link[1]
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:  # Jupyter writes the page before its server listens
            time.sleep(0.1)
