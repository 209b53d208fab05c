"""Attention with all intermediates, differentiated by the tape instead of by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from minimha_autograd import Tensor, array_of, backend, ops
from minimha_autograd.backend import Array

from .. import functional
from ..functional import ones_where_hidden, sink_softmax
from .arguments import arguments, shows_signature_of
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


@shows_signature_of(arguments)
def attention_steps(
    *args: Any, tap: Callable[[str, Any], Any] = lambda _, x: x, **kwargs: Any
) -> Steps:
    """`scaled_dot_product_attention` with its intermediates. Returns a `Steps` with

        raw      Q Kᵀ                                    (…, H, T, S), and so all but the last
        scaled   scale · raw
        capped   softcap · tanh(scaled / softcap)        with a softcap
        biased   capped + bias                           with a bias
        scores   biased, −∞ where hidden
        weights  softmax(scores), with the sink
        keep     what dropout keeps, boolean             with dropout
        dropped  keep · weights / (1 − dropout)          with dropout
        out      dropped V                               (…, H, T, Dv)

    Arguments, errors, the output and the gradients are those of `scaled_dot_product_attention`;
    here the tape computes the gradients. Where raw, scaled or capped is not finite for a hidden
    pair, a finite number replaces it.

    tap  called with the name and the value of each step that has a gradient; its result replaces
         the value
    """
    checked = arguments(*args, **kwargs)
    arrays = checked.arrays
    visible = visible_pairs(arrays.resolved_mask(), arrays.bias)
    scale = 1 / math.sqrt(arrays.query.shape[-1]) if checked.scale is None else checked.scale
    scale, softcap = (ones_where_hidden(x, visible) for x in (scale, checked.softcap))
    inputs = (*checked.inputs[:5], scale, softcap)
    half = arrays.query.dtype if backend.is_half(arrays.query) else None
    if half is not None:
        float32 = backend.namespace(arrays.query).float32
        inputs = tuple(
            ops.astype(x, dtype=float32) if backend.is_array(array_of(x)) else x for x in inputs
        )
    query, key, value, bias, sink, scale, softcap = inputs
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
        steps["keep"] = arrays.resolved_keep()
        x = step("dropped", functional.dropout(x, steps["keep"], p=checked.p))
    x = weighted_sum(x, value, mask=visible)
    step("out", x if half is None else ops.astype(x, dtype=half))
    return steps
