"""The layers of a transformer other than attention."""

from __future__ import annotations

import math
from typing import Any

from minimha_autograd import backend
from minimha_autograd.backend import Rng

from ..functional import embedding, layer_norm, linear, rms_norm
from .module import Module, parameter


class Linear(Module):
    """y = x · weight + bias, with x (…, M), weight (M, N), bias (N,); weights start with variance
    1/M."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        rng: Rng = 0,
        dtype: str = "float32",
    ) -> None:
        shape, std = (in_features, out_features), 1 / math.sqrt(in_features)
        self.weight = parameter(backend.normal(rng, shape, std=std, dtype=dtype))
        self.bias = parameter(backend.full((out_features,), 0, dtype=dtype)) if bias else None

    def __call__(self, x: Any) -> Any:
        """(…, M) -> (…, N)"""
        return linear(x, self.weight, self.bias)


class LayerNorm(Module):
    """`functional.layer_norm` with its weight and bias, over a last axis of the given width."""

    def __init__(self, width: int, *, dtype: str = "float32") -> None:
        self.weight = parameter(backend.full((width,), 1, dtype=dtype))
        self.bias = parameter(backend.full((width,), 0, dtype=dtype))

    def __call__(self, x: Any) -> Any:
        """(…, M) -> (…, M)"""
        return layer_norm(x, self.weight, self.bias)


class RMSNorm(Module):
    """`functional.rms_norm` with its weight, over a last axis of the given width."""

    def __init__(self, width: int, *, eps: float = 1e-6, dtype: str = "float32") -> None:
        self.weight = parameter(backend.full((width,), 1, dtype=dtype))
        self.eps = eps

    def __call__(self, x: Any) -> Any:
        """(…, M) -> (…, M)"""
        return rms_norm(x, self.weight, eps=self.eps)


class Embedding(Module):
    """A table (N, M) of embeddings, initialised with the given standard deviation."""

    def __init__(
        self, count: int, width: int, *, std: float = 1.0, rng: Rng = 0, dtype: str = "float32"
    ) -> None:
        self.table = parameter(backend.normal(rng, (count, width), std=std, dtype=dtype))

    def __call__(self, indices: Any) -> Any:
        """(…) -> (…, M)"""
        return embedding(self.table, indices)
