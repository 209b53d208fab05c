"""What `minimha homework check` says about answers that grading refuses."""

import pytest
from graded import RIGHT, judged, outcomes, write

from minimha.homework.teacher.grading.refused import refused

IMPORTS = """
import numpy as np; import math; import os; import json; import itertools; import re; import sys; import struct; import inspect; import traceback
from numpy.linalg import norm; import numpy.fft; from minimha.kernels import numpy_tile
import numpy.testing as npt; from numpy import testing; from numpy import linalg, exp
from numpy.lib.stride_tricks import sliding_window_view; import numpy.f2py; from numpy import *
import minimha.kernels; import minimha.parallel as p; from minimha.parallel import run, parts; from minimha.parallel import Communicator
from minimha.kernels import cpu; from minimha.kernels import *; from minimha.kernels import numpy_tile as ct
import matplotlib.pyplot as plt; import scipy; import socket; import signal; import minimha
from minimha import functional; import subprocess; import multiprocessing; import pytest
import array; import pathlib; import bz2; import selectors; import resource; import pkgutil; import difflib; import numpy.matlib; import ctypes; from concurrent.futures import ThreadPoolExecutor; import minimha.homework
""".replace("\n", ";").split(";")


@pytest.mark.parametrize("statement", [x.strip() for x in IMPORTS if x.strip()])
def test_exactly_the_imports_that_grading_refuses_are_named(statement, tmp_path):
    (tmp_path / "scaled.py").write_text(f"{statement}\n{RIGHT}")
    graded = outcomes(judged(f"{statement}\n{RIGHT}"))
    assert bool(refused(tmp_path / "scaled.py")) == (graded != ["ok", "ok"])


def test_the_students_own_modules_may_be_imported_and_are_searched(tmp_path):
    files = {
        "scaled.py": "from mine.maths import scaled\nimport mine.deep.more\nimport alone\n",
        "mine/maths.py": "from . import deep\nfrom .deep import more\n",
        "mine/deep/more.py": "from ..maths import times\n",
        "src/alone.py": "import numpy\n",
    }
    write(tmp_path, files)
    assert refused(tmp_path / "scaled.py") == ""
    write(tmp_path, {"mine/deep/more.py": "def later():\n    import pytest\n"})
    assert refused(tmp_path / "scaled.py").endswith("cannot import pytest")


def test_a_file_that_is_too_long_to_be_graded_is_refused(tmp_path):
    (tmp_path / "scaled.py").write_text(RIGHT + "#" * (1 << 20))
    assert "the file is longer than 1 MB" in refused(tmp_path / "scaled.py")


def test_check_warns_about_an_answer_that_passes(student, folder):
    code = "# minimha homework: twice\nimport pytest\ndef twice(x):\n    return x + x\n"
    write(folder, {"twice.py": code})
    exit_code, shown = student("check twice")
    assert exit_code == 0
    assert (
        "note: twice.py passes here, but where homework is graded, it cannot import pytest" in shown
    )
    write(folder, {"twice.py": code.replace("x + x", "x")})
    assert "note:" not in student("check twice")[1]
