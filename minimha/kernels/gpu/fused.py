"""Attention on a GPU that stores all scores: a kernel between two products of cuBLAS.

    forward   scores = Q Kᵀ        weights = softmax(scale · scores + bias)        out = weights V
    backward  dweights = dout Vᵀ   dscores = weights · (dweights − Σ dweights · weights)

`fused.cu` computes the weights and dscores, in float32 or float64, on every GPU that CuPy supports.
Attention converts 16-bit floats to float32 first: rounded to bfloat16, a score of 20 can be off by
0.06, and its weight by 6 %.

A NaN or infinity in a key or value must not reach the output of a query from which it is hidden,
but the host would have to wait for the GPU to know whether there is one. So the kernels do not read
hidden scores, and the products use 0 in place of each NaN and infinity in the values. The key of
such a value becomes NaN, so that exactly the queries that may attend to it receive a NaN.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from minimha_autograd.backend import Array, namespace
from minimha_autograd.operation import Wanted

from ... import masks
from ...attention import Arguments
from ...attention.arguments import Gradients
from ...functional.masked_products import hide, products, sums_over_keys, sums_over_queries
from ..shared import like_scores, numbers, obstacle_to_fused
from . import cuda

SOURCE = Path(__file__).with_name("fused.cu")
_THREADS, _BLOCKS = 256, 2**16
"""The largest number of threads in a block, and of blocks in a grid."""

obstacle = obstacle_to_fused


def laid_out(x: Arguments) -> Arguments:
    """The arguments in the form in which `forward` and `backward` take them: here x, unchanged."""
    return x


def forward(x: Arguments) -> tuple[Array, Array]:
    """The output of attention, (…, H, T, Dv), and the weights (…, H, T, S)."""
    xp, key, value = namespace(x.query), x.key, x.value
    if _hides(x):
        finite = xp.isfinite(value)
        key = xp.where(xp.all(finite, axis=-1, keepdims=True), key, xp.full_like(key, math.nan))
        value = hide(value, finite)
    weights = products(x.query, key, None)  # the scores, which the kernel overwrites
    start, stop, inside = _visible_keys(x)
    *_, h, t, s = (1, *x.shape)
    _launch(
        "masked_softmax", weights, start, stop, *_strided(inside, x.shape),
        *_strided(x.bias, x.shape), numbers(x)[0], math.prod(x.shape[:-1]), h, t, s,
    )  # fmt: skip
    return sums_over_keys(weights, value, None), weights


def backward(
    x: Arguments, out: Array, weights: Array, dout: Array, dlse: None, wanted: Wanted
) -> Gradients:
    """The gradients of query, key and value, and of the bias if it is `wanted`. The others are
    None: this implementation supports neither a sink nor a softcap, and takes no array as scale.

    out, weights  the results of `forward` for the same x, of which only the weights are used
    dout          the gradient of out
    dlse          None, since this implementation does not compute lse, the log-sum-exp of the
                  scores
    """
    key, value = x.key, x.value
    if _hides(x):
        key, value = (hide(a, namespace(a).isfinite(a)) for a in (key, value))
    dvalue = sums_over_queries(weights, dout, None, value)
    dscores = products(dout, value, None)  # dweights, which the kernel overwrites
    _launch("masked_softmax_backward", weights, dscores, math.prod(x.shape[:-1]), x.shape[-1])
    scale, *_ = numbers(x)
    dquery = scale * sums_over_keys(dscores, key, None)
    dkey = scale * sums_over_queries(dscores, x.query, None, key)
    dbias = dscores if wanted.bias else None
    return Gradients(dquery, dkey, dvalue, dbias)


def _launch(name: str, scores: Array, *arguments: Any) -> None:
    """Run the kernel of fused.cu with this name on all rows of the scores (…, S). The kernel's
    arguments are the scores and then `arguments`."""
    s = scores.shape[-1]
    rows = math.prod(scores.shape[:-1])
    blocks = min(rows, _BLOCKS)
    threads = min(_THREADS, -(-s // 32) * 32)  # whole warps
    cuda.launch(SOURCE, name, scores.dtype, blocks, threads, scores, *arguments)


def _hides(x: Arguments) -> bool:
    """Whether keys may be hidden from queries, by a mask or by a bias of −∞."""
    return x.mask is not None or x.bias is not None


def _visible_keys(x: Arguments) -> tuple[Any, Any, Array | None]:
    """start and stop, both (…, H, T), and `inside`, a boolean array that broadcasts to
    (…, H, T, S): a query sees the keys from its start to its stop (exclusive) for which `inside` is
    True. `inside` is None if each query sees all keys from its start to its stop. Without a mask,
    start and stop are 0, which kernels receive as null pointers: then each query sees all keys."""
    intervals = masks.key_intervals(x.mask, x.query, x.key)
    if intervals is None:
        return 0, 0, None
    start, stop, inside = intervals
    zeros = namespace(start).zeros(x.shape[:-1], dtype=start.dtype, device=start.device)
    if inside is not None:
        inside = inside.array(x.shape, like=x.query)
    return start + zeros, stop + zeros, inside


def _strided(a: Array | None, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Five arguments for a kernel: the array a, broadcast to the shape (…, H, T, S), and its
    strides along B, H, T and S, in entries. The stride is 0 along an axis along which a is
    repeated. If a is None, all five are 0, and the kernel receives the first as a null pointer."""
    if a is None:
        return (0,) * 5
    a = like_scores(a, shape)
    return a, *(stride // a.itemsize for stride in a.strides)
