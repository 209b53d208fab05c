"""`batch_invariant`: the same bits, whatever else is in the batch."""

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
"""Operations whose kernels add in a fixed order within the block."""
_EXACT = {
    "abs", "add", "astype", "clip", "concat", "divide", "dropout", "expand_dims", "flip", "getitem",
    "matrix_transpose", "maximum", "minimum", "multiply", "negative", "pad", "permute_dims", "relu",
    "reshape", "split", "sqrt", "squeeze", "stack", "subtract", "transpose", "where",
}  # fmt: skip
"""Operations that round each entry at most once, on every CPU in the same way."""
_TOTALS = {"mean", "sum"}
"""Operations that may reduce a whole array to one number, such as a loss. This number belongs to
the whole batch, and its gradient is only copied to all entries."""


@contextlib.contextmanager
def batch_invariant() -> Iterator[None]:
    """Within the `with` block, the logits and gradients of a sequence have the same bits whether it
    is alone or in any batch, and with any number of threads. Its logits also have the same bits if
    a model with a cache reads the sequence piece by piece.

        with mh.batch_invariant():
            logits = model(tokens)

    Outside such a block the bits may differ: the order in which terms are added, and with it their
    rounding, depends on the shapes of the arrays. Within the block, each entry of the result of a
    linear map is one sum, from the first term to the last. So is each entry of a parameter's
    gradient, over all positions of all sequences in order. If a loss depends on only one sequence,
    the others add zeros to this gradient, which change at most the sign of a zero.

    This holds on the CPU for NumPy arrays of float32, for a `GPT` without `logit_softcap` and for
    the layers and operations in it: linear maps, attention, rope, norms, gates, softmax, cross
    entropy, embedding, dropout that keeps the same entries, and operations that round each entry
    once, such as sums and products of two arrays. If you call `backward` after the block, the
    gradients have the same bits. A sum or mean over all axes is allowed, as a loss, but its value
    depends on the whole batch.

    Not included are the gradient of an array that broadcasting has repeated, gradients through a
    cache, a cache that has evicted positions, and calls on plain arrays, such as `ops.exp(x)`.

    Raises RuntimeError if kernels cannot be used. An operation on Tensors that would not keep the
    promise, such as `ops.exp` or a sum over some axes, raises a TypeError with the reason: call it
    before or after the block.
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
    """Return the value that the operation `name` has computed. Raises TypeError unless the
    operation keeps the promise of `batch_invariant`: the same bits in any batch."""
    is_total = name in _TOTALS and not value.shape
    if name not in _BY_KERNELS and name not in _EXACT and not is_total:
        why = "they are computed by NumPy or BLAS, whose rounding depends on the arrays' shapes"
        refuse(why, f"{name}: its values or gradients")
    return value
