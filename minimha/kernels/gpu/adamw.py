"""AdamW on a GPU: one kernel computes the update of a parameter. As operations on arrays it takes
13, more than half of all kernels that a training step launches. Not yet run on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minimha_autograd.backend import Array, namespace

from ...functional.implementations import register
from . import cuda

SOURCE = Path(__file__).with_suffix(".cu")
_THREADS, _BLOCKS = 256, 2**12
"""The threads in a block, and the most blocks in a grid."""


@register("adamw_on_gpu")
def adamw(
    p: Array, g: Array, m: Array, v: Array, betas: Any, decay: float, rate: float, eps: float
) -> Any:
    """As the reference in `nn.optimisers`. m and v belong to the optimiser and change in place; p
    may have been saved by a pullback and does not. None unless they are arrays of CuPy in float32
    or float64."""
    if not type(p).__module__.startswith("cupy") or str(p.dtype) not in cuda.REALS:
        return None
    xp = namespace(p)
    p, g, m, v = map(xp.ascontiguousarray, (p, g, m, v))
    new, numbers = xp.empty(p.shape, dtype=p.dtype), map(float, (*betas, decay, rate, eps))
    blocks = max(1, min(_BLOCKS, -(-p.size // _THREADS)))
    kernel = cuda.kernel(SOURCE, "adamw", p.dtype)
    kernel((blocks,), (_THREADS,), (p, g, m, v, new, *numbers, p.size))
    return new, m, v
