"""Kernels are compiled once for a machine, and nobody sees how: processes with a cache of their own."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numba
import pytest

from minimha.kernels import unavailable
from minimha.kernels.cpu import cache

ROOT = Path(__file__).parents[3]
PARTS = """
from numba.extending import intrinsic
from minimha.kernels.cpu.jit import kernel

@intrinsic
def twice(typing, x):
    def code(context, builder, signature, arguments):
        return builder.fadd(arguments[0], arguments[0])
    return x(x), code

@kernel
def one_more(x):
    return twice(x) + 1
"""
TOY = """
import ctypes
from minimha.kernels.cpu.jit import kernel
from minimha.kernels.cpu.parts import one_more

@kernel
def last(x):
    y = one_more(x[0])
    for i in range(1, x.size):
        y = one_more(x[i])
    return y

@kernel
def at(x, i):
    return x[i]

cosine = ctypes.CDLL(None).cos
cosine.restype, cosine.argtypes = ctypes.c_double, [ctypes.c_double]

@kernel
def by_address(x):
    return cosine(x)

def adder(y):
    @kernel
    def add(x):
        return x + y
    return add
"""
CALL = """
import numpy as np
from minimha.kernels.cpu.toy import *
x = np.array([2.0, 3.0])
def compiled(*kernels):
    return sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels)
print(last(x), compiled(last, one_more))
"""
NO_ROOM = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99))\n"
MADE, FOUND = "7.0 2\n", "7.0 0\n"


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    """A copy of the package with two modules of toy kernels."""
    root = tmp_path_factory.mktemp("package")
    shutil.copytree(
        ROOT / "minimha", root / "minimha", ignore=shutil.ignore_patterns("__pycache__")
    )
    (root / "minimha/kernels/cpu/parts.py").write_text(PARTS)
    (root / "minimha/kernels/cpu/toy.py").write_text(TOY)
    return root


@pytest.fixture
def package(original, tmp_path):
    """One to change."""
    return shutil.copytree(
        original, tmp_path / "package", ignore=shutil.ignore_patterns("__pycache__")
    )


class Runs:
    def __init__(self, package, cache):
        self.package, self.cache = package, cache

    def start(self, code=CALL, **environment):
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("NUMBA_", "MINIMHA_", "XDG_"))
        }
        path = os.pathsep.join(map(str, (self.package, ROOT / "autograd")))
        environment = {"MINIMHA_CACHE_DIR": str(self.cache), **environment}
        return subprocess.Popen(
            [sys.executable, "-c", code],
            env={**kept, "PYTHONPATH": path, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.package,
        )

    def result(self, process):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        # a busy machine may take a second to compile what is here: said, and another test's matter
        return out, "".join(
            s for s in err.splitlines(True) if "compiling kernels for this" not in s
        )

    def __call__(self, *code, **environment):
        return self.result(self.start(*code, **environment))

    @property
    def files(self):
        return sorted(path for path in self.cache.rglob("*") if path.is_file())


@pytest.fixture
def run(original, tmp_path):
    return Runs(original, tmp_path / "cache")


@pytest.fixture(scope="session")
def filled(original, tmp_path_factory):
    runs = Runs(original, tmp_path_factory.mktemp("filled") / "cache")
    assert runs() == (MADE, "")
    return runs.cache


@pytest.fixture
def refound(run, filled):
    """As `run`, where a process has run before."""
    shutil.copytree(filled, run.cache)
    return run


def test_a_kernel_and_those_it_calls_are_found_by_the_next_process(refound):
    assert refound() == (FOUND, "")


def test_what_is_found_needs_no_writing(refound):
    for path in refound.files:
        os.utime(path, (0, 0))
    assert refound(NO_ROOM + CALL) == (FOUND, "")
    assert {path.stat().st_mtime for path in refound.files} == {0}


def test_a_change_in_any_source_of_kernels_is_met(package, filled, tmp_path):
    run = Runs(package, tmp_path / "cache")
    shutil.copytree(filled, run.cache)
    parts = package / "minimha/kernels/cpu/parts.py"
    parts.write_text(PARTS.replace("+ 1", "+ 2"))
    assert run() == ("8.0 2\n", "")
    parts.write_text(PARTS)
    assert run() == (FOUND, "")


def test_a_source_changed_under_a_running_process_leaves_nothing_behind(package, tmp_path):
    run = Runs(package, tmp_path / "cache")
    edit = "from pathlib import Path; import minimha.kernels.cpu.toy as t; Path(t.__file__).open('a').write('\\n')\n"
    assert run(edit + CALL) == (MADE, "")
    assert not run.files


@pytest.mark.parametrize(
    "setting",
    [{"NUMBA_BOUNDSCHECK": "1"}, {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}],
    ids=["bounds", "CPU"],
)
def test_a_setting_and_a_cpu_have_kernels_of_their_own(refound, setting):
    assert refound(**setting) == (MADE, "")
    assert refound() == (FOUND, "")


def test_every_setting_that_changes_code_has(monkeypatch):
    kept = cache.Cache(len, {})
    target = numba.njit(abs_of).targetctx
    names = {kept._name_and_key((), target)[0]}
    for setting in cache.SETTINGS:
        with monkeypatch.context() as changed:
            changed.setattr(numba.config, setting, "another")
            names.add(kept._name_and_key((), target)[0])
    assert len(names) == 1 + len(cache.SETTINGS)


def abs_of(x):
    return abs(x)


DAMAGED = """
from pathlib import Path
from minimha.kernels.cpu import cache
from minimha.kernels.cpu.jit import kernel
damages = [
    lambda content: b"",
    lambda content: content[: len(content) // 2],
    lambda content: bytes(len(content)),
    lambda content: b"cposix\\nsystem\\n(S'echo run'\\ntR." + content,
    lambda content: content[:-1000] + bytes([content[-1000] ^ 1]) + content[-999:],
]
for damage in damages:
    for path in cache.folder().iterdir():
        path.write_bytes(damage(path.read_bytes()))
    again = kernel(last.py_func)
    print(again(x), compiled(again))
    again = kernel(last.py_func)
    print(again(x), compiled(again))
"""


def test_a_damaged_file_is_replaced_in_silence(refound):
    """Empty, truncated, zeros after a crash, a pickle that would run a command, one bit."""
    assert refound(CALL + DAMAGED) == (FOUND + "7.0 1\n7.0 0\n" * 5, "")


ONE_WARNING = (
    "each process compiles them anew; set MINIMHA_CACHE_DIR to a folder that can be written\n"
)


@pytest.mark.parametrize(
    ("code", "environment"),
    [
        ("", {"MINIMHA_CACHE_DIR": "/dev/null/here"}),
        ("", {"MINIMHA_CACHE_DIR": "", "HOME": "/dev/null"}),
        ("from pathlib import Path; Path.home = lambda: Path.nowhere\n", {"MINIMHA_CACHE_DIR": ""}),
        (NO_ROOM, {}),
    ],
    ids=["not a folder", "no such home", "no home", "full disk"],
)
def test_where_nothing_can_be_kept_kernels_work_and_one_line_says_so(run, code, environment):
    out, err = run(code + CALL, **environment)
    assert out == MADE
    assert err.endswith(ONE_WARNING)
    assert err.count("\n") == 1
    assert not run.files


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="may write anywhere")
def test_a_folder_that_is_read_only_is_read(refound):
    folder = refound.files[0].parent
    folder.chmod(0o500)
    try:
        assert refound() == (FOUND, "")
    finally:
        folder.chmod(0o700)


def test_processes_that_start_at_once_find_all_they_made(run):
    single = CALL.replace("3.0])", "3.0], dtype=np.float32)")
    started = [run.start(code) for code in (CALL, single) * 2]
    for process in started:
        out, err = run.result(process)
        assert out.startswith("7.0 ")
        assert not err
    assert run(CALL + "print(last(np.float32(x)), compiled(last, one_more))") == (FOUND * 2, "")


def test_folders_unused_for_a_month_go_and_nothing_else(refound):
    old = time.time() - 31 * 24 * 3600
    ours = refound.files[0].parent
    for name in ("kernels-0123456789abcdef", "kernels-of-mine", "kernels-fedcba9876543210"):
        (ours.parent / name).mkdir()
        os.utime(ours.parent / name, (old, old))
    os.utime(ours.parent / "kernels-fedcba9876543210")
    os.utime(ours, (old, old))
    assert refound() == (FOUND, "")
    assert {path.name for path in ours.parent.iterdir()} == {
        ours.name,
        "kernels-of-mine",
        "kernels-fedcba9876543210",
    }
    assert ours.stat().st_mtime > old + 24 * 3600


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({}, "home/.cache/minimha"),
        ({"XDG_CACHE_HOME": "{}/xdg"}, "xdg/minimha"),
        ({"XDG_CACHE_HOME": "relative"}, "home/.cache/minimha"),
        ({"XDG_CACHE_HOME": "{}/xdg", "NUMBA_CACHE_DIR": "{}/numba"}, "numba/minimha"),
        ({"NUMBA_CACHE_DIR": "{}/numba", "MINIMHA_CACHE_DIR": "~/ours"}, "home/ours"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="there it is LOCALAPPDATA")
def test_where_kernels_are_kept(monkeypatch, tmp_path, environment, folder):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CACHE_HOME", "MINIMHA_CACHE_DIR"):
        monkeypatch.setenv(name, environment.get(name, "").format(tmp_path))
    numbas = environment.get("NUMBA_CACHE_DIR", "").format(tmp_path)
    monkeypatch.setattr(numba.config, "CACHE_DIR", numbas)
    assert cache.folder().parent == tmp_path / folder


IMPATIENT = "from minimha.kernels.cpu.progress import progress; progress.patience = 0.01\n"


def test_compiling_is_said_once_and_finding_is_not(run):
    code = IMPATIENT + CALL + "last(np.float32(x))"
    _, err = run.start(code).communicate()
    folder = run.files[0].parent
    assert err == f"minimha: compiling kernels for this machine, once (kept in {folder})\n"
    assert run.start(code).communicate() == (FOUND, "")


def test_what_takes_less_than_a_second_in_all_is_not_said(run):
    code = """
import threading, time
from minimha.kernels.cpu.progress import progress
print(progress.patience)
progress.patience = 100
from minimha.kernels.cpu.toy import at
at((1, 2), 0)
time.sleep(0.2)
print(threading.active_count(), progress.patience < 99.99)
"""
    assert run(code) == ("1.0\n1 True\n", "")


def test_where_nothing_can_be_kept_once_is_not_said(run):
    _, err = run.start(IMPATIENT + CALL, MINIMHA_CACHE_DIR="/dev/null/here").communicate()
    assert err.endswith(ONE_WARNING)
    assert err.count("\n") == 1


def test_the_logger_silences_it(run):
    quiet = "import logging; logging.getLogger('minimha').setLevel('ERROR')\n"
    process = run.start(quiet + IMPATIENT + CALL, MINIMHA_CACHE_DIR="/dev/null/here")
    assert process.communicate() == (MADE, "")


def test_what_our_sources_do_not_determine_is_not_kept(run):
    code = """
from minimha.kernels.cpu.toy import adder, by_address
from minimha.kernels.cpu.jit import kernel
print(adder(1)(2), adder(3)(2), by_address(0.0), kernel(lambda x: x)(5))
"""
    assert run(code) == ("3 5 1.0 5\n", "")
    assert not run.files


def test_a_numba_that_keeps_kernels_in_another_way_still_compiles(run):
    future = "import numba.core.caching as c; del c.IndexDataCacheFile\n"
    assert run(future + CALL) == (MADE, "")
    assert not run.files
    future = "import numba.core.caching as c; del c.IndexDataCacheFile._save_data, c.IndexDataCacheFile._load_data\n"
    out, err = run(future + CALL)
    assert out == MADE
    assert err.endswith(ONE_WARNING)


def test_a_kernel_that_cannot_be_compiled_says_why_and_no_more(run):
    code = """
import numba, pytest
from minimha.kernels.cpu.toy import last
with pytest.raises(numba.TypingError):
    last("text")
"""
    assert run(code) == ("", "")


def test_without_compilation_kernels_are_python_functions(run):
    code = """
from minimha.kernels import unavailable
print(unavailable())
import sys; print("numba" in sys.modules)
from minimha.kernels.cpu.toy import at
print(type(at).__name__, at([5], 0))
unavailable.cache_clear(); print(unavailable())
"""
    said = "NUMBA_DISABLE_JIT is set\n"
    assert run(code, NUMBA_DISABLE_JIT="1") == (f"{said}False\nfunction 5\n{said}", "")


@pytest.fixture
def why():
    unavailable.cache_clear()
    yield unavailable
    unavailable.cache_clear()


def test_kernels_can_be_used_here(why):
    assert why() is None


@pytest.mark.parametrize("name", ["numba", "scipy", "threadpoolctl"])
def test_what_is_missing_is_named(why, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    assert why("scipy", "threadpoolctl").startswith(f"{name} cannot be imported: ")


def test_a_numba_too_old_is_named(why, monkeypatch):
    monkeypatch.setattr(numba, "version_info", numba.version_info._replace(short=(0, 59)))
    monkeypatch.setattr(numba, "__version__", "0.59.1")
    assert why() == "Numba is 0.59.1, and 0.60 is the oldest that will do"


def test_a_numpy_too_new_for_numba_is_named(run):
    code = "import numpy; numpy.__version__ = '9.0.0'\nfrom minimha.kernels import unavailable; print(unavailable())"
    out, err = run(code)
    assert out.startswith("numba cannot be imported: Numba needs NumPy")
    assert not err
