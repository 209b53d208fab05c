"""Run worker.py, the process that starts submissions, on a kernel that seems to have no seccomp.

A filter makes the call that would install another one fail, as on a kernel without seccomp.
"""

import ctypes
import os
import struct
import sys
from pathlib import Path

WORKER = Path(__file__).parents[1] / "minimha" / "homework" / "teacher" / "grading" / "worker.py"
PRCTL = {"x86_64": 157, "aarch64": 167}
LOAD, EQUAL, RETURN, REFUSED, ALLOWED = 0x20, 0x15, 0x06, 0x00050016, 0x7FFF0000


def install():
    """Refuse prctl to this process and its children. Returns whether that worked."""
    if sys.platform != "linux" or os.uname().machine not in PRCTL:
        return False
    lines = [
        (LOAD, 0, 0, 0),  # the number of the system call
        (EQUAL, 0, 1, PRCTL[os.uname().machine]),
        (RETURN, 0, 0, REFUSED),
        (RETURN, 0, 0, ALLOWED),
    ]
    libc, number = ctypes.CDLL(None), ctypes.c_long
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *x) for x in lines))
    program = struct.pack("@HP", len(lines), ctypes.addressof(code))
    libc.prctl(38, number(1), number(0), number(0), number(0))  # no new privileges
    libc.prctl(22, number(2), program, number(0), number(0))  # the filter
    return libc.prctl(21, number(0), number(0), number(0), number(0)) < 0


if __name__ == "__main__":
    install()
    os.execv(sys.executable, [sys.executable, "-P", "-s", "-S", "-B", str(WORKER), *sys.argv[1:]])
