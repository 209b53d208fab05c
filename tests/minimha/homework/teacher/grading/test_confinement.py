"""Submissions cannot do what a function on arrays does not need."""

import os
from pathlib import Path

import pytest
from graded import LIMITS, PACKAGE, called

from minimha.homework.teacher.grading import system_calls
from minimha.homework.teacher.grading.process import Submission

CLEAN = """
import os, sys, gc, importlib, importlib.machinery
import numpy as np
def act(code, **names):
    exec(code, globals() | names)
"""
NAMES = {
    "answers": str(PACKAGE / "homework" / "tasks" / "ch05_attention.py"),
    "encodings": str(Path(os.__file__).with_name("encodings")),
    "root": str(PACKAGE.parent),
}
PRETENDS_TO_BE_ANOTHER_PATH = """
class Path(str):
    def startswith(self, *_): return True
    def __contains__(self, _): return False
open(Path(answers))
"""
REPLACES_BUILT_IN_FUNCTIONS = """
import builtins
before = dict(vars(builtins))
builtins.str = builtins.type = lambda *a: True
try:
    open(answers)
finally:
    vars(builtins).update(before)
"""
CHANGES_THE_FRAME_THAT_REFUSES = """
try:
    open(answers)
except PermissionError as error:
    frame = error.__traceback__.tb_next.tb_frame
    frame.f_locals["readable"] = ("/",)
    frame.f_globals.update(str=None, type=None, PermissionError=None)
open(answers)
"""
FORBIDDEN = {
    "the lock": [
        PRETENDS_TO_BE_ANOTHER_PATH, REPLACES_BUILT_IN_FUNCTIONS, CHANGES_THE_FRAME_THAT_REFUSES,
        "heard = []; sys.addaudithook(lambda *a: heard.append(a)); exec('1'); heard[0]", "sys.settrace(print)",
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))",
    ],
    "what others wrote": [
        "open('/etc/passwd')", "open(answers)", "os.open(answers, os.O_RDONLY)", "np.fromfile(answers, 'u1')",
        "open(encodings + '/..' * 20 + answers)", "os.open('../os.py', 0, dir_fd=os.open(encodings + '/', 0))",
        "importlib.machinery.SourceFileLoader('a', answers).get_data(answers)", "os.listdir('/')", "os.chdir(here)",
        "import minimha", "import torch", "import sqlite3", "importlib.import_module('minimha')",
        "sys.path.insert(0, root); import minimha", "sys.modules['minimha']",
        "import importlib.util as u; s = u.spec_from_file_location('a', answers); s.loader.exec_module(u.module_from_spec(s))",
        "import numpy.testing as t; t._private.utils.os", "gc.get_objects()",
    ],
    "the disk": [
        "open(np.__file__, 'r+')", "open('mine.txt', 'w')", "os.open('mine.txt', os.O_CREAT | os.O_WRONLY)",
        "np.save(here + '/mine.npy', np.ones(3))", "os.remove(victim)", "os.rename(victim, here + '/other')",
        "os.chmod(victim, 0)", "os.truncate(victim, 0)", "os.mkdir(here + '/mine')", "os.symlink('/etc', here + '/mine')",
        "os.mkfifo(here + '/mine')", "[f(here + '/mine') for f in os.supports_dir_fd if f.__name__ == 'mkfifo']",
        "os.chroot('/')",
    ],
    "other processes": [
        "os.fork() or os._exit(0)", "os.system('true')", "os.posix_spawn('/bin/true', ['true'], {})",
        "os.execv('/bin/true', ['true'])", "import subprocess", "import _posixsubprocess", "import multiprocessing",
        "os.kill(os.getppid(), 0)", "import _signal; _signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0)",
        "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
        "p = os.getppid(); os.sched_setscheduler(p, os.sched_getscheduler(p), os.sched_getparam(p))",
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)", "import socket", "os.openpty()", "breakpoint()",
    ],
    "what Python does not watch": [
        "import ctypes; ctypes.CDLL(None)", "import _ctypes", "import atexit; atexit.register(print)",
        "import numpy.linalg._umath_linalg as a; importlib.machinery.ExtensionFileLoader(a.__name__, a.__file__).create_module(a.__spec__)",
        "importlib.import_module('_xxsubinterpreters').create()",
        "importlib.machinery.BuiltinImporter.load_module('faulthandler')",
    ],
}  # fmt: skip
ATTACKS = [code for codes in FORBIDDEN.values() for code in codes]


@pytest.fixture(scope="module")
def acting():
    """A function that runs code in the process of a submission."""
    with Submission(CLEAN.encode(), "act", LIMITS) as submission:
        yield submission.function


@pytest.mark.parametrize("code", ATTACKS, ids=lambda code: code[:60])
def test_a_submission_cannot_perform_forbidden_actions(code, acting, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("of another")
    with pytest.raises(Exception) as error:  # noqa: PT011  whatever refuses it
        acting()(code, here=str(tmp_path), victim=str(victim), **NAMES)
    assert not isinstance(error.value, AssertionError | NameError | SyntaxError)
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]
    assert victim.read_text() == "of another"
    acting()("pass")  # the process still works


def test_a_submission_can_perform_allowed_actions(acting):
    acting()("""
from numpy import *
import os, sys, math, random, re, json, inspect, copy, itertools, functools, typing, dataclasses
import numpy as np, numpy.linalg
from collections import namedtuple
from dataclasses import dataclass
Pair = namedtuple("Pair", "a b")
@dataclass
class Point:
    x: float = math.pi
np.linalg.svd(np.random.default_rng(0).standard_normal((5, 4)))
np.einsum("ij,jk->ik", np.ones((2, 3)), np.ones((3, 4)), optimize=True)
np.random.default_rng().random(); random.random(); np.fft.fft(np.ones(4)); np.random.rand(3); copy.deepcopy(Point()); print(np.ones(3))
import warnings; warnings.warn("careful")
np.ones(2) / 0
""")


def test_a_submission_imports_from_two_modules_of_minimha_in_one_form(acting):
    acting()("from minimha.kernels import numpy_tile; from minimha.parallel import run")
    for statement in (
        "import minimha.parallel as p", "import minimha.kernels.numpy_tile",
        "from minimha import parallel", "from minimha.functional import softmax",
    ):  # fmt: skip
        with pytest.raises(ImportError, match="cannot be imported here"):
            acting()(statement)


def test_random_numbers_repeat_unless_a_generator_has_no_seed():
    source = b"""
import random
import numpy as np
def draws():
    return [np.random.rand(), random.random()], np.random.default_rng().random()
"""
    found = []
    for _ in range(2):
        with Submission(source, "draws", LIMITS) as submission:
            found.append(submission.function()())
    (first, free), (second, other) = found
    assert first == second
    assert free != other


UNLOCKED = """
import os, sys
import numpy as np
def tried(victim):
    allowed = sys.modules["__main__"]._ALLOWED
    class Memory:
        __array_interface__ = dict(data=(id(allowed) + tuple.__basicsize__, False), shape=(5,), typestr="<u8", version=3)
    memory, answers = np.asarray(Memory()), []
    memory[:] = [id(name) for name in ("open", "os.kill", "os.listdir", "os.posix_spawn", "os.remove")]
    for what, arguments in (
        (open, [victim]), (os.remove, [victim]), (os.listdir, ["/"]),
        (os.posix_spawn, ["/bin/true", ["true"], {}]), (os.kill, [os.getppid(), 0]),
    ):
        try:
            what(*arguments)
            answers.append("done")
        except OSError as error:
            answers.append(error.strerror)
    return answers
"""


@pytest.mark.skipif(not system_calls._has_filters(), reason="needs seccomp")
def test_linux_refuses_system_calls_after_the_process_overwrites_its_own_checks(tmp_path):
    (tmp_path / "victim").touch()
    tried = called(UNLOCKED, "tried", str(tmp_path / "victim"))
    opened, removed, listed, spawned, killed = tried
    assert {opened, removed, listed, killed} == {"Operation not permitted"}
    assert spawned != "done"  # the C library decides which limit it meets first
    assert (tmp_path / "victim").exists()


def test_a_submission_has_limits_and_cannot_read_our_environment(monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    source = """
import os, resource
def told():
    names = "AS", "CPU", "NOFILE", "FSIZE", "NPROC", "CORE"
    limits = [resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in names]
    return limits, "SECRET" in os.environ, os.getcwd()
"""
    limits, secret, folder = called(source, "told")
    assert limits == [(most, most) for most in (250 << 20, 61, 0, 0, 0, 0)]
    assert not secret
    assert folder == "/"
