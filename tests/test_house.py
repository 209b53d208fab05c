"""The house keeps its rules: which way imports run, what they cost, and who names a library."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import minimha as mh

ROOT = Path(__file__).parents[1]
ENGINE, PACKAGE = ROOT / "autograd" / "minimha_autograd", ROOT / "minimha"
LIBRARIES = {"numpy", "cupy", "torch", "jax", "array_api_strict"}
HOST = {  # what lives on the host may use NumPy, as all of homework/ and pictures/ does
    "backend.py", "data.py", "training.py", "tour.py", "safetensors_file.py", "torch_layer.py",
    "check.py", "compare.py", "edge.py", "explain.py", "locate.py", "numeric.py", "plot.py", "signatures.py", "subject.py",
    "attention.py",
}  # fmt: skip


def imported(path):
    """The top-level modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]


def test_the_engine_does_not_know_what_is_built_on_it():
    for path in ENGINE.rglob("*.py"):
        assert "minimha" not in set(imported(path)), path
        assert "attention" not in path.read_text(encoding="utf-8").lower(), path


def test_no_array_library_is_named_where_arrays_are_computed_on():
    named = {
        path.name
        for package in (ENGINE, PACKAGE)
        for path in package.rglob("*.py")
        if LIBRARIES & set(imported(path))
        and not {"homework", "kernels", "pictures"} & set(path.relative_to(ROOT).parts)
    }
    assert named <= HOST


READERS = {"pickle", "_pickle", "cPickle", "shelve", "marshal", "dill", "cloudpickle", "joblib"}


def unpickling(code):
    """What in it may run what it reads: modules, NumPy's allow_pickle, torch.load and the like."""
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


def test_nothing_unpickles():
    for package in (ENGINE, PACKAGE):
        for path in package.rglob("*.py"):
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
def test_what_unpickles_would_be_seen(code):
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
def test_what_is_public_is_there_and_documented(module):
    for name in module.__all__:
        assert getattr(module, name).__doc__, name
