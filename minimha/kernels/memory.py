"""The memory of the host."""

from __future__ import annotations

import functools

import numpy as np


@functools.cache
def reuse() -> None:
    """Have glibc keep what a training step frees, up to 64 MB of it, for the next step.

    It returns free memory to the system beyond a limit, small at first, and takes it anew page by
    page, a fifth of the time of a small GPT's step. The limit becomes twice the size of a large
    piece when that is freed, if it has at most 32 MiB; nobody writes to this one.
    """
    np.empty(2**25 - 2**16, np.uint8)
