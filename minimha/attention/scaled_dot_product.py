"""Scaled dot-product attention, the public function."""

from __future__ import annotations

from typing import Any

from minimha_autograd import backend
from minimha_autograd.backend import Array

from .. import functional, masks
from ..functional import check_probability
from .arguments import arguments, shows_signature_of
from .dispatch import Dispatch, choose, decide


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    mask: masks.Mask | Array | None = None,
    *,
    bias: Any = None,
    scale: Any = None,
    softcap: Any = None,
    sink: Any = None,
    dropout: float = 0.0,
    rng: backend.Generator | None = None,
    keep: Array | None = None,
    return_weights: bool | str = False,
    return_lse: bool = False,
    implementation: str = "auto",
) -> Any:
    """softmax(scale · Q Kᵀ + bias) V: each query receives a weighted mean of the values.

    query    (…, H, T, D)
    key      (…, G, S, D); query head h reads key and value head h // (H // G)
    value    (…, G, S, Dv)
    mask     one of `minimha.masks`, or a boolean array that broadcasts to (…, H, T, S);
             True = may attend
    bias     broadcasts to (…, H, T, S), is added to the scores; an entry of −∞ counts as masked
    scale    1/√D by default, so that scores of independent entries of variance 1 have variance 1
    softcap  limits the scaled scores to softcap · tanh(scores / softcap), before the bias is added
    sink     broadcasts to (…, H): a logit for each head that takes part in the softmax but has no
             value
    dropout  the fraction of the weights, 0 to 1, set to 0; the others are scaled by 1/(1 − dropout)
    rng      the generator that draws which weights are kept; on a GPU it draws a seed for them
    keep     broadcasts to (…, H, T, S), boolean: replays such a draw
    return_weights
             True for the weights (…, H, T, S) as well, "dropped" for those after dropout
    return_lse
             True for lse (…, H, T) as well: the logarithm of the sum of exp(scores) of each query,
             including the sink, with which `merge_attention` joins attention over different keys
    implementation
             one of `attention.IMPLEMENTATIONS`; "auto": see `minimha.implementation`

    Returns the output (…, H, T, Dv), then the weights and lse if asked for: arrays for arrays,
    Tensors if any argument is one. Gradients flow to query, key, value and bias, and to scale,
    softcap and sink where these are Tensors, by the formulas of `attention.attention`. A query that
    may attend to no key has the output 0, weights 0, lse −∞ and gradients 0. Hidden keys and values
    have no influence, even if they are NaN or infinite.

    Raises ValueError for shapes that do not match, TypeError for wrong dtypes and for masks that
    are not boolean; each error names the argument and what is required.
    """
    if return_weights not in (False, True, "dropped"):
        raise ValueError(f'return_weights is False, True or "dropped", not {return_weights!r}')
    x = arguments(
        query, key, value, mask, bias=bias, scale=scale, softcap=softcap, sink=sink,
        dropout=dropout, rng=rng, keep=keep,
    )  # fmt: skip
    x = x._replace(return_weights=bool(return_weights), return_lse=return_lse)
    y = choose(implementation, x)(*x)
    if return_weights == "dropped" and x.keep is not None:
        dropped = functional.dropout(y[1], x.arrays.resolved_keep(), p=x.p)
        return (y[0], dropped, *y[2:])
    return y


@shows_signature_of(scaled_dot_product_attention)
def explain_dispatch(
    *args: Any,
    implementation: str = "auto",
    return_weights: bool | str = False,
    return_lse: bool = False,
    **kwargs: Any,
) -> Dispatch:
    """Which implementation computes this call of `scaled_dot_product_attention`, and why.

    The arguments and errors are those of that function; it computes nothing and draws nothing from
    rng. The result prints as a table: the implementation chosen, then the reason for or against
    each one considered. `reasons` has the reasons by name.
    """
    p = 0.0
    if kwargs.get("keep") is None:
        check_probability(p := kwargs.pop("dropout", 0.0), "dropout")
    x = arguments(*args, **kwargs)._replace(return_lse=return_lse)
    masks.key_intervals(x.mask, x.arrays.query, x.arrays.key)  # raises the errors of the mask
    decision = decide(implementation, x._replace(keep=True) if p else x)
    if return_weights and decision.implementation not in ("reference", "loop"):
        decision.reasons["reference"] = "computes the weights, which kernels do not keep"
    return decision
