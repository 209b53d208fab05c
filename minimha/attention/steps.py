"""Attention with all intermediates, differentiated by the tape instead of by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from minimha_autograd import Tensor, array_of, backend, ops
from minimha_autograd.backend import Array

from .. import functional, masks
from ..functional import sink_softmax
from ..functional.masked_products import ones_where_hidden
from .arguments import arguments
from .reference import pair_scores, visible_pairs, weighted_sum


class Steps(dict[str, Any]):
    """The intermediates of attention by name, in order: steps["weights"], steps.weights.

    After backward(), `gradients` has their gradients under the same names.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gradients: dict[str, Array] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"there is no step {name!r}: there are {', '.join(self)}")
        return self[name]

    def __repr__(self) -> str:
        return f"Steps({', '.join(f'{name} {tuple(x.shape)}' for name, x in self.items())})"


def attention_steps(
    query: Any,
    key: Any,
    value: Any,
    mask: masks.Mask | Array | None = None,
    *,
    bias: Any = None,
    sink: Any = None,
    scale: Any = None,
    softcap: Any = None,
    dropout: float = 0.0,
    rng: backend.Generator | None = None,
    keep: Array | None = None,
    tap: Callable[[str, Any], Any] = lambda _, x: x,
) -> Steps:
    """`scaled_dot_product_attention` with its intermediates. Returns a `Steps` with

        raw      Q Kᵀ                                    (…, H, T, S), like all but keep and out
        scaled   scale · raw
        capped   softcap · tanh(scaled / softcap)        with a softcap
        biased   capped + bias                           with a bias
        scores   the last of these, −∞ where hidden
        weights  softmax(scores), with the sink
        keep     what dropout keeps, boolean             with dropout
        dropped  keep · weights / (1 − dropout)          with dropout
        out      dropped V                               (…, H, T, Dv)

    The arguments here and their errors, the output and the gradients are those of
    `scaled_dot_product_attention`; here the tape computes the gradients. Where raw is not finite
    for a hidden pair, a finite number replaces it.

    tap  called with the name and the value of each step that has a gradient; its result replaces
         the value
    """
    inputs = query, key, value, bias, sink, scale, softcap
    arrays = list(map(array_of, inputs))
    arrays.insert(3, mask)
    checked = arguments(*arrays, dropout=dropout, rng=rng, keep=array_of(keep))
    visible = visible_pairs(checked.resolved_mask(), checked.bias)
    half = arrays[0].dtype if backend.is_half(arrays[0]) else None
    if half is not None:
        float32 = backend.namespace(arrays[0]).float32
        query, key, value, bias, sink, scale, softcap = (
            ops.astype(x, dtype=float32) if backend.is_array(array_of(x)) else x for x in inputs
        )
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scale, softcap = (ones_where_hidden(x, visible) for x in (scale, softcap))
    steps = Steps()
    gradients = steps.gradients  # a hook that named steps, which hold its Tensor, would be a cycle

    def step(name: str, x: Any) -> Any:
        x = steps[name] = tap(name, x)
        if isinstance(x, Tensor) and x.requires_grad:
            x.register_hook(lambda gradient: gradients.update({name: gradient}))
        return x

    x = step("raw", pair_scores(query, key, mask=visible))
    x = step("scaled", ops.multiply(x, scale))
    if softcap is not None:
        x = step("capped", ops.multiply(ops.tanh(ops.divide(x, softcap)), softcap))
    if bias is not None:
        x = step("biased", ops.add(x, bias))
    x = step("scores", x if visible is None else ops.where(visible, x, -math.inf))
    if sink is None:
        x = step("weights", functional.softmax(x, mask=visible))
    else:
        x = step("weights", sink_softmax(x, sink[..., None, None], mask=visible))
    if checked.keep is not None:
        steps["keep"] = checked.resolved_keep()
        x = step("dropped", functional.dropout(x, steps["keep"], p=checked.p))
    x = weighted_sum(x, value, mask=visible)
    step("out", x if half is None else ops.astype(x, dtype=half))
    return steps
