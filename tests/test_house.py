"""The rules of the house: the direction and cost of imports, and where a library may be named."""

import ast
import functools
import importlib
import re
import subprocess
import sys
import time
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from minimha_autograd import extension

ROOT = Path(__file__).parents[1]
ENGINE = ROOT / "autograd"
ROOTS = {
    "minimha_autograd": ENGINE, "minimha_command": ENGINE, "minimha_pytest": ENGINE,
    "minimha": ROOT,
}  # fmt: skip
LIBRARIES = {"numpy", "cupy", "torch", "jax", "array_api_strict"}


def name_of(path):
    """The module in a file: minimha.masks for minimha/masks/__init__.py."""
    folder = next(folder for folder in ROOTS.values() if path.is_relative_to(folder))
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    name_of(path): path
    for package, folder in sorted(ROOTS.items())
    for path in sorted([*folder.glob(f"{package}.py"), *(folder / package).rglob("*.py")])
}
TABLE = re.findall(r"^\| `(.*?)` \|", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
ROOMS = [name_of(ROOT / path) for path in TABLE]
"""The rooms in the order of the table in CONTRIBUTING.md: each imports only those below it."""


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
    """The modules that it imports: `from room import thing` is the room, or thing if it is a file."""
    names = imported_names(module)
    return {f"{base}.{name}" if f"{base}.{name}" in SOURCES else base for base, name in names}


def room(module):
    """The room of the table that a module is in: minimha.masks for minimha.masks.dense, and
    minimha.homework.checks, a room within a room, for minimha.homework.checks.calls."""
    names = module.split(".")
    places = [".".join(names[:k]) for k in range(len(names), 0, -1)]
    return next(place for place in places if place in ROOMS)


def public_package(module):
    """The package whose `__init__` lists the public names of a module."""
    top = module.split(".")
    return top[0] if top[0] == "minimha_autograd" else ".".join(top[:2])


def upwards(importing, imported):
    """Whether an import leads to a room above the importing one."""
    return ROOMS.index(room(imported)) < ROOMS.index(room(importing))


def bypassing(base, name):
    """Whether `from base import name` takes a public name from a file of its room, or another one
    from the room. An import of a whole file is neither."""
    package = public_package(base)
    is_room = SOURCES.get(package, Path()).name == "__init__.py"
    if not name or not is_room or f"{base}.{name}" in SOURCES:
        return False
    public = name in getattr(importlib.import_module(package), "__all__", ())
    return public != (base == package) or name.startswith("_")


HOST = {  # rooms and files that run on the host and may use NumPy
    "minimha_autograd.backend", "minimha_autograd.gradcheck", "minimha_pytest",
    "minimha.diagnosis", "minimha.gpu_report", "minimha.homework", "minimha.interchange",
    "minimha.kernels", "minimha.pictures", "minimha.training", "minimha.transformers.generation",
    "minimha.transformers.speculation",
}  # fmt: skip


def test_the_engine_does_not_know_attention():
    for module, path in SOURCES.items():
        if room(module) == "minimha_autograd":
            text = path.read_text(encoding="utf-8").lower()
            assert "attention" not in text, (
                f"{path.relative_to(ROOT)} of the engine names attention"
            )


def test_the_pages_of_the_book_exist():
    section = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## The pages of the book")[2]
    lists = re.findall(r"^- `(.*?)/`: ((?:.+\n)(?:  .+\n)*)", section, re.MULTILINE)
    pages = [
        f"{folder}/{name}" for folder, names in lists for name in re.findall(r"`(.*?)`", names)
    ]
    assert len(pages) > 30
    missing = [page for page in pages if not (ROOT / page).is_file()]
    assert not missing, f"CONTRIBUTING.md lists pages of the book that do not exist: {missing}"


def test_every_module_is_in_a_room_of_the_table():
    rooms = {room(module) for module in SOURCES}
    assert rooms <= {*ROOMS}, f"add {rooms - {*ROOMS}} to the table of rooms in CONTRIBUTING.md"
    assert rooms == {*ROOMS}, f"CONTRIBUTING.md lists { ({*ROOMS} - rooms) }, which do not exist"
    loose = {module for module in SOURCES if room(module) == "minimha"}
    assert loose == {"minimha"}


def test_imports_point_downwards_in_the_table():
    found = [
        f"{importing} imports {imported}"
        for importing in SOURCES
        for imported in sorted(imports(importing) & SOURCES.keys())
        if upwards(importing, imported)
    ]
    assert not found, "\n".join(found)


def test_an_import_upwards_is_detected():
    assert upwards("minimha.masks.kinds", "minimha.attention")
    assert upwards("minimha.nn", "minimha")
    assert not upwards("minimha_pytest", "minimha")
    assert upwards("minimha.homework.student.notebook", "minimha.homework.commands")
    assert upwards("minimha.homework.checks.calls", "minimha.homework.tasks.catalogue")


def test_code_that_computes_on_arrays_names_no_array_library():
    for module in SOURCES:
        if not HOST & {module, ".".join(module.split(".")[:2])}:
            named = LIBRARIES & {name.split(".")[0] for name in imports(module)}
            assert not named, f"{module} names {named}"


def test_files_have_no_import_cycles():
    files = {module: imports(module) & SOURCES.keys() - {module} for module in SOURCES}
    TopologicalSorter(files).prepare()  # its error shows the cycle


def neighbours(folder):
    """For each file and folder in a folder, those beside it that it imports from."""
    depth = folder.count(".") + 2
    found = {}
    for module in SOURCES:
        if module.startswith(f"{folder}."):
            here = ".".join(module.split(".")[:depth])
            theirs = {".".join(other.split(".")[:depth]) for other in imports(module)}
            beside = {x for x in theirs if x.startswith(f"{folder}.") and x != here}
            found.setdefault(here, set()).update(beside)
    return found


FOLDERS = [name for name, path in SOURCES.items() if path.name == "__init__.py"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_have_no_import_cycles_either(folder):
    TopologicalSorter(neighbours(folder)).prepare()


def test_neighbours_are_files_and_folders():
    teacher = neighbours("minimha.homework.teacher")
    grading = teacher["minimha.homework.teacher.grading"]
    assert grading == {f"minimha.homework.teacher.{name}" for name in ("chosen", "scores")}
    assert "minimha.homework.teacher.grading" in teacher["minimha.homework.teacher.jplag"]


def test_public_names_are_imported_from_their_room_and_others_from_their_file():
    found = [
        f"{importing} imports {name} of {base}"
        for importing in SOURCES
        for base, name in imported_names(importing)
        if base in SOURCES
        and public_package(base) != public_package(importing)
        and bypassing(base, name)
    ]
    assert not found, "\n".join(sorted(found))


def test_an_import_that_bypasses_a_room_is_detected():
    assert bypassing("minimha.masks.kinds", "causal")
    assert bypassing("minimha.masks", "typed")
    assert not bypassing("minimha.masks.queries", "typed")


def test_the_top_level_contains_only_rooms():
    loose = {path.name for path in (ROOT / "minimha").glob("*.py")}
    assert loose == {"__init__.py", "__main__.py"}


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
        found = list(unpickling(path.read_text(encoding="utf-8")))
        assert not found, f"{path.relative_to(ROOT)} could execute data that it reads: {found}"


@pytest.mark.parametrize("code", [
    "import pickle",
    "def f():\n    from _pickle import loads",
    "import joblib.numpy_pickle",
    "np.load(path, allow_pickle=True)",
    "np.load(path, allow_pickle=trusted)",
    "torch.load(path)",
    "pandas.read_pickle(path)",
])  # fmt: skip
def test_code_that_unpickles_is_detected(code):
    assert list(unpickling(code))


def test_importing_loads_nothing_heavy():
    heavy = "numba matplotlib cupy torch rich pytest array_api_compat.numpy numpy.random"
    heavy = [*heavy.split(), *ROOMS[ROOMS.index("minimha") + 1 : -1]]
    code = f"import sys, minimha; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n", f"import minimha loads {done.stdout}: import it where it is used"


def seconds(code):
    """The time of a Python process that runs this code."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def test_importing_takes_at_most_1_8_of_numpys_time():
    # When this was written, 1.1, and 1.4 where Python may not keep what it compiles. Other programs
    # only make a process slower, so the fastest of many tells; the two take turns, so that both meet
    # the same machine.
    numpy, ours = [], []
    while len(ours) < 5 or (min(ours) > 1.8 * min(numpy) and len(ours) < 15):
        numpy.append(seconds("import numpy"))
        ours.append(seconds("import minimha"))
    assert min(ours) <= 1.8 * min(numpy)


def on_first_use(package):
    """The rooms and the names by room of a package that are imported on first use: those that its
    type checker reads, and those that its table lists."""
    checked, listed = {"": set()}, {}
    for node in ast.walk(ast.parse(SOURCES[package].read_text(encoding="utf-8"))):
        match node:
            case ast.If(ast.Name("TYPE_CHECKING"), body):
                for statement in body:
                    names = {alias.name for alias in statement.names}
                    checked.setdefault(statement.module or "", set()).update(names)
            case ast.Call(ast.Name("on_first_use"), [_, table]):
                rooms = ast.literal_eval(table)
                listed = {room: set(names.split()) for room, names in rooms.items() if names}
                listed[""] = rooms.keys() & set(importlib.import_module(package).__all__)
    return checked, listed


@pytest.mark.parametrize("package", ["minimha", "minimha.attention", "minimha.kernels"])
def test_type_checkers_see_what_is_imported_on_first_use(package):
    checked, listed = on_first_use(package)
    assert checked == listed, (
        "what is imported on first use and what type checkers see differ in "
        f"{[name for name in {*checked, *listed} if checked.get(name) != listed.get(name)]}"
    )


def test_no_package_has_a_mechanism_of_its_own_to_import_on_first_use():
    own = [m for m, path in SOURCES.items() if "\ndef __getattr__(" in path.read_text("utf-8")]
    assert own == [], "see minimha_autograd/first_use.py"


def test_extension_points_are_provided_from_above():
    for point, provider in extension.providers.items():
        (lower, default), (higher, name) = point.split(":"), provider.split(":")
        assert isinstance(vars(importlib.import_module(lower))[default], extension.ExtensionPoint)
        assert callable(vars(importlib.import_module(higher))[name])
        assert room(lower) == room(higher) or upwards(lower, higher), point


def test_all_extension_points_of_modules_are_provided():
    found = {
        f"{module}:{node.name}"
        for module, path in SOURCES.items()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(mark) == "extension_point" for mark in node.decorator_list)
    }
    assert found == extension.providers.keys(), found ^ extension.providers.keys()


PUBLIC = [importlib.import_module(name) for name in ["minimha_autograd.ops", *ROOMS[:-1]]]


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_every_public_name_exists_and_is_documented(module):
    for name in getattr(module, "__all__", ()):
        where = f"{module.__name__} lists {name} in __all__"
        assert hasattr(module, name), f"{where} and does not import it"
        assert getattr(module, name).__doc__, f"{where}, which has no docstring"
