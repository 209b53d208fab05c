"""Make the student notebooks from their sources in notebooks/source.

    python notebooks/make.py            write notebooks/NN_name.ipynb
    python notebooks/make.py --check    say which are not in step, and exit with 1 if any is not

A source is MyST Markdown with {code-cell}s. In a code cell

    # setup                  becomes the cell that every chapter starts with;
    # setup: package …       the same, which installs those packages too where they are missing
    # exercise: softmax      becomes the task of that name in minimha.homework, and its check, below
                             the line by which grading finds it
    # BEGIN SOLUTION …       to # END SOLUTION is taken out, as in a task

Needs jupytext: pip install ".[test]".
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat

from minimha import homework
from minimha.homework import solutions, student_files

FOLDER = Path(__file__).parent
SOURCES = sorted((FOLDER / "source").glob("*.md"))
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
SETUP = """\
try:
    import minimha as mh{imports}
except ImportError:  # as on Colab
    %pip install --quiet minimha{packages}
    import minimha as mh{imports}
import numpy as np

%matplotlib inline
"""


def notebook(source: Path, *, solved: bool = False) -> Any:
    """A chapter as a notebook: with stubs, or with its solutions."""
    read = jupytext.read(source, fmt="md:myst")
    cells = []
    for k, cell in enumerate(read.cells):
        if cell.cell_type == "code":
            new = nbformat.v4.new_code_cell(_code(cell.source, solved), id=f"cell-{k:02}")
        else:
            new = nbformat.v4.new_markdown_cell(cell.source, id=f"cell-{k:02}")
        cells.append(new)
    return nbformat.v4.new_notebook(cells=cells, metadata=METADATA)


def _code(text: str, solved: bool) -> str:
    """The text of a code cell."""
    if found := re.fullmatch(r"# setup(?:: (.*))?\s*", text):
        packages = found[1].split() if found[1] else []
        imports = "".join(f"\n    import {name.replace('-', '_')}" for name in packages)
        return SETUP.format(imports=imports, packages="".join(f" {p}" for p in packages)).rstrip()
    if found := re.fullmatch(r"# exercise: (\w+)\s*", text):
        code = homework.course()[found[1]].code(solved=solved)
        return student_files.cell(found[1], code)
    return (solutions.solved(text) if solved else solutions.stubbed(text)).rstrip()


def written(source: Path) -> str:
    """The text of the student notebook of a source."""
    return nbformat.writes(notebook(source)) + "\n"


def main() -> int:
    """Write them, or check that they are in step."""
    behind = []
    for source in SOURCES:
        path, text = FOLDER / f"{source.stem}.ipynb", written(source)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            behind.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    if "--check" in sys.argv and behind:
        print(f"not in step: {', '.join(behind)}; run python notebooks/make.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
