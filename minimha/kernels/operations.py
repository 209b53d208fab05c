"""The kernels of `functional` and of the optimiser, registered where Numba can be used."""

from .availability import unavailable

if unavailable() is None:
    from .cpu import operations  # noqa: F401  # registers what it defines
