"""The kernels of `functional` and of the optimisers, registered if Numba can be used."""

from . import unavailable

if unavailable() is None:
    from .cpu import elementwise, embedding, linear, norms, softmax  # noqa: F401
