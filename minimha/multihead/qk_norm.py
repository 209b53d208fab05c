"""The norm of queries and keys before they are multiplied."""

from __future__ import annotations

from typing import Any, NamedTuple

from minimha_autograd import ops

from ..functional import rms_norm


class QKNorm(NamedTuple):
    """The settings of the norm of queries and keys. A call with Q and the weight of its norm
    returns Q normalised by `rms_norm`; so does a call with K and its weight.

    all_heads  whether the numbers of all heads at one position, H·D of queries and G·D of keys, are
               normalised together, as in OLMo 2; otherwise the D numbers of each head, as in Qwen3
    eps        added to the mean of the squares, as in `rms_norm`
    plus_one   whether the norm multiplies by 1 + weight, as in Gemma 3
    """

    all_heads: bool = False
    eps: float = 1e-6
    plus_one: bool = False

    def width(self, num_heads: int, head_dim: int) -> int:
        """The length of the weight of the norm, for queries or keys in num_heads heads of width
        head_dim: the product of the two if all heads are normalised together, else head_dim."""
        return num_heads * head_dim if self.all_heads else head_dim

    def __call__(self, x: Any, weight: Any) -> Any:
        """Normalise the queries or keys x (…, H, T, D), with a learned weight (D,) or, if all heads
        are normalised together, (H·D,). The shape does not change."""
        if self.plus_one:
            weight = 1 + weight
        if not self.all_heads:
            return rms_norm(x, weight, eps=self.eps)

        # The heads of one position are put side by side, normalised, and separated again.
        *batch, h, t, d = x.shape
        n = x.ndim
        swap = (*range(n - 3), n - 2, n - 3, n - 1)
        x = ops.permute_dims(x, axes=swap)  # (…, T, H, D)
        x = ops.reshape(x, shape=(*batch, t, h * d))  # (…, T, H·D)
        x = rms_norm(x, weight, eps=self.eps)
        x = ops.reshape(x, shape=(*batch, t, h, d))  # (…, T, H, D)
        return ops.permute_dims(x, axes=swap)  # (…, H, T, D)
