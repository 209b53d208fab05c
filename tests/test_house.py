"""The rules of the house: the direction and cost of imports, and where a library may be named."""

import ast
import functools
import importlib
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import minimha as mh

ROOT = Path(__file__).parents[1]
ROOTS = {"minimha_autograd": ROOT / "autograd", "minimha": ROOT}
LIBRARIES = {"numpy", "cupy", "torch", "jax", "array_api_strict"}


def name_of(path):
    """The module in a file: minimha.masks for minimha/masks/__init__.py."""
    folder = next(folder for folder in ROOTS.values() if path.is_relative_to(folder))
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    name_of(path): path
    for package, folder in sorted(ROOTS.items())
    for path in sorted((folder / package).rglob("*.py"))
}


@functools.cache
def imported_names(module):
    """All imports of a module: (module, name) for `from module import name`, with relative imports
    resolved, and (module, "") for `import module`."""
    path = SOURCES[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *(node.module or "").split(".")]).strip(".")
            found |= {(base, alias.name) for alias in node.names}
    return frozenset(found)


def imports(module):
    """The modules that a module imports: `from room import thing` is the room or, if thing is a
    file, that file."""
    names = imported_names(module)
    return {f"{base}.{name}" if f"{base}.{name}" in SOURCES else base for base, name in names}


def a_cycle(graph):
    """The first path that returns to its start, or None."""
    done, path = set(), []

    def walk(node):
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        done.add(node)
        path.append(node)
        found = next(filter(None, map(walk, sorted(graph.get(node, ())))), None)
        path.pop()
        return found

    return next(filter(None, map(walk, sorted(graph))), None)


def room(module):
    """The room that a module is in: minimha.masks for minimha.masks.dense."""
    return ".".join(module.split(".")[:2])


def owner(module):
    """The room of a module; the whole engine is one room."""
    return "minimha_autograd" if module.startswith("minimha_autograd") else room(module)


def across_rooms():
    """The imports between rooms."""
    for importing in SOURCES:
        for imported in sorted(imports(importing) & SOURCES.keys()):
            if room(importing) != room(imported):
                yield importing, imported


HOST = {  # rooms and files that run on the host and may use NumPy
    "minimha.diagnosis",
    "minimha.homework",
    "minimha.kernels",
    "minimha.pictures",
    "minimha_autograd.backend",
    "minimha_autograd.gradcheck",
    "minimha.gpu_report",
    "minimha.course.tour",
    "minimha.interchange",
    "minimha.training",
    "minimha.transformers.generation",
}


def test_the_engine_imports_nothing_built_on_it():
    for module, path in SOURCES.items():
        if room(module).startswith("minimha_autograd"):
            assert not {name for name in imports(module) if name.split(".")[0] == "minimha"}, path
            assert "attention" not in path.read_text(encoding="utf-8").lower(), path


def test_code_that_computes_on_arrays_names_no_array_library():
    for module in SOURCES:
        if not HOST & {module, room(module)}:
            named = LIBRARIES & {name.split(".")[0] for name in imports(module)}
            assert not named, f"{module} names {named}"


def test_files_have_no_import_cycles():
    files = {module: imports(module) & SOURCES.keys() - {module} for module in SOURCES}
    cycle = a_cycle(files)
    assert cycle is None, " -> ".join(cycle)


def test_rooms_have_no_import_cycles():
    rooms, by = {}, {}
    for importing, imported in across_rooms():
        rooms.setdefault(room(importing), set()).add(room(imported))
        by[room(importing), room(imported)] = f"{importing} imports {imported}"
    cycle = a_cycle(rooms)
    assert cycle is None, "; ".join(by[pair] for pair in pairwise(cycle))


def test_a_room_is_imported_from_outside_through_its_init():
    inside = []
    for importing in SOURCES:
        for base, name in imported_names(importing):
            if base not in SOURCES or base in ROOTS or owner(base) == owner(importing):
                continue
            is_file = f"{base}.{name}" in SOURCES
            exported = getattr(importlib.import_module(base), "__all__", ())
            if base != room(base) or (is_file and name not in exported):
                inside.append(f"{importing} imports {name} of {base}")
    assert not inside, "\n".join(inside)


def test_the_top_level_contains_only_rooms():
    loose = {path.name for path in (ROOT / "minimha").glob("*.py")}
    assert loose == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize(
    ("graph", "cycle"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["b", "c", "b"]),
        ({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}}, None),
    ],
)
def test_an_import_cycle_is_detected(graph, cycle):
    assert a_cycle(graph) == cycle


READERS = {"pickle", "_pickle", "cPickle", "shelve", "marshal", "dill", "cloudpickle", "joblib"}


def unpickling(code):
    """Calls that could execute data that they read: pickle, NumPy's allow_pickle, torch.load."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Import(names):
                yield from (a.name for a in names if a.name.split(".")[0] in READERS)
            case ast.ImportFrom(module) if (module or "").split(".")[0] in READERS:
                yield module
            case ast.keyword("allow_pickle", value) if ast.unparse(value) != "False":
                yield "allow_pickle"
            case ast.Attribute(ast.Name("torch"), "load") | ast.Attribute(_, "read_pickle"):
                yield ast.unparse(node)


def test_no_code_unpickles():
    for path in SOURCES.values():
        assert not list(unpickling(path.read_text(encoding="utf-8"))), path


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "def f():\n    from _pickle import loads",
        "import joblib.numpy_pickle",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=trusted)",
        "torch.load(path)",
        "pandas.read_pickle(path)",
    ],
)
def test_code_that_unpickles_is_detected(code):
    assert list(unpickling(code))


def test_importing_loads_nothing_heavy():
    heavy = (
        "numba",
        "matplotlib",
        "cupy",
        "torch",
        "rich",
        "safetensors",
        "pytest",
        "array_api_compat.numpy",
        "minimha.cost",
        "minimha.homework",
    )
    code = f"import sys, minimha; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "module",
    [
        mh,
        mh.ops,
        mh.functional,
        mh.interchange,
        mh.masks,
        mh.conventions,
        mh.positions,
        mh.projections,
    ],
)
def test_every_public_name_exists_and_is_documented(module):
    for name in module.__all__:
        assert getattr(module, name).__doc__, name
