"""Kernels in CUDA C++, which CuPy compiles when they are first needed."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

REALS = {"float32": "float", "float64": "double"}
"""The types that kernels compute in: what `real` stands for in a source, for each dtype."""


@functools.cache
def kernel(source: Path, name: str, dtype: Any) -> Any:
    """A kernel of a source for arrays of a dtype, called with grid, block and arguments."""
    import cupy

    options = (f"-Dreal={REALS[str(dtype)]}",)
    return cupy.RawKernel(source.read_text(encoding="ascii"), name, options=options)
