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

    Weights start normal with the standard deviation std, by default 1/√M; biases start at 0.
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
        shape = in_features, out_features
        std = 1 / math.sqrt(in_features) if std is None else std
        self.weight = parameter(backend.normal(rng, shape, std=std, dtype=dtype))
        self.bias = parameter(backend.full((out_features,), 0, dtype=dtype)) if bias else None

    def __call__(self, x: Any) -> Any:
        """(…, M) -> (…, N)"""
        return linear(x, self.weight, self.bias)


class LayerNorm(Module):
    """`functional.layer_norm` with its weight and bias, over a last axis of the given width."""

    def __init__(
        self, width: int, *, bias: bool = True, eps: float = 1e-5, dtype: str = "float32"
    ) -> None:
        self.weight = parameter(backend.full((width,), 1, dtype=dtype))
        self.bias = parameter(backend.full((width,), 0, dtype=dtype)) if bias else None
        self.eps = at_least_0(eps, "eps")

    def __call__(self, x: Any) -> Any:
        """(…, M) -> (…, M)"""
        return layer_norm(x, self.weight, self.bias, eps=self.eps)


class RMSNorm(Module):
    """`functional.rms_norm` with its weight, over a last axis of the given width.

    plus_one  whether the norm multiplies by 1 + weight, and the weight starts at 0, as in Gemma:
              weight decay then draws the factor to 1
    """

    def __init__(
        self, width: int, *, eps: float = 1e-6, plus_one: bool = False, dtype: str = "float32"
    ) -> None:
        self.weight = parameter(backend.full((width,), 0 if plus_one else 1, dtype=dtype))
        self.eps = at_least_0(eps, "eps")
        self.plus_one = plus_one

    def __call__(self, x: Any) -> Any:
        """(…, M) -> (…, M)"""
        return rms_norm(x, 1 + self.weight if self.plus_one else self.weight, eps=self.eps)


class Embedding(Module):
    """A table (N, M) of embeddings, initialised with the given standard deviation.

    The rows of a table of bfloat16 become float32.
    """

    def __init__(
        self, count: int, width: int, *, std: float = 1.0, rng: Rng = 0, dtype: str = "float32"
    ) -> None:
        self.table: Any = parameter(backend.normal(rng, (count, width), std=std, dtype=dtype))
        self.widens = dtype == "bfloat16"

    def __call__(self, indices: Any) -> Any:
        """(…) -> (…, M)"""
        if isinstance(self.table, Quantised):
            return Tensor(self.table.rows(array_of(indices)))
        return self._widened(embedding(self.table, indices))

    def _widened(self, rows: Any) -> Any:
        """Rows of the table as float32, if it is of bfloat16."""
        return ops.astype(rows, dtype="float32") if self.widens else rows


class Dropout(Module):
    """`functional.drop` with the probability p, in calls with an rng."""

    def __init__(self, p: float) -> None:
        self.p = probability(p, "p")

    def __call__(self, x: Any, rng: backend.Generator | None = None) -> Any:
        """x itself without an rng, as in evaluation. (…) -> (…)"""
        return x if rng is None else drop(x, self.p, rng=rng)


class MLP(Module):
    """The multi-layer perceptron of a transformer block: M -> hidden -> M, for each position.

        "gelu", "relu"   narrow(activation(widen(x)))
        "swiglu"         narrow(silu(gate(x)) · widen(x))
        "geglu"          narrow(gelu(gate(x)) · widen(x))

    hidden  the width between the two maps, 4 M by default

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
        if activation not in (known := tuple(_ACTIVATIONS)):
            raise ValueError(f"activation = {activation!r} must be one of {', '.join(known)}")
        rng, hidden = backend.generator(rng), 4 * d_model if hidden is None else hidden
        self.activation = activation
        self.widen = Linear(d_model, hidden, bias=bias, rng=rng, dtype=dtype)
        self.gate = None
        if activation.endswith("glu"):
            self.gate = Linear(d_model, hidden, bias=bias, rng=rng, dtype=dtype)
        self.narrow = Linear(hidden, d_model, bias=bias, rng=rng, dtype=dtype)

    def __call__(self, x: Any) -> Any:
        """(…, M) -> (…, M)"""
        wide, activated = self.widen(x), _ACTIVATIONS[self.activation]
        if self.gate is not None:
            return self.narrow(activated(self.gate(x), wide))
        return self.narrow(activated(wide))


_ACTIVATIONS = {"gelu": gelu, "relu": relu, "swiglu": silu, "geglu": gelu}
