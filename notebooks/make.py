"""Make the student notebooks from their sources in notebooks/source.

    python notebooks/make.py            write notebooks/NN_name.ipynb
    python notebooks/make.py --check    say which are not in step, and exit with 1 if any is not
    python notebooks/make.py --minutes  print how long each chapter takes, and what it says itself

A source is MyST Markdown with {code-cell}s. In a code cell

    # setup                  becomes the cell that every chapter starts with;
    # setup: package …       the same, which installs those packages too where they are missing
    # exercise: softmax      becomes the task of that name in minimha.homework, and its check, below
                             the line by which grading finds it
    # BEGIN SOLUTION …       to # END SOLUTION is taken out, as in a task

The code of a cell with the tag hide-input is folded, in JupyterLab and on the site.

Needs jupytext: pip install ".[test]".
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import jupytext
import nbformat

from minimha import course, homework
from minimha.homework.checks import solutions
from minimha.homework.student import student_files

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
PROJECT = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FOLDED = {"jupyter": {"source_hidden": True}, "tags": ["hide-input"]}
WORDS_PER_MINUTE, MINUTES_PER_CELL = 180, 2


def notebook(source: Path, *, solved: bool = False) -> Any:
    """A chapter as a notebook: with stubs, or with its solutions."""
    read = jupytext.read(source, fmt="md:myst")
    cells = []
    for k, cell in enumerate(read.cells):
        if cell.cell_type == "code":
            new = nbformat.v4.new_code_cell(_code(cell.source, solved), id=f"cell-{k:02}")
            new.metadata.update(FOLDED if _is_folded(cell) else {})
        else:
            text = cell.source if k else _with_links(cell.source, source.stem)
            new = nbformat.v4.new_markdown_cell(text, id=f"cell-{k:02}")
        cells.append(new)
    return nbformat.v4.new_notebook(cells=cells, metadata=METADATA)


def _with_links(text: str, name: str) -> str:
    """The first text of a chapter, with links below its title that open it, ready to run."""
    site, source = (PROJECT["urls"][key] for key in ("Documentation", "Source"))
    browser = f"{site}browser/lab/index.html?path={name}.ipynb"
    github = source.replace("https://github.com", "https://colab.research.google.com/github")
    colab = f"{github}/blob/main/notebooks/{name}.ipynb"
    title, _, rest = text.partition("\n")
    return f"{title}\n\n[Run in your browser]({browser}) · [Open in Colab]({colab})\n{rest}"


def _is_folded(cell: Any) -> bool:
    return "hide-input" in cell.metadata.get("tags", [])


def _code(text: str, solved: bool) -> str:
    """The text of a code cell."""
    if found := re.fullmatch(r"# setup(?:: (.*))?\s*", text):
        packages = found[1].split() if found[1] else []
        imports = "".join(f"\n    import {name.replace('-', '_')}" for name in packages)
        return SETUP.format(imports=imports, packages="".join(f" {p}" for p in packages)).rstrip()
    if found := re.fullmatch(r"# exercise: (\w+)\s*", text):
        tasks = homework.course()
        if found[1] not in tasks:
            raise ValueError(f"# exercise: {found[1]}: there is no task of this name")
        return student_files.cell(found[1], tasks[found[1]].code(solved=solved))
    return (solutions.solved(text) if solved else solutions.stubbed(text)).rstrip()


def exercises(source: Path) -> list[str]:
    """The names of a chapter's tasks."""
    return re.findall(r"^# exercise: (\w+)", source.read_text(encoding="utf-8"), re.MULTILINE)


def written(source: Path) -> str:
    """The text of the student notebook of a source."""
    return nbformat.writes(notebook(source)) + "\n"


def work(source: Path) -> tuple[int, int, int]:
    """A chapter's words of prose, cells to read and run, and minutes of its tasks.

    A formula counts as one word. Neither the first cell, nor folded ones, nor guesses are counted.
    """
    words = cells = tasks = 0
    for cell in jupytext.read(source, fmt="md:myst").cells:
        if cell.cell_type == "markdown":
            text = re.sub(r"```.*?```", "", cell.source, flags=re.DOTALL)
            text = re.sub(r"\$\$.*?\$\$|\$[^$]+\$", " formula ", text, flags=re.DOTALL)
            words += sum(bool(re.search(r"\w", word)) for word in text.split())
        elif found := re.match(r"# exercise: (\w+)", cell.source):
            tasks += homework.course()[found[1]].minutes
        elif not (cell.source.startswith("# setup") or _is_folded(cell) or _guesses(cell.source)):
            cells += 1
    return words, cells, tasks


def _guesses(code: str) -> bool:
    """Whether the code only asks for a guess."""
    return all(
        isinstance(line, ast.Expr) and ast.unparse(line).startswith("mh.homework.guess(")
        for line in ast.parse(code).body
    )


def minutes(source: Path) -> int:
    """How long a chapter takes, to the nearest 5 minutes."""
    words, cells, tasks = work(source)
    return 5 * round((words / WORDS_PER_MINUTE + MINUTES_PER_CELL * cells + tasks) / 5)


def _print_minutes() -> None:
    print(f"{'chapter':20}{'words':>8}{'cells':>8}{'tasks':>8}{'minutes':>10}{'listed':>8}  stated")
    for chapter, source in zip(course.CHAPTERS.values(), SOURCES, strict=True):
        words, cells, tasks = work(source)
        stated = re.search(r"(\d+)\s+minutes", source.read_text(encoding="utf-8"))
        print(
            f"{source.stem:20}{words:8}{cells:8}{tasks:8}{minutes(source):10}"
            f"{chapter.minutes:8}  {stated[1] if stated else '-':>6}"
        )


def main() -> int:
    """Write them, or check that they are in step."""
    if "--minutes" in sys.argv:
        _print_minutes()
        return 0
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
