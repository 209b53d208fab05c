"""Finds out why a file that passes its checks at home cannot be graded."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np

from ...student.answers import imports, modules, packages, source


def refused(path: Path) -> str:
    """Return the reason why a file cannot be graded although it runs here; "" if none is found. The
    function looks only at the length of the file, its imports, and those of the student's own
    modules."""
    try:
        data = source(path)
        own = modules(data, path.parent)
    except (OSError, ValueError) as error:
        return f"it cannot be graded: {error}"
    inside = {file.removesuffix(".py").replace("/", "."): text for file, text in own.items()}
    known = {"numpy"} | {package for name in inside for package in packages(name)}
    wanted = list(imports(data))
    for name, text in inside.items():
        wanted += imports(text, name.rpartition(".")[0])
    foreign = {x for module, names in wanted for x in _named(module, names)} - known
    if not foreign:  # do not start a process to learn what it may import
        return ""
    lost = foreign - _importable()
    if not lost:
        return ""
    return f"where homework is graded, it cannot import {', '.join(sorted(lost))}"


def _named(module: str, names: list[str]) -> list[str]:
    """Return the full names that must be importable for `from module import names` to succeed or,
    if there are no names, `import module`. For most modules, the list is just `module`.

    For a module of minimha, it has each name in full, such as minimha.parallel.run, since a
    submission gets only some names of these modules. For numpy, it has numpy and those names that
    are submodules, such as numpy.typing, which NumPy may not have imported yet.
    """
    full = [f"{module}.{name}" for name in names if name != "*"]
    if module.startswith("minimha.") and names:
        return full
    if module == "numpy":
        return [module, *filter(importlib.util.find_spec, full)]
    return [module]


@functools.cache
def _importable() -> frozenset[str]:
    """Return the full names that a submission may import: modules, such as math, and those names
    that it gets from minimha's modules, such as minimha.parallel.run."""
    code = (
        "import sys; sys.path += sys.argv[1:]\n"
        "import worker; worker.prepare(); print(*worker.importable())"
    )
    folders = Path(np.__file__).parents[1], Path(__file__).parent
    command = [sys.executable, "-P", "-s", "-S", "-B", "-c", code, *map(str, folders)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return frozenset(found.stdout.split())
