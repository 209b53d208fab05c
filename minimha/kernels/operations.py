"""The kernels of `functional` and of the optimisers; those for the CPU register if Numba can be
used."""

from importlib import import_module

from . import unavailable

_ON_GPU = "elementwise", "embedding", "linear", "norms", "optimiser", "softmax", "sums"
_ON_CPU = "elementwise", "embedding", "linear", "linear_attention", "norms", "softmax"

for _name in _ON_GPU:
    import_module(f".gpu.{_name}", __package__)
if unavailable() is None:
    for _name in _ON_CPU:
        import_module(f".cpu.{_name}", __package__)
