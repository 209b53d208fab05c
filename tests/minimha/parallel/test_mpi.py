"""Ranks under mpiexec: their messages, and what is printed when one of them fails.

Starting mpiexec takes a third of a second, so `on_mpi.py` checks several things in each start.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from minimha.__main__ import main
from minimha.parallel import world

MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
PROGRAM = Path(__file__).with_name("on_mpi.py")


def under_mpiexec(test):
    """A test that starts mpiexec."""
    missing = pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec")
    return pytest.mark.thorough(missing(test))


def mpiexec(ranks, *arguments, options=(), **variables):
    """Run Python on several ranks."""
    return subprocess.run(
        [MPIEXEC, *options, "-n", str(ranks), sys.executable, *map(str, arguments)],
        env={name: x for name, x in os.environ.items() if "_NUM_THREADS" not in name} | variables,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


@under_mpiexec
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_messages_and_collectives_under_mpiexec(ranks):
    checks = "messages", "collectives", "changes", "idle", "threads", "training"
    done = mpiexec(ranks, PROGRAM, 60, *checks)
    assert (done.returncode, done.stderr) == (0, "")


@under_mpiexec
def test_ranks_on_two_computers():
    """Which are one here, under two names: MPI then uses no shared memory between them."""
    two = ["-launcher", "fork", "-hosts", "localhost,127.0.0.1", "-ppn", "2"]
    done = mpiexec(4, PROGRAM, 60, "messages", "collectives", options=two)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


FAULTS = {
    "disagree": "ranks disagree: rank 0 is at step 3, call 1: all_reduce of float64 .4.; rank 1 is at "
    "step 3, call 1: all_reduce of float64 .3.",
    "end_early": "rank 0 waits for rank 1 at call 1: all_gather .*, but rank 1 has ended",
    "do_not_receive": "rank 1 sent to rank 0 at send and recv, but rank 0 never received it",
    "do_not_send": "rank 0 waits for rank 1 at send and recv, and nothing arrived in 1 s",
    "is_killed": "rank 1 of 3 crashed or was killed: did memory run out.",
    "cannot_go_on": "not this way",
}


@under_mpiexec
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_ends_all_ranks_and_one_of_them_says_why_in_one_line(name):
    started = time.monotonic()
    timeout = 1 if name == "do_not_send" else 300  # on a busy machine, a rank may be late
    done = mpiexec(3, PROGRAM, timeout, name)
    assert time.monotonic() - started < 100
    assert done.returncode != 0
    assert re.fullmatch(rf"minimha: .*{FAULTS[name]}.*\n", done.stderr)


@under_mpiexec
@pytest.mark.parametrize("name", ["one_raises", "all_raise"])
def test_an_uncaught_exception_ends_all_ranks_and_one_of_them_prints_it(name):
    done = mpiexec(3, PROGRAM, 60, name)
    assert done.returncode != 0
    rank = name == "one_raises"
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.endswith(f"ZeroDivisionError: on purpose\non rank {rank:d} of 3\n")


TRAIN = (
    "train --text text --layers 1 --heads 4 --width 16 --context 16 --batch 5 --steps 12 --every 4"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with a text."""
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("the quick brown fox jumps over the lazy dog. " * 40)
    return tmp_path


def losses(name):
    rows = Path(name, "losses.csv").read_text().splitlines()[1:]
    return [float(row.split(",")[1]) for row in rows]


@under_mpiexec
def test_the_checkpoint_of_a_killed_run_continues_on_another_number_of_ranks(folder):
    assert main([*TRAIN.split(), "--out", "alone"]) == 0
    killed = mpiexec(
        3, PROGRAM, 60, "is_killed_in_training", TRAIN=f"{TRAIN} --parallel data --out out"
    )
    assert killed.returncode != 0
    assert killed.stderr == "minimha: rank 1 of 3 crashed or was killed: did memory run out?\n"
    options = ["--out", "out", "--resume", "--parallel", "ring"]
    done = mpiexec(2, "-m", "minimha", "train", *options)
    assert (done.returncode, done.stderr, done.stdout.count("The model is in")) == (0, "", 1)
    np.testing.assert_allclose(losses("out"), losses("alone"), rtol=1e-5)


@under_mpiexec
@pytest.mark.parametrize(
    ("ranks", "options", "message"),
    [
        (2, "--out out", "2 ranks need --parallel and one of data, heads, ulysses, ring"),
        (5, "--out out --parallel heads", "5 ranks need at least 5 heads"),
        (2, "--out out --parallel data --backend array-api-strict", ".*MPI sends arrays of NumPy"),
        (2, "--out text --parallel data", "text is not an empty folder: choose another --out"),
    ],
)  # fmt: skip
def test_one_rank_says_in_one_line_why_the_run_cannot_start(ranks, options, message, folder):
    done = mpiexec(ranks, "-m", "minimha", *TRAIN.split(), *options.split())
    assert done.returncode != 0
    assert re.fullmatch(f"minimha: {message}.*\n", done.stderr)


@under_mpiexec
def test_no_rank_goes_on_before_all_are_connected_to_the_watcher():
    """If one failed earlier, the watcher would end, and the others report a lost connection."""
    program = """
import os, socket, time
import minimha
connect, last = socket.create_connection, os.environ["PMI_RANK"] == "1"
socket.create_connection = lambda address: time.sleep(last) or connect(address)
started = time.monotonic()
minimha.parallel.world()
assert time.monotonic() - started >= 0.9
"""
    done = mpiexec(2, "-c", program)
    assert (done.returncode, done.stderr) == (0, "")


@under_mpiexec
def test_arrays_on_a_gpu_are_refused_by_an_mpi_without_cuda():
    done = mpiexec(2, PROGRAM, 60, "arrays_on_a_gpu")
    message = "this MPI cannot read the memory of a GPU: send x.get()"
    assert re.fullmatch(f"minimha: .*{re.escape(message)}.*\n", done.stderr)


@under_mpiexec
def test_the_program_in_the_documentation_prints_what_the_page_shows(tmp_path):
    page = Path(__file__).parents[3].joinpath("docs", "many-machines.md").read_text("utf-8")
    program, output = re.search(
        r"```python\n(.*?)```.*?```text\n(.*?)```", page, re.DOTALL
    ).groups()
    tmp_path.joinpath("program.py").write_text(program)
    assert mpiexec(2, tmp_path / "program.py").stdout == output


@under_mpiexec
def test_mpi4py_is_needed_only_under_mpiexec():
    program = "import sys; sys.modules['mpi4py'] = None; import minimha; minimha.parallel.world()"
    assert 'needs mpi4py: pip install ".[mpi]"' in mpiexec(1, "-c", program).stderr
    subprocess.run([sys.executable, "-c", program], check=True)


@under_mpiexec
def test_the_mpiexec_of_another_mpi_is_noticed():
    done = subprocess.run(
        [sys.executable, "-c", "import minimha; minimha.parallel.world()"],
        env=os.environ | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "mpiexec started 4 processes, but mpi4py sees 1" in done.stderr


def test_without_mpiexec_there_is_one_rank():
    comm = world(timeout=7)
    assert (comm.rank, comm.size, comm.timeout) == (0, 1, 7)
    assert comm.all_reduce(np.ones(3)).tolist() == [1, 1, 1]
