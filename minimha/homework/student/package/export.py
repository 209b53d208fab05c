"""`minimha homework export`: writes the student's functions as a package."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from ...tasks.catalogue import course
from .. import student_files, student_functions
from ..answers import ADAPTERS, decoded, is_stub, mark

_TEMPLATES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "train.py": "train.py",
    "model.py": "{package}/model.py",
    "test_package.py": "tests/test_package.py",
}
NEEDED = (
    "matmul", "scores", "causal", "masked_softmax", "cross_entropy", "layer_norm", "adamw_step",
)  # fmt: skip
"""The tasks whose functions model.py and train.py call."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export` to the parser."""
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="a new folder; the package gets its name"
    )


def export_package(options: Any) -> int:
    """Write the student's finished functions as a package into the folder `options.folder`, and
    print how to install and test it. `options.place` is where the student's files are. Returns 0,
    the exit status of the command.

    Raises ValueError if the folder is not empty, if its name cannot be that of a package, or if no
    function is finished; OSError if the package cannot be written.
    """
    folder, package = options.folder, options.folder.resolve().name
    if not package.isidentifier() or package in sys.stdlib_module_names | {"minimha"}:
        raise ValueError(f"{package} cannot be the name of a package: try my_attention")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: name a new folder")
    answers = student_functions.answered(options.place)
    ready = {
        name: found
        for name, found in answers.items()
        if not is_stub(found.source) and mark(decoded(found.source[:1000])) != ADAPTERS
    }
    if not ready:
        raise ValueError("none of your functions is finished; see minimha homework progress")
    by_chapter: dict[str, list[str]] = {}
    for name in ready:
        chapter = f"ch{student_files.chapter(course()[name].chapter)}"
        by_chapter.setdefault(re.sub(r"\W", "_", chapter), []).append(name)
    for chapter, names in by_chapter.items():
        inner = folder / package / chapter
        for name in names:
            _write(inner / f"{name}.py", decoded(ready[name].source))
        _write(inner / "__init__.py", "".join(f"from .{x} import {x} as {x}\n" for x in names))
    imports = [f"from .{x} import {', '.join(names)}\n" for x, names in by_chapter.items()]
    _write(folder / package / "__init__.py", "".join([*imports, f"\n__all__ = {list(ready)}\n"]))
    templates = Path(__file__).parent / "templates"
    for template, path in _TEMPLATES.items():
        text = (templates / f"{template}.txt").read_text(encoding="utf-8")
        _write(folder / path.format(package=package), text.replace("PACKAGE", package))
    missing = [name for name in NEEDED if name not in ready]
    lines = [f"{folder} contains the package {package}, with {len(ready)} of your functions"]
    if missing:
        lines.append(f"model.py and train.py also need {', '.join(missing)}")
    lines += [f"cd {folder}", 'pip install --editable ".[test]"', "pytest", "python train.py"]
    sys.stdout.write("\n  ".join(lines) + "\n")
    return 0


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
