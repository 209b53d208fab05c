"""Compiled kernels are stored for the next process, and work whatever happens to their files."""

import os
import sys
import time
import types

import pytest
from processes import output_of

from minimha.kernels import unavailable, warn_once

numba = pytest.importorskip("numba")
cache = pytest.importorskip("minimha.kernels.cpu.cache")

TOY = """
from minimha.kernels.cpu.jit import kernel

@kernel
def doubled(x):
    return x + x

@kernel
def last(x):
    return doubled(x[-1])

def adder(y):
    @kernel
    def add(x):
        return x + y
    return add
"""
WRITABLE = (
    "so each process compiles them anew; set MINIMHA_CACHE_DIR to a folder that can be written"
)


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """A module of the package with kernels, which are stored in a new folder."""
    cache._prepare.cache_clear(), warn_once.cache_clear()
    monkeypatch.setenv("MINIMHA_CACHE_DIR", str(tmp_path / "cache"))
    module = types.ModuleType("minimha.kernels.toy")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return load(module)


def load(toy):
    """The kernels as another process would load them."""
    exec(TOY, toy.__dict__)
    return toy


def compiled(toy):
    """The number of kernels that were compiled because they were not stored."""
    return sum(sum(kernel.stats.cache_misses.values()) for kernel in (toy.doubled, toy.last))


def test_a_kernel_and_the_kernels_it_calls_are_compiled_once_for_each_type(toy, caplog):
    assert (toy.last((2, 3)), compiled(toy)) == (6, 2)
    assert (load(toy).last((2, 3)), compiled(toy)) == (6, 0)
    assert (load(toy).last((2.0, 3.5)), compiled(toy)) == (7.0, 2)
    assert caplog.messages == [
        f"minimha: compiling kernels for this machine, once (kept in {cache.folder()})"
    ]


def test_a_later_process_that_needs_more_kernels_does_not_say_once_again(toy, caplog):
    toy.doubled(2)
    cache._prepare.cache_clear()
    load(toy).last((2, 3))
    assert caplog.messages[1:] == [f"minimha: compiling more kernels (kept in {cache.folder()})"]


@pytest.mark.parametrize(
    "damage", [lambda content: b"", lambda content: content[: len(content) // 2]]
)
def test_a_damaged_file_is_replaced(toy, damage):
    toy.last((2, 3))
    for path in cache.folder().iterdir():
        path.write_bytes(damage(path.read_bytes()))
    assert (load(toy).last((2, 3)), compiled(toy)) == (6, 2)
    assert (load(toy).last((2, 3)), compiled(toy)) == (6, 0)


def test_without_a_writable_cache_kernels_work_after_a_one_line_warning(toy, monkeypatch, caplog):
    monkeypatch.setenv("MINIMHA_CACHE_DIR", "/dev/null/here")
    assert toy.last((2, 3)) == 6
    (line,) = caplog.messages
    assert line.endswith(WRITABLE)


def test_a_full_disk_is_reported(toy, monkeypatch, caplog):
    def write(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.IndexDataCacheFile, "_save_data", write)
    assert toy.last((2, 3)) == 6
    assert [line.endswith(WRITABLE) for line in caplog.messages] == [False, True]
    assert "(No space left on device)" in caplog.text


def test_only_cache_folders_unused_for_a_month_are_removed(toy):
    caches, old = cache.folder().parent, time.time() - 31 * 24 * 3600
    for name in ("kernels-0123456789abcdef", "kernels-fedcba9876543210", "others"):
        (caches / name).mkdir(parents=True)
        if not name.endswith("3210"):
            os.utime(caches / name, (old, old))
    toy.last((2, 3))
    kept = {cache.folder().name, "kernels-fedcba9876543210", "others"}
    assert {path.name for path in caches.iterdir()} == kept


def test_functions_outside_the_package_are_not_cached(toy):
    assert (toy.adder(1)(2), toy.adder(3)(2)) == (3, 5)
    toy.__dict__["__name__"] = "homework"
    assert load(toy).doubled(2) == 4
    assert not cache.folder().exists()


def test_each_version_of_sources_and_settings_has_its_own_folder(tmp_path, monkeypatch):
    source = tmp_path / "cpu" / "jit.py"
    source.parent.mkdir()
    source.write_text("x = 1")
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "cpu" / "cache.py"))
    states = [cache._fingerprint()]
    source.write_text("x = 2")
    states.append(cache._fingerprint())
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")
    states.append(cache._fingerprint())
    assert len(set(states)) == 3
    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
    assert cache._fingerprint() == states[-1]


def test_the_environment_determines_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("MINIMHA_CACHE_DIR", raising=False)
    for name in ("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "users"))
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    assert (tmp_path / "users") in cache.folder().parents
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "numba"))
    assert cache.folder().parent == tmp_path / "numba" / "minimha"
    monkeypatch.setenv("MINIMHA_CACHE_DIR", str(tmp_path / "ours"))
    assert cache.folder().parent == tmp_path / "ours"


CODE = """
from numpy import float32
from minimha.kernels.cpu.exp import exp32
print(exp32(float32(0)), sum(exp32.stats.cache_misses.values()))
"""


@pytest.mark.thorough
def test_a_cached_kernel_is_reused_on_the_same_cpu_only(tmp_path):
    folder = {"MINIMHA_CACHE_DIR": str(tmp_path)}
    other = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    outputs = [output_of(CODE, **folder, **cpu) for cpu in ({}, {}, other)]
    assert outputs == ["1.0 1\n", "1.0 0\n", "1.0 1\n"]


@pytest.mark.thorough
def test_a_numba_with_another_cache_interface_still_compiles(tmp_path):
    another = "import numba.core.caching as c; del c.IndexDataCacheFile"
    assert output_of(another + CODE, MINIMHA_CACHE_DIR=str(tmp_path)) == "1.0 1\n"
    assert not list(tmp_path.iterdir())


@pytest.fixture
def why():
    unavailable.cache_clear()
    yield unavailable
    unavailable.cache_clear()


@pytest.mark.parametrize("name", ["numba", "scipy", "threadpoolctl"])
def test_a_missing_package_is_named(why, monkeypatch, name):
    assert why() is None
    monkeypatch.setitem(sys.modules, name, None)
    why.cache_clear()
    assert why("scipy", "threadpoolctl").startswith(f"{name} cannot be imported: ")


def test_a_numba_that_is_too_old_or_disabled_is_named(why, monkeypatch):
    monkeypatch.setattr(numba, "version_info", numba.version_info._replace(short=(0, 60)))
    assert why().endswith(", but kernels need 0.61 or later")
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    why.cache_clear()
    assert why() == "NUMBA_DISABLE_JIT is set"
