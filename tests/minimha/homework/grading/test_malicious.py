"""The usual malicious submissions, as files and as notebooks, get no points and change nothing.

These are the attempts that Otter-Grader's and nbgrader's documentation and their users describe. In
each, the function is wrong; it would get points only if the attempt succeeded.
"""

import pytest
from graded import RIGHT, notebook, write

from minimha.homework.grading import grade as grading
from minimha.homework.grading.process import Limits

MARK = "# minimha homework: scaled\n"
WRONG = """
def scaled(x, factor, *, tap=None):
    {}
    return 0 * x, lambda dy: (0 * dy,)
"""
LOADED = {  # when the file is loaded
    "exit codes": [
        "import os; os._exit(0)", "import sys; sys.exit(0)", "raise SystemExit(0)", "quit()", "exit(0)",
        "import os, signal; os.kill(os.getpid(), 9)",
    ],
    "printed scores": [
        "print('100/100')", """print('{"score": 100, "tests": []}')""", "print('2 passed in 0.01s')",
        "import sys; sys.stderr.write('All tests passed!'); sys.__stdout__.write('PASSED')",
        "import os; os.write(1, b'ok     scaled: values')",
    ],
    "patched checks": [
        "import numpy as np; np.testing = None; np.allclose = np.array_equal = lambda *_, **__: True",
        "import builtins; builtins.AssertionError = type('Fine', (BaseException,), {})",
        "import builtins; builtins.abs = builtins.max = lambda *_: 0; builtins.all = lambda _: True",
        "import sys, types; sys.modules['minimha'] = sys.modules['pytest'] = types.ModuleType('minimha')",
        "import sys; sys.modules['connection'].Connection.call = lambda *_: True",
        "import sys; sys.settrace(lambda *_: None)",
    ],
    "deleted files": [
        "import os; os.remove('VICTIM/grades.json')", "import shutil; shutil.rmtree('VICTIM')",
        "import pathlib; [path.unlink() for path in pathlib.Path('VICTIM').rglob('*')]",
        "import os; os.system('rm -rf VICTIM')",
    ],
    "network": [
        "import socket; socket.create_connection(('127.0.0.1', 9))", "import urllib.request",
        "import http.client", "import subprocess; subprocess.run(['curl', 'localhost'])",
        "import requests",
    ],
    "forged results": [
        "open('VICTIM/grades.json', 'w').write('[]')", "open('VICTIM/results.json', 'w')",
        "open('VICTIM/in/.minimha-grading.jsonl', 'a').write('[]')", "import pickle; pickle.dump(1, open('VICTIM/log.otter', 'wb'))",
        "score = points = grade = 100", "__score__ = {'scaled': 1.0}",
    ],
    "stolen solutions": [
        "from minimha.homework.tasks import *", "import importlib; importlib.import_module('minimha')",
        "import glob; glob.glob('/**/ch05_attention.py', recursive=True)",
        "open('/proc/self/environ').read()", "import inspect; inspect.stack()[-1]",
        "import gc; gc.get_objects()",
    ],
    "used up resources": [
        "import threading; threading.Thread(target=print).start()",
        "import multiprocessing; multiprocessing.Pool()", "x = bytearray(1 << 40)",
        "import os\nwhile True: os.fork()",
    ],
}  # fmt: skip
CALLED = {  # when a check calls the function
    "exit codes": ["import os; os._exit(0)", "raise SystemExit(0)", "raise KeyboardInterrupt"],
    "patched checks": ["x[...] = 0", "return x, lambda dy: (dy,)", "return tap, tap"],
    "forged results": ["return 'ok', lambda dy: ('ok',)", "return NotImplemented, lambda dy: True"],
    "stolen solutions": [
        "import sys; return sys._getframe(2).f_locals['expected'], None",
        "import tracemalloc; return tracemalloc.take_snapshot(), None",
    ],
}  # fmt: skip
ATTEMPTS = {
    f"{category} {k}": source
    for cases, form in (
        (LOADED, lambda code: f"{code}\n{WRONG.format('pass')}"),
        (CALLED, lambda code: WRONG.format(code)),
    )
    for category, codes in cases.items()
    for k, source in enumerate(map(form, codes), 100 * (cases is CALLED))
}


@pytest.fixture
def graded(tasks, tmp_path, monkeypatch):
    """Grade submissions, a dictionary from file names to texts: the points by student."""
    folder = tmp_path / "in"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grades.json").write_text("the teacher's")

    def points(submissions):
        write(folder, {n: x.replace("VICTIM", str(tmp_path)) for n, x in submissions.items()})
        before = {path: path.read_bytes() for path in tmp_path.rglob("[!.]*") if path.is_file()}
        report = grading.grade(folder, grading.Run(("scaled",), None, 0, Limits(5, 250)))
        assert {p: p.read_bytes() for p in tmp_path.rglob("[!.]*") if p.is_file()} == before
        return {student["student"]: student["points"] for student in report["students"]}

    return points


def test_malicious_files_and_notebooks_score_nothing(graded):
    files = {f"{name}_scaled.py": text for name, text in ATTEMPTS.items()}
    notebooks = {f"{name} again_scaled.ipynb": notebook(MARK + x) for name, x in ATTEMPTS.items()}
    honest = {"anna_scaled.py": RIGHT, "ben_scaled.ipynb": notebook(MARK + RIGHT)}
    points = graded(files | notebooks | honest)
    assert {points.pop("anna"), points.pop("ben")} == {3}
    assert points == dict.fromkeys(points, 0)
    assert len(points) == 2 * 52
