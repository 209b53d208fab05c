"""Compiled kernels: other implementations of operations, with the same values and pullbacks.

They register with `functional.acceleration`. No result depends on them, only its speed, and nothing
is imported before it is used.
"""

from .availability import unavailable

__all__ = ["unavailable"]
