"""Build the course for a browser: JupyterLite, the chapters, and a wheel of this clone.

    python notebooks/browser.py OUT [--pyodide FOLDER]

OUT is a folder for a web server; OUT/lab/index.html?path=05_attention.ipynb opens a chapter. Python
runs in the browser, as Pyodide, which comes from its own servers. With --pyodide, it comes from the
site itself, with bytecode: FOLDER has pyodide.mjs, pyodide-lock.json and the wheels.

Needs pip install ".[browser]". Downloads the wheels in OTHERS, unless FOLDER has them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import playwright
from packaging.utils import canonicalize_name

from minimha.training import data

FOLDER = Path(__file__).parent
OTHERS = ["array-api-compat", "array-api-strict", "comm"]
"""What minimha and the kernel need and Pyodide lacks."""

IN_NODE = """
const [pyodide, folder, program] = process.argv.slice(1);
const { loadPyodide } = await import(`${pyodide}/pyodide.mjs`);
const python = await loadPyodide();
python.mountNodeFS("/folder", folder);
python.runPython(program);
"""

SETTINGS = {
    "appName": "minimha",
    "disabledExtensions": ["jupyterlab-jupytext"],  # of the environment that builds
    "enableMemoryStorage": True,
    "exposeAppInBrowser": True,  # for tests
    "workspacesStorageDrivers": ["memoryStorageDriver"],  # so it opens only what was asked for
}


def build(out: Path, pyodide: Path | None) -> None:
    """Write the site to a folder. An earlier site there is deleted first."""
    if out.exists() and any(out.iterdir()) and not (out / "jupyter-lite.json").exists():
        sys.exit(f"{out} has other files in it: name a new or an empty folder")
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        _write_contents(work / "files")
        _write_wheels(work / "pypi", pyodide)
        if pyodide:
            _add_bytecode(pyodide, work / "pypi")
            _copy_pyodide(pyodide, work / "static" / "pyodide")
        (work / "jupyter-lite.json").write_text(json.dumps({"jupyter-config-data": SETTINGS}))
        lite = [sys.executable, "-m", "jupyter", "lite", "build", "--apps", "lab"]
        subprocess.run([*lite, "--contents", "files", "--output-dir", out], cwd=work, check=True)


def _write_contents(folder: Path) -> None:
    """The chapters, and the text that chapter 09 trains on, which Pyodide comes without."""
    folder.mkdir()
    for chapter in FOLDER.glob("[0-9]*.ipynb"):
        shutil.copy(chapter, folder)
    (folder / data.REFERENCE).write_text(data.python_reference(), encoding="utf-8")


def _write_wheels(folder: Path, pyodide: Path | None) -> None:
    """A wheel of this clone and the OTHERS, where JupyterLite looks for wheels."""
    python = [sys.executable, "-m"]
    subprocess.run(
        [*python, "hatchling", "build", "-t", "wheel", "-d", folder], cwd=FOLDER.parent, check=True
    )
    for name in OTHERS:
        found = sorted(pyodide.glob(f"{name.replace('-', '_')}-*.whl")) if pyodide else []
        if found:
            shutil.copy(found[-1], folder)
        else:
            subprocess.run(
                [*python, "pip", "download", "--quiet", "--no-deps", "-d", folder, name], check=True
            )


def _copy_pyodide(source: Path, folder: Path) -> None:
    """Copy Pyodide, add bytecode, and write the list of packages anew: those that are there."""
    shutil.copytree(source, folder)
    _add_bytecode(source, folder)
    path = folder / "pyodide-lock.json"
    lock = json.loads(path.read_text(encoding="utf-8"))
    there = {
        name: entry
        for name, entry in lock["packages"].items()
        if (folder / entry["file_name"]).exists()
    }
    for entry in there.values():
        wheel = (folder / entry["file_name"]).read_bytes()
        entry["sha256"] = hashlib.sha256(wheel).hexdigest()
        entry["depends"] = [name for name in entry["depends"] if canonicalize_name(name) in there]
    path.write_text(json.dumps(lock | {"packages": there}), encoding="utf-8")


def _add_bytecode(pyodide: Path, folder: Path) -> None:
    """Run bytecode.py on a folder: in Pyodide, which runs in the Node that Playwright brings."""
    node = [Path(playwright.__file__).parent / "driver" / "node", "--input-type=module", "--eval"]
    program = FOLDER.joinpath("bytecode.py").read_text(encoding="utf-8")
    subprocess.run([*node, IN_NODE, pyodide.as_uri(), folder, program], check=True)


def main() -> None:
    """Read the arguments, and build."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to write")
    parser.add_argument("--pyodide", type=Path, metavar="FOLDER", help="Pyodide and its wheels")
    args = parser.parse_args()
    build(args.out.resolve(), args.pyodide and args.pyodide.resolve())


if __name__ == "__main__":
    main()
