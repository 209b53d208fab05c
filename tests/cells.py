"""The code cells of a page of docs/, run without Sphinx and Jupyter."""

import ast
import contextlib
import io
import re
import traceback
from pathlib import Path

CELL = re.compile(r"^```\{code-cell\}.*\n((?:.*\n)*?)```$", re.MULTILINE)
OPTIONS = re.compile(r"\A(?:(?::.*\n)+|---\n(?:.*\n)*?---\n)|^%.*", re.MULTILINE)
"""How a cell is shown, above its code, and commands of IPython, such as `%matplotlib inline`."""
PICTURES = "_repr_svg_", "_repr_html_", "_repr_markdown_", "_repr_png_"


class CellError(AssertionError):
    """A cell of a page raised an error."""


def cells(page):
    """Pairs of a cell's code and the line of the page above its first one."""
    text = page.read_text(encoding="utf-8")
    for found in CELL.finditer(text):
        code = OPTIONS.sub(lambda x: "\n" * x[0].count("\n"), found[1])
        yield code, text[: found.start(1)].count("\n")


def run_cell(code, line, page, names):
    """What a cell prints and shows. An error names the file and the line, and contains the cell."""
    printed = io.StringIO()
    try:
        tree = ast.parse("\n" * line + code, str(page))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, str(page), "exec"), names)
            if last is not None:
                shown = eval(compile(ast.Expression(last.value), str(page), "eval"), names)
                texts = (getattr(shown, name)() for name in PICTURES if hasattr(shown, name))
                printed.write(" ".join(map(str, (repr(shown), *texts))))
    except Exception as error:
        raise CellError(report(error, code, line, page)) from error
    return printed.getvalue()


def report(error, code, line, page):
    """The message of a CellError."""
    here = [x.lineno for x in traceback.extract_tb(error.__traceback__) if x.filename == str(page)]
    if isinstance(error, SyntaxError) and error.filename == str(page):
        here.append(error.lineno)
    number = here[-1] if here else line + 1
    place = f"{Path(page).parent.name}/{page.name}:{number}"
    return f"{place}: {type(error).__name__}: {error}\n\nThe cell:\n\n{code.strip()}"
