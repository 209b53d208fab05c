"""Where students write their answers, and the source of each answer.

softmax.py          a file with the line # minimha homework: softmax near its top
05_attention.ipynb  a notebook: the cell with that line, or with the call that checks the task, and
                    what its function uses from other cells
adapters.py         a file with the line # minimha homework: adapters, which answers every task
                    that it defines or imports, usually from the student's own package
"""

from __future__ import annotations

import ast
import functools
import io
import json
import re
import symtable
import sys
import textwrap
from collections.abc import Collection, Iterator
from contextlib import suppress
from importlib.util import resolve_name
from pathlib import Path

ADAPTERS = "adapters"
MOST = 1 << 20
"""The size of the largest file that is read, in bytes."""
_MARK = re.compile(r"^# minimha homework: (\w+)", re.MULTILINE)
_STUB = re.compile(rb"^\s*raise NotImplementedError", re.MULTILINE)  # not in a comment
_MAGIC = re.compile(r"^([ \t]*)(?:[%!?].*|\S+\?)$", re.MULTILINE)
_OTHERS = {"minimha", "minimha_autograd", "numpy", *sys.stdlib_module_names}


def mark(text: str) -> str | None:
    """Return the name in the line of a text that marks it as an answer, such as "# minimha
    homework: softmax": the name of a task, or "adapters", which marks a file that answers several
    tasks. The first such line counts; None if there is none."""
    found = _MARK.search(text)
    return found[1] if found else None


def answers(path: Path, names: Collection[str], notes: list[str] | None = None) -> dict[str, bytes]:
    """Return the source code of each answer in a file or notebook, by the name of its task. A .py
    file has answers only if a line near its top marks it: "# minimha homework: softmax" makes it
    the answer to softmax, "# minimha homework: adapters" to every task that it defines or imports.
    In a notebook, such a line marks a cell; a cell that calls homework.check(softmax) is an answer,
    too.

    names  the tasks whose answers are returned
    notes  a list to which remarks are added, such as that two cells answer one task; None discards
           them

    Raises OSError for a file that cannot be read, ValueError for a file that is too long and for a
    damaged notebook.
    """
    data = source(path)
    if path.suffix == ".ipynb":
        return _in_notebook(_code_cells(data), names, [] if notes is None else notes)
    name = mark(decoded(data[:1000]))
    if name == ADAPTERS:
        text = decoded(data)
        known = set[str]().union(*(defined for defined, _, _ in _pieces(text)))
        return {task: data for task in names if task in known or defines(text, task)}
    return {name: data} if name and name in names else {}


def source(path: Path) -> bytes:
    """Return the content of a file. Raises ValueError if it is longer than MOST bytes (1 MB); for a
    notebook, which contains outputs as well, the limit is ten times as large."""
    most = MOST * 10 if path.suffix == ".ipynb" else MOST
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        advice = ": clear its outputs, which take space" if path.suffix == ".ipynb" else ""
        raise ValueError(f"the file is longer than {most >> 20} MB{advice}")
    return data


def decoded(data: bytes) -> str:
    """Return the text of a file, given its bytes: UTF-16 if they begin with the mark by which
    editors announce UTF-16, otherwise UTF-8. Invalid bytes become the character �."""
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    return data.decode("utf-16" if wide else "utf-8-sig", errors="replace")


def defines(text: str, name: str) -> bool:
    """Whether a source defines a function of this name at its top level."""
    return re.search(rf"^def {name}\b", text, re.MULTILINE) is not None


def is_stub(source: bytes) -> bool:
    """Whether the source of an answer still has a line `raise NotImplementedError`, like the
    unfinished function that students get."""
    return _STUB.search(source) is not None


def _code_cells(data: bytes) -> list[str]:
    """Return the text of each code cell of a notebook, given the bytes of its file. Raises
    ValueError if they are not a notebook."""
    try:
        cells = [cell for cell in json.loads(data)["cells"] if cell["cell_type"] == "code"]
        return ["".join(cell["source"]) for cell in cells]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("this is not a Jupyter notebook, or it is damaged") from None


def _in_notebook(cells: list[str], names: Collection[str], notes: list[str]) -> dict[str, bytes]:
    """Return the source of the answer to each of these tasks, by name, given the text of each code
    cell of a notebook. Tasks without an answer are left out. If several cells answer one task, the
    last one that is filled in counts, or the last of them all if none is; if their texts differ, a
    remark is added to `notes`."""
    found = {}
    pieces = [(k, *piece) for k, cell in enumerate(cells) for piece in _pieces(cell)]
    for name in names:
        call = f"homework.check({name})"
        own = [
            k for k, x in enumerate(cells) if mark(x) == name or (call in x and defines(x, name))
        ]
        own = own or [k for k, cell in enumerate(cells) if call in cell]
        if own:
            filled = [k for k in own if not is_stub(cells[k].encode())]
            k = (filled or own)[-1]
            found[name] = _alone(name, pieces, k) or f"{cells[k].rstrip()}\n".encode()
        if len({cells[k] for k in own}) > 1:
            which = "the last one that is filled in" if filled else "the last one"
            notes.append(f"{len(own)} cells answer {name}; {which} counts")
    return found


def _alone(name: str, pieces: list[tuple[int, set[str], set[str], str]], answer: int) -> bytes:
    """Return a source that contains the function of this name and whatever it uses from the
    notebook: functions, imports and assignments, but no calls that check or print. If a name is
    defined several times, the last definition in the answer's cell or above it counts or, if there
    is none, the last one below. Returns b"" if no cell defines the function.

    pieces  the definitions that `_pieces` finds in all cells; the number of its cell precedes each
    answer  the number of the cell with the answer
    """
    below_first = sorted(range(len(pieces)), key=lambda k: pieces[k][0] <= answer)
    where = {defined: k for k in below_first for defined in pieces[k][1]}
    if name not in where:
        return b""
    needed, waiting = {where[name]}, [where[name]]
    for k in waiting:
        new = {where[used] for used in pieces[k][2] if used in where} - needed
        needed |= new
        waiting += new
    return "\n\n\n".join(pieces[k][3] for k in sorted(needed)).encode() + b"\n"


@functools.lru_cache(maxsize=10_000)  # most cells of a chapter are the same for all students
def _pieces(cell: str) -> list[tuple[set[str], set[str], str]]:
    """Return the functions, classes, imports and assignments at the top level of a cell. For each:
    the names that it defines, the global names that it uses, and its text. Lines that only Jupyter
    understands, such as %timeit, are ignored; if the rest is not Python, the list is empty."""
    tree = _parsed(cell)
    if tree is None:  # perhaps because of a line such as %timeit, which only Jupyter understands
        cell = _MAGIC.sub(r"\1pass", cell)
        tree = _parsed(cell)
    found: list[tuple[set[str], set[str], str]] = []
    if tree is None:
        return found
    lines, statements = io.StringIO(cell, newline=None).readlines(), list(tree.body)
    for statement in statements:
        first, defined = statement.lineno, set[str]()
        match statement:
            case ast.Try():  # to import
                statements += statement.body
            case ast.FunctionDef() | ast.ClassDef():
                defined = {statement.name}
                first = min(x.lineno for x in [statement, *statement.decorator_list])
            case ast.Import() | ast.ImportFrom():
                defined = {(x.asname or x.name).split(".")[0] for x in statement.names}
            case ast.Assign() | ast.AnnAssign():
                stored = (x for x in ast.walk(statement) if isinstance(x, ast.Name))
                defined = {x.id for x in stored if isinstance(x.ctx, ast.Store)}
        if defined:
            text = textwrap.dedent("".join(lines[first - 1 : statement.end_lineno])).rstrip()
            with suppress(SyntaxError, RecursionError):  # a return outside a function
                table = symtable.symtable(text, "cell", "exec")
                found.append((defined, _globals(table), text))
    return found


def _parsed(text: str | bytes) -> ast.Module | None:
    """Return the syntax tree of a text, or None if the text is not Python, or is nested too
    deeply."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _globals(table: symtable.SymbolTable) -> set[str]:
    """Return the global names that a source uses, given its symbol table."""
    top = table.get_type() == "module"
    names = {
        x.get_name() for x in table.get_symbols() if (x.is_referenced() if top else x.is_global())
    }
    return names.union(*map(_globals, table.get_children()))


def modules(text: bytes, folder: Path) -> dict[str, bytes]:
    """Return the sources of the student's own modules that the source `text`, from a file in this
    folder, imports, directly or through other such modules. The keys are the modules' paths in the
    folder or in folder/src, such as mine/__init__.py. Links are not followed.

    Raises OSError for a file that cannot be read, ValueError if all modules together are longer
    than MOST bytes (1 MB).
    """
    found: dict[str, bytes] = {}
    waiting, folder = [("", text)], folder.resolve()
    for package, data in waiting:
        for name in _own_imports(data, package):
            for end, inner in (("/__init__.py", name), (".py", name.rpartition(".")[0])):
                inside = name.replace(".", "/") + end
                for path in (folder / inside, folder / "src" / inside):
                    if inside not in found and path.is_file() and path.resolve() == path:
                        found[inside] = source(path)
                        waiting.append((inner, found[inside]))
                        if sum(map(len, found.values())) > MOST:
                            raise ValueError(f"the modules are longer than {MOST >> 20} MB")
    return found


def _own_imports(data: bytes, package: str) -> Iterator[str]:
    """Yield the full names of all modules that the source `data` may import from the student's own
    folder: for `from a.b import c`, these are a, a.b and a.b.c. `package` is the package to which
    the source belongs, "" if it belongs to none."""
    for module, names in imports(data, package):
        if module.split(".")[0] not in _OTHERS:
            for full in (module, *(f"{module}.{name}" for name in names)):
                yield from packages(full)


def packages(module: str) -> list[str]:
    """Return the full names of the packages that contain a module, and of the module itself: for
    a.b, these are a and a.b."""
    parts = module.split(".")
    return [".".join(parts[: k + 1]) for k in range(len(parts))]


def imports(data: bytes, package: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield each module that the source `data` imports, and the names that it takes from the
    module: for `from a.b import c`, "a.b" and ["c"]. `package` is the package to which the source
    belongs, "" if it belongs to none; relative imports start from it."""
    tree = _parsed(data)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Import):
            yield from ((x.name, []) for x in node.names)
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # it leads out of the package
                base = resolve_name("." * node.level + (node.module or ""), package)
                yield base, [x.name for x in node.names]
