"""The vector registers of the CPU that Numba compiles for, and the block that fits into them."""

from __future__ import annotations

from typing import NamedTuple

from numba import config
from numba.core.codegen import get_host_cpu_features

VECTORS = 2
"""The width of a block of a matrix product, in vectors; ROWS is its height. The sums of a block
stay in the registers."""


class _Registers(NamedTuple):
    """The vector registers of a CPU: the bytes in a vector, the rows of a block of a matrix product
    whose sums fit into the registers, and whether one instruction multiplies and adds vectors."""

    bytes: int
    rows: int
    multiply_and_add: bool


def _registers() -> _Registers:
    named = config.CPU_FEATURES  # from NUMBA_CPU_FEATURES; "" for a generic CPU
    if named is None:
        named = get_host_cpu_features()  # without AVX where Numba does not use it

    # "+avx2,-avx512f" means with AVX2, without AVX-512.
    has = {name[1:]: name[0] == "+" for name in named.split(",") if name}

    if has.get("avx512f"):
        return _Registers(64, 12, True)  # 24 of 32 registers hold the sums
    if has.get("avx2") and has.get("fma"):
        return _Registers(32, 6, True)  # 12 of 16
    if has.get("neon"):
        return _Registers(16, 12, True)
    return _Registers(16, 6, False)


BYTES, ROWS, _FAST = _registers()


def no_vectors() -> str | None:
    """The reason why matrix products in blocks (see `microkernel`) are not fast on this CPU, or
    None if they are."""
    return None if _FAST else "this CPU is not known to multiply and add vectors in one step"
