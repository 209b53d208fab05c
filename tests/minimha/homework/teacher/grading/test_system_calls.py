"""What the kernel refuses, even if nothing else does, and the warning where it cannot."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from graded import RIGHT, options

from minimha.homework.teacher.grading import grade as grading
from minimha.homework.teacher.grading import process, system_calls

TRIED = """
import ctypes, fcntl, json, os, resource, socket, struct, sys
sys.path.insert(0, {folder!r})
import system_calls
own, other = os.getpid(), int(sys.argv[2])
one, _ = socket.socketpair()
call = ctypes.CDLL(None, use_errno=True)
def failed(name, *arguments):
    if getattr(call, name)(*map(ctypes.c_long, arguments)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
if sys.argv[1] == "confined":
    system_calls.confine()
found = []
for act in (
    lambda: os.kill(own, 0),
    lambda: os.killpg(0, 0),
    lambda: resource.getrlimit(resource.RLIMIT_AS),
    lambda: bytearray(1 << 26),
    lambda: fcntl.fcntl(one, fcntl.F_GETOWN),
    lambda: fcntl.fcntl(one, fcntl.F_SETOWN, other),
    lambda: fcntl.fcntl(one, fcntl.F_SETSIG, 9),
    lambda: fcntl.fcntl(one, 15, struct.pack("ii", 1, other)),
    lambda: fcntl.ioctl(one, 0x8901, struct.pack("i", other)),
    lambda: fcntl.ioctl(one, 0x8902, struct.pack("i", other)),
    lambda: socket.socket(socket.AF_UNIX).bind({victim!r} + "3"),
    lambda: os.kill(other, 0),
    lambda: failed("sigqueue", other, 0, 0),
    lambda: resource.prlimit(other, resource.RLIMIT_CORE),
    lambda: failed("ptrace", 16, other, 0, 0),
    lambda: os.pidfd_open(other),
    lambda: os.chmod({victim!r}, 0o600),
    lambda: os.truncate({victim!r}, 0),
    lambda: os.rename({victim!r}, {victim!r} + "2"),
    lambda: os.remove({victim!r} + "2"),
    lambda: os.mkdir({victim!r}),
    lambda: os.utime({victim!r}),
    lambda: os.listdir("/"),
):
    try:
        act()
        found.append("done")
    except OSError as error:
        found.append(error.strerror)
print(json.dumps(found))
"""


@pytest.mark.skipif(not system_calls._has_filters(), reason="needs seccomp")
def test_the_filter_refuses_other_processes_and_files_but_nothing_else(tmp_path):
    (tmp_path / "victim").write_text("of another")
    folder = os.path.dirname(system_calls.__file__)
    code = TRIED.format(folder=folder, victim=str(tmp_path / "victim"))

    def tried(how):
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"])
        try:
            command = [sys.executable, "-c", code, how, str(other.pid)]
            return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        finally:
            other.kill()
            other.wait()

    assert tried("confined") == ["done"] * 5 + ["Operation not permitted"] * 18
    assert (tmp_path / "victim").read_text() == "of another"
    free = tried("free")
    assert free.count("done") >= len(free) - 1  # where tracing is restricted


@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize("protects", [True, False])
def test_a_system_that_cannot_protect_files_gets_one_warning(
    protects, tmp_path, monkeypatch, capsys
):
    for name in ("anna", "ben"):
        (tmp_path / f"{name}_scaled.py").write_text(RIGHT)
    monkeypatch.setattr(system_calls, "protects", lambda: protects)
    grading.grade_submissions(options(grading, tmp_path, "--jobs", 1))
    assert capsys.readouterr().err.count("grade in a container") == (not protects)


def test_names_and_modules_never_reach_the_process_that_starts_the_others(monkeypatch):
    sent, asked = [], process._asked
    monkeypatch.setattr(process, "_asked", lambda *x: sent.append(x[0]) or asked(*x))
    own = {"system_calls.py": b"def f(): return 1", "connection.py": b"from system_calls import f"}
    limits = process.Limits()
    with process.Submission(b"from connection import f", "f", limits, own) as submission:
        assert submission.function()() == 1
    assert [x for x in sent if not isinstance(x, list)] == []
    assert all(isinstance(x, int | float) for request in sent for x in request)


HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",
}
NEEDED = """
    read write close fstat newfstatat lseek mmap mprotect munmap mremap brk madvise futex exit
    exit_group rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack getpid gettid clock_gettime
    clock_nanosleep nanosleep getrandom getrusage sched_yield sched_getaffinity
    set_robust_list rseq membarrier ppoll ioctl getcwd uname restart_syscall
"""
DANGEROUS = """
    kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal pidfd_open pidfd_getfd
    ptrace process_vm_readv process_vm_writev process_madvise prlimit64 truncate renameat renameat2
    bind unlinkat linkat symlinkat mkdirat mknodat fchmodat fchmodat2 fchownat utimensat setxattr
    removexattr mount umount2 pivot_root chroot openat openat2 open_tree move_mount
"""


@pytest.mark.parametrize("machine", HEADERS)
def test_the_numbers_are_those_of_the_system_calls_that_reach_others(machine):
    try:
        header = Path(HEADERS[machine]).read_text(encoding="ascii")
    except OSError:
        pytest.skip("needs Linux's headers")
    numbers = {n: int(k) for n, k in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header)}
    refused = set()
    for part in " ".join(system_calls._REFUSED[machine][1:3]).split():
        first, _, last = part.partition("-")
        refused |= {name for name, k in numbers.items() if int(first) <= k <= int(last or first)}
    assert not refused & set(NEEDED.split())
    assert not {x for x in DANGEROUS.split() if x in numbers} - refused
    assert system_calls._REFUSED[machine][3] == (numbers["fcntl"], numbers["ioctl"])
    assert len(numbers) > 250
