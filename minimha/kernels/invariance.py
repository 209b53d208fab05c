"""The same bits whatever else is in the batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from minimha_autograd.modes import watch

from ..functional.implementations import batch_invariance, refuse
from . import unavailable

_BY_KERNELS = {
    "cross_entropy", "embedding", "gelu", "layer_norm", "linear", "project_fused", "project_in",
    "project_out", "project_self", "rms_norm", "rope", "scaled_dot_product_attention", "silu",
    "softmax",
}  # fmt: skip
"""Operations whose kernels, within the block, sum in an order of their own."""
_EXACT = {
    "abs", "add", "astype", "clip", "concat", "divide", "dropout", "expand_dims", "flip", "getitem",
    "matrix_transpose", "maximum", "minimum", "multiply", "negative", "pad", "permute_dims", "relu",
    "reshape", "split", "sqrt", "squeeze", "stack", "subtract", "transpose", "where",
}  # fmt: skip
"""Operations that round each entry at most once, on every CPU in the same way."""
_TOTALS = {"mean", "sum"}
"""Operations that make one number of a whole array, such as a loss. The number belongs to no
sequence alone, and its gradient is repeated without rounding."""


@contextlib.contextmanager
def batch_invariant() -> Iterator[None]:
    """Within the `with` block, the logits and gradients of a sequence are the same to the bit alone
    and in any batch, from one piece or from several with a cache, and for any number of threads.

        with mh.batch_invariant():
            logits = model(tokens)

    Usually they are not: the order in which numbers are summed, and so their rounding, depends on
    the shapes of the arrays. Here each entry of a linear map is one sum, from the first term to the
    last. So are the gradients of parameters, over all positions of all sequences in order: those of
    a loss that depends on one sequence alone do not depend on the others, which add zeros.

    Holds on the CPU for NumPy arrays of float32, for `GPT` and for what it is made of: linear maps,
    attention, rope, norms, gates, softmax, cross entropy, embedding, dropout for a given draw, and
    operations that round each entry once, such as sums and products of two arrays. A gradient that
    is computed later, after the block, has the same bits. A sum or mean over all axes is allowed,
    as a loss, but not included, since it depends on the whole batch. Not included either: the
    gradient of an array that broadcasting has repeated, and, with a cache, gradients and evicted
    positions.

    Raises RuntimeError if kernels cannot be used and, at an operation on Tensors that would not
    keep the promise, such as `ops.exp` or a sum over some axes, a TypeError with the reason.
    Compute those before or after the block.
    """
    why = unavailable()
    if why is not None:
        raise RuntimeError(
            f"batch_invariant() needs compiled kernels, which sum in a fixed order, but {why}"
        )
    token = batch_invariance.set(True)
    try:
        with watch(_checked):
            yield
    finally:
        batch_invariance.reset(token)


def _checked(name: str, value: Any) -> Any:
    """The value of an operation. Raises TypeError unless the operation keeps the promise."""
    is_total = name in _TOTALS and not value.shape
    if name not in _BY_KERNELS and name not in _EXACT and not is_total:
        refuse(name, "it is computed by NumPy, whose rounding depends on the shapes of the arrays")
    return value
