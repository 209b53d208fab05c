"""Collect Pyodide and the wheels that the chapters need in a folder, for notebooks/browser.py.

    python notebooks/local_pyodide.py FOLDER

Pyodide and NumPy and Matplotlib for WebAssembly are on no package index by themselves, but the
wheel of open-webui carries them; pip downloads the rest.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename

SOURCE = "open-webui==0.12.4"
ROOTS = ["ipython", "jedi", "matplotlib", "micropip", "pytest", "rich"]
"""What the kernel and minimha import; their own requirements follow."""


def download(requirement: str, folder: str | Path, python: str) -> int:
    """Download a wheel for this version of Python to a folder. Returns pip's exit code."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
    wheel = ["--only-binary=:all:", "--python-version", python]
    return subprocess.run([*pip, *wheel, requirement], check=False).returncode


def unpack(folder: Path) -> bool:
    """Write Pyodide to a folder. Returns whether its source could be downloaded."""
    with tempfile.TemporaryDirectory() as temporary:
        if download(SOURCE, temporary, "3.12"):
            return False
        (wheel,) = Path(temporary).iterdir()
        with zipfile.ZipFile(wheel) as archive:
            files = {
                name.rpartition("/")[2]: name
                for name in archive.namelist()
                if "/frontend/pyodide/" in name and not name.endswith("/")
            }
            lock = json.loads(archive.read(files["pyodide-lock.json"]))
            needed = [entry["file_name"] for entry in required(lock["packages"]).values()]
            for file, name in files.items():
                if file in needed or not file.endswith(".whl"):
                    (folder / file).write_bytes(archive.read(name))
    return True


def required(packages: dict[str, dict]) -> dict[str, dict]:
    """The entries of the ROOTS and of all that they depend on, by name."""
    found, names = {}, list(ROOTS)
    while names:
        name = canonicalize_name(names.pop())
        if name in packages and name not in found:
            found[name] = packages[name]
            names += packages[name]["depends"]
    return found


def main(folder: Path) -> int:
    """Fill the folder. Returns 1 if Pyodide cannot be downloaded."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "pyodide.mjs").exists() and not unpack(folder):
        return 1
    lock = json.loads((folder / "pyodide-lock.json").read_text(encoding="utf-8"))
    for entry in required(lock["packages"]).values():
        file = entry["file_name"]
        if not (folder / file).exists() and file.endswith("-none-any.whl"):
            name, version, *_ = parse_wheel_filename(file)
            download(f"{name}=={version}", folder, "3.14")  # one that is not there is not needed
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
