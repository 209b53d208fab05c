"""A processor that this process shares with six others, which compute all the time."""

import contextlib
import os
import subprocess
import sys

SPIN = "import sys, time; end = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"


SHARED = hasattr(os, "sched_setaffinity")
"""Whether this system can make processes share a processor."""


@contextlib.contextmanager
def processes(count=6, most=120):
    """Run `count` busy processes, which end by themselves after `most` seconds. Where the system
    can, they, this process and those that it starts share one processor.

    Each is a session of its own, since Linux may share a processor out among sessions: together,
    six processes of one session would take no more time from this one than a single process.
    """
    if SHARED:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(before)})
    command = [sys.executable, "-S", "-c", SPIN, str(most)]
    spinning = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()
        if SHARED:
            os.sched_setaffinity(0, before)
