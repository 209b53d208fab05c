"""What Linux refuses to the process of a submission, because NumPy can overwrite Python's checks.

Landlock refuses files (https://docs.kernel.org/userspace-api/landlock.html). A seccomp filter
refuses what reaches other processes, their signals and their memory.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator

_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_PTRACE = 101, 117
_CALLS = {  # their numbers on x86_64 and on aarch64
    "kill": (62, 129), "rt_sigqueueinfo": (129, 138), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_tgsigqueueinfo": (297, 240), "prlimit64": (302, 261), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "pidfd_send_signal and what came later": (424, 424),
}  # fmt: skip


def unprotected() -> list[str]:
    """What a submission that overwrites Python's checks could do on this machine."""
    if os.geteuid() == 0:  # submissions run as another user
        return []
    missing = {"delete your files": not _landlock(), "end your processes": not _has_seccomp()}
    return [action for action, possible in missing.items() if possible]


def confine() -> None:
    """From now on, refuse this process all files, and other processes too."""
    landlock, has_seccomp = _landlock(), _has_seccomp()
    if landlock or has_seccomp:
        _call("prctl", 38, 1, 0, 0, 0)  # no new privileges
    if landlock:
        rights = (1 << (13, 14, 15, 15, 16)[min(landlock, 5) - 1]) - 1  # all that it knows
        rules = _call("syscall", 444, struct.pack("=Q", rights), 8, 0)
        _call("syscall", 446, rules, 0)
        os.close(rules)
    if has_seccomp:
        import ctypes

        program = [struct.pack("=HBBI", *instruction) for instruction in _filter()]
        code = ctypes.create_string_buffer(b"".join(program))
        _call("prctl", 22, 2, struct.pack("@HP", len(program), ctypes.addressof(code)), 0, 0)


def _filter() -> Iterator[tuple[int, int, int, int]]:
    """The instructions of the filter: code, how many to skip if true and if false, value."""
    load, equal, at_least, end, arguments = 0x20, 0x15, 0x35, 0x06, 16
    allowed, refused = (end, 0, 0, 0x7FFF0000), (end, 0, 0, 0x00050001)
    k = list(_MACHINES).index(os.uname().machine)
    yield from ((load, 0, 0, 4), (equal, 1, 0, _MACHINES[os.uname().machine]), refused)
    yield from ((load, 0, 0, 0), (equal, 0, 1, _PTRACE[k]), refused)
    yield from ((load, 0, 0, arguments), (equal, 1, 0, 0), (equal, 0, 1, os.getpid()), allowed)
    yield (load, 0, 0, 0)
    numbers = [numbers[k] for numbers in _CALLS.values()]
    for left, number in zip(range(len(numbers), 0, -1), numbers, strict=True):
        yield (at_least if left == 1 else equal, left, 0, number)
    yield from (allowed, refused)


def _landlock() -> int:
    """The version of Landlock, or 0."""
    return max(0, _call("syscall", 444, 0, 0, 1)) if sys.platform == "linux" else 0


def _has_seccomp() -> bool:
    known = sys.platform == "linux" and os.uname().machine in _MACHINES
    return known and _call("prctl", 21, 0, 0, 0, 0) >= 0


def _call(name: str, *arguments: int | bytes) -> int:
    """Call a function of the C library."""
    import ctypes

    function = getattr(ctypes.CDLL(None), name)
    return function(*(x if isinstance(x, bytes) else ctypes.c_long(x) for x in arguments))
