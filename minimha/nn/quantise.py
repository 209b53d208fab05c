"""A module whose matrices are int8."""

from __future__ import annotations

from typing import TypeVar

from minimha_autograd import Tensor, widened

from ..functional import Quantised
from .layers import Embedding
from .module import Module

M = TypeVar("M", bound=Module)


def quantise(module: M) -> M:
    """Replace the matrices of a trained module by `functional.Quantised`, in place, for inference.

    Each column of a linear map gets its own scale, and so does each row of a table of embeddings,
    even if the model also uses this table as its last linear map. Large matrices then take little
    more than a quarter of the memory of float32. They are constants, no longer parameters: they
    cannot be trained or saved. Biases and the weights of norms become float32 if they have 16 bits.

    Lists of matrices, as in the per-head form, stay as they are, and so does W^QK of the bilinear
    form. A layer in the bilinear form with biases raises TypeError when it is called; so does the
    absorbed form of `LatentAttention`. Returns the module itself.
    """
    for part in module.modules():
        # A token reads one row of a table, with one scale.
        axis = -1 if isinstance(part, Embedding) else 0
        for name, p in [*vars(part).items()]:
            if isinstance(p, Tensor) and p.ndim == 2:
                setattr(part, name, Quantised.of(p.data, axis))
            elif isinstance(p, Tensor):
                p.data = widened(p.data)
    return module
