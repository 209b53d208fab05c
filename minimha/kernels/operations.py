"""The kernels of `functional` and of the optimisers; those for the CPU register if Numba can be
used."""

from . import unavailable
from .gpu import adamw  # noqa: F401

if unavailable() is None:
    from .cpu import elementwise, embedding, linear, linear_attention, norms, softmax  # noqa: F401
