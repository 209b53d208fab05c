"""The layers of a transformer other than attention."""

from __future__ import annotations

import math
from typing import Any

from minimha_autograd import Tensor, array_of, backend, ops
from minimha_autograd.backend import Rng

from ..functional import Quantised, drop, embedding, gelu, layer_norm, linear, relu, rms_norm, silu
from ..functional.checks import at_least_0, probability
from .module import Module, parameter


class Linear(Module):
    """y = x · weight + bias, with x (…, M), weight (M, N), bias (N,).

    M is in_features, N is out_features. A generator or seed, rng, draws the weights from the normal
    distribution with the standard deviation std, by default 1/√M; biases start at 0.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        std: float | None = None,
        rng: Rng = 0,
        dtype: str = "float32",
    ) -> None:
        # With this std, a sum of M products is about as large as an entry of x.
        if std is None:
            std = 1 / math.sqrt(in_features)
        shape = (in_features, out_features)
        weight = backend.normal(rng, shape, std=std, dtype=dtype)
        self.weight = parameter(weight)  # (M, N)
        self.bias: Tensor | None = None
        if bias:
            self.bias = parameter(backend.full((out_features,), 0, dtype=dtype))  # (N,)

    def __call__(self, x: Any) -> Any:
        """Apply the linear map to the last axis of x: (…, M) -> (…, N)."""
        return linear(x, self.weight, self.bias)


class LayerNorm(Module):
    """`functional.layer_norm` with its weight and, if `bias`, its bias, over a last axis of the
    given width; eps is that of the function."""

    def __init__(
        self,
        width: int,
        *,
        bias: bool = True,
        eps: float = 1e-5,
        dtype: str = "float32",
    ) -> None:
        # At the start y is x̂.
        self.weight = parameter(backend.full((width,), 1, dtype=dtype))  # (M,)
        self.bias: Tensor | None = None
        if bias:
            self.bias = parameter(backend.full((width,), 0, dtype=dtype))  # (M,)
        self.eps = at_least_0(eps, "eps")

    def __call__(self, x: Any) -> Any:
        """Normalise the last axis of x: (…, M) -> (…, M)."""
        return layer_norm(x, self.weight, self.bias, eps=self.eps)


class RMSNorm(Module):
    """`functional.rms_norm` with its weight, over a last axis of the given width; eps is that of
    the function.

    plus_one  whether the norm multiplies by 1 + weight, and the weight starts at 0, as in Gemma:
              weight decay then draws the factor to 1, not to 0
    """

    def __init__(
        self,
        width: int,
        *,
        eps: float = 1e-6,
        plus_one: bool = False,
        dtype: str = "float32",
    ) -> None:
        # At the start y is x̂.
        start = 0 if plus_one else 1
        self.weight = parameter(backend.full((width,), start, dtype=dtype))  # (M,)
        self.eps = at_least_0(eps, "eps")
        self.plus_one = plus_one

    def __call__(self, x: Any) -> Any:
        """Normalise the last axis of x: (…, M) -> (…, M)."""
        weight: Any = self.weight
        if self.plus_one:
            weight = 1 + weight  # (M,)
        return rms_norm(x, weight, eps=self.eps)


class Embedding(Module):
    """A table (N, M) of embeddings: N = count rows of M = width numbers. A generator or seed, rng,
    draws them from the normal distribution with standard deviation std.

    If the table is of bfloat16, a call converts the rows that it returns to float32.
    """

    def __init__(
        self,
        count: int,
        width: int,
        *,
        std: float = 1.0,
        rng: Rng = 0,
        dtype: str = "float32",
    ) -> None:
        table = backend.normal(rng, (count, width), std=std, dtype=dtype)
        self.table: Any = parameter(table)  # (N, M)
        self.widens = dtype == "bfloat16"

    def __call__(self, indices: Any) -> Any:
        """The rows of the table with these indices: (…) -> (…, M)."""
        if isinstance(self.table, Quantised):  # by `quantise`
            return Tensor(self.table.rows(array_of(indices)))
        return self._widened(embedding(self.table, indices))

    def _widened(self, rows: Any) -> Any:
        """Rows of the table, converted to float32 if the table is of bfloat16."""
        if not self.widens:
            return rows
        return ops.astype(rows, dtype="float32")


class Dropout(Module):
    """Drop entries with probability p, as `functional.drop`, but only in calls with an rng."""

    def __init__(self, p: float) -> None:
        self.p = probability(p, "p")

    def __call__(self, x: Any, rng: backend.Generator | None = None) -> Any:
        """Drop entries of x, of any shape. Without an rng, as in evaluation, x is returned
        unchanged."""
        if rng is None:
            return x
        return drop(x, self.p, rng=rng)


class MLP(Module):
    """The multi-layer perceptron of a transformer block: M -> hidden -> M, for each position.

        "gelu", "relu"   narrow(activation(widen(x)))
        "swiglu"         narrow(silu(gate(x)) · widen(x))
        "geglu"          narrow(gelu(gate(x)) · widen(x))

    widen and gate are linear maps M -> hidden, and narrow is a linear map hidden -> M.

    d_model     M
    hidden      4 M by default
    activation  one of the four names above
    bias        whether the linear maps have biases
    rng         a generator or a seed, which draws their weights

    Source: Vaswani et al. (2017), section 3.3; Shazeer, "GLU Variants Improve Transformer" (2020).
    """

    def __init__(
        self,
        d_model: int,
        hidden: int | None = None,
        *,
        activation: str = "gelu",
        bias: bool = True,
        rng: Rng = 0,
        dtype: str = "float32",
    ) -> None:
        known = tuple(_ACTIVATIONS)
        if activation not in known:
            raise ValueError(f"activation = {activation!r} must be one of {', '.join(known)}")
        if hidden is None:
            hidden = 4 * d_model  # as in the paper

        # One generator for all maps: a seed would give them the same weights.
        rng = backend.generator(rng)
        self.activation = activation
        self.widen = Linear(d_model, hidden, bias=bias, rng=rng, dtype=dtype)  # M -> hidden
        self.gate = None
        if activation.endswith("glu"):  # a gated linear unit
            self.gate = Linear(d_model, hidden, bias=bias, rng=rng, dtype=dtype)  # M -> hidden
        self.narrow = Linear(hidden, d_model, bias=bias, rng=rng, dtype=dtype)  # hidden -> M

    def __call__(self, x: Any) -> Any:
        """Apply the perceptron to the last axis of x: (…, M) -> (…, M)."""
        activated = _ACTIVATIONS[self.activation]
        wide = self.widen(x)  # (…, hidden)
        if self.gate is None:
            return self.narrow(activated(wide))

        # The second argument is a factor: activation(gate(x)) · wide.
        return self.narrow(activated(self.gate(x), wide))


_ACTIVATIONS = {"gelu": gelu, "relu": relu, "swiglu": silu, "geglu": gelu}
