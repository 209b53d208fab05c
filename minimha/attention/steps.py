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
    """A dictionary of the intermediates of attention by name, in the order in which they are
    computed. Each is also an attribute: steps.weights is steps["weights"].

    After backward(), the dictionary `gradients` has their gradients under the same names.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gradients: dict[str, Array] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"there is no step {name!r}: there are {', '.join(self)}")
        return self[name]

    def __repr__(self) -> str:
        shapes = [f"{name} {tuple(x.shape)}" for name, x in self.items()]
        return f"Steps({', '.join(shapes)})"


def attention_steps(
    query: Any,  # (…, H, T, D)
    key: Any,  # (…, G, S, D)
    value: Any,  # (…, G, S, Dv)
    mask: masks.Mask | Array | None = None,  # an array broadcasts to (…, H, T, S)
    *,
    bias: Any = None,  # broadcasts to (…, H, T, S)
    sink: Any = None,  # broadcasts to (…, H)
    scale: Any = None,  # a number, or broadcasts to (…, H, T, S)
    softcap: Any = None,  # a number, or broadcasts to (…, H, T, S)
    dropout: float = 0.0,
    rng: backend.Generator | None = None,
    keep: Array | None = None,  # broadcasts to (…, H, T, S)
    tap: Callable[[str, Any], Any] = lambda _, x: x,
) -> Steps:
    """`scaled_dot_product_attention` with its intermediates. Returns a `Steps` with

        raw      Q Kᵀ                                    (…, H, T, S), as all except keep and out
        scaled   scale · raw
        capped   softcap · tanh(scaled / softcap)        with a softcap
        biased   capped + bias                           with a bias
        scores   the last of the above, −∞ where hidden
        weights  softmax(scores), with the sink
        keep     True for weights that dropout keeps     with dropout; broadcasts to (…, H, T, S)
        dropped  keep · weights / (1 − dropout)          with dropout
        out      dropped V                               (…, H, T, Dv)

    The arguments here and their errors, the output and the gradients are those of
    `scaled_dot_product_attention`; here the tape computes the gradients. Where raw is not finite
    for a hidden pair, a finite number replaces it.

    tap  called with the name and the value of each step that has a gradient; its result replaces
         the value
    """
    checked = arguments(
        array_of(query),
        array_of(key),
        array_of(value),
        mask,
        array_of(bias),
        array_of(sink),
        array_of(scale),
        array_of(softcap),
        dropout=dropout,
        rng=rng,
        keep=array_of(keep),
    )
    visible = visible_pairs(checked.resolved_mask(), checked.bias)  # broadcasts to (…, H, T, S)

    # 16-bit floats are computed in float32, and only the output is rounded.
    half = None
    if backend.is_half(checked.query):
        half = checked.query.dtype
        query = _in_float32(query)
        key = _in_float32(key)
        value = _in_float32(value)
        bias = _in_float32(bias)
        sink = _in_float32(sink)
        scale = _in_float32(scale)
        softcap = _in_float32(softcap)

    # A hidden pair must contribute nothing, even if its own scale or softcap is NaN.
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    scale = ones_where_hidden(scale, visible)
    softcap = ones_where_hidden(softcap, visible)

    steps = Steps()
    gradients = steps.gradients  # a hook that named steps, which hold its Tensor, would be a cycle

    def step(name: str, x: Any) -> Any:
        x = tap(name, x)
        steps[name] = x
        if isinstance(x, Tensor) and x.requires_grad:
            x.register_hook(lambda gradient: gradients.update({name: gradient}))
        return x

    # Each step continues from the x that the tap returned for the one before, (…, H, T, S).
    x = step("raw", pair_scores(query, key, mask=visible))
    x = step("scaled", ops.multiply(x, scale))
    if softcap is not None:
        x = step("capped", ops.multiply(ops.tanh(ops.divide(x, softcap)), softcap))
    if bias is not None:
        x = step("biased", ops.add(x, bias))
    if visible is not None:
        x = ops.where(visible, x, -math.inf)
    x = step("scores", x)
    if sink is None:
        x = step("weights", functional.softmax(x, mask=visible))
    else:
        logit = sink[..., None, None]  # (…, H, 1, 1): every query of a head has the same sink
        x = step("weights", sink_softmax(x, logit, mask=visible))
    if checked.keep is not None:
        keep = checked.resolved_keep()
        steps["keep"] = keep
        x = step("dropped", functional.dropout(x, keep, p=checked.p))
    out = weighted_sum(x, value, mask=visible)  # (…, H, T, Dv)
    if half is not None:
        out = ops.astype(out, dtype=half)
    step("out", out)
    return steps


def _in_float32(x: Any) -> Any:
    """Convert an array or a Tensor to float32; a number or None is returned unchanged."""
    array = array_of(x)
    if not backend.is_array(array):
        return x
    return ops.astype(x, dtype=backend.namespace(array).float32)
