"""Lets Linux refuse system calls to the process of a submission, because NumPy can overwrite
Python's checks.

A seccomp filter decides by the number of a system call and its first two arguments:
https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator

_REFUSED = {
    "x86_64": (
        0xC000003E,
        "49 76 82-94 101 132-133 155 161 165-166 188-199 235 257-261 263-268 280 316"
        " 424-4294967295",
        "62 129 200 234 297 302 310-311",
        (72, 16),
    ),
    "aarch64": (
        0xC00000B7,
        "5-16 33-41 45 51-56 88 117 200 276 424-4294967295",
        "129-131 138 240 261 270-271",
        (25, 29),
    ),
}
"""What is refused, by the type of machine. In order: the number that seccomp has for the machine;
the numbers of the system calls that change files by their paths, of bind and ptrace, and of those
that are newer than 2019; the numbers of those that reach the process in the first argument, such as
its signals, its memory and its limits; and the numbers of fcntl and ioctl."""

_OWNERS = (8, 10, 15), (0x8901, 0x8902)
"""The commands of fcntl and of ioctl that are refused: they choose the process to which Linux sends
a signal when a file or a socket is ready, and the signal."""


def protects() -> bool:
    """Whether this machine protects files and other processes even from a submission that switches
    off Python's own checks, the audit hook of `worker.lock`, by overwriting memory."""
    return os.geteuid() == 0 or _has_filters()  # root runs submissions as another user


def confine() -> None:
    """From now on, let Linux refuse the system calls by which this process could change files by
    their paths or reach other processes. (`worker.limit` prevents it from opening files.) This
    works only on Linux with seccomp filters, and on the types of machine for which `_REFUSED` lists
    system calls; elsewhere, this function does nothing."""
    if not _has_filters():
        return
    import ctypes

    program = [struct.pack("=HBBI", *instruction) for instruction in _filter()]
    code = ctypes.create_string_buffer(b"".join(program))
    _prctl(38, 1, 0)  # no new privileges, which a filter requires
    _prctl(22, 2, struct.pack("@HP", len(program), ctypes.addressof(code)))


def _has_filters() -> bool:
    return sys.platform == "linux" and os.uname().machine in _REFUSED and _prctl(21, 0, 0) >= 0


def _prctl(option: int, first: int, second: int | bytes) -> int:
    import ctypes

    zero = ctypes.c_long(0)
    last = second if isinstance(second, bytes) else ctypes.c_long(second)
    return ctypes.CDLL(None).prctl(option, ctypes.c_long(first), last, zero, zero)


def _filter() -> Iterator[tuple[int, int, int, int]]:
    """Yield the instructions of the seccomp filter, which refuses system calls. Each has a code,
    the number of instructions to skip if its test is true, the number to skip if it is false, and a
    value."""
    machine, always, for_others, with_commands = _REFUSED[os.uname().machine]
    load, equal, above, at_least = 0x20, 0x15, 0x25, 0x35
    allow, refuse = (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)

    def refused(numbers: str) -> Iterator[tuple[int, int, int, int]]:
        yield (load, 0, 0, 0)
        for part in numbers.split():
            first, _, last = part.partition("-")
            yield from ((at_least, 0, 2, int(first)), (above, 1, 0, int(last or first)), refuse)

    yield from ((load, 0, 0, 4), (equal, 1, 0, machine), refuse)
    yield from refused(always)
    for call, commands in zip(with_commands, _OWNERS, strict=True):
        yield from ((load, 0, 0, 0), (equal, 0, 1 + 2 * len(commands), call), (load, 0, 0, 24))
        for command in commands:
            yield from ((equal, 0, 1, command), refuse)
    yield from ((load, 0, 0, 16), (equal, 1, 0, 0), (equal, 0, 1, os.getpid()), allow)
    yield from refused(for_others)
    yield allow
