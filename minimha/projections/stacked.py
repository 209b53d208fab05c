"""The stacked form. New weights are drawn in it, and all conversions go through it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from minimha_autograd import backend
from minimha_autograd.backend import Rng

from .form import Form, Sizes, form_named
from .operations import project_in, project_self


@dataclass(eq=False, repr=False)
class Stacked(Form):
    """One matrix each for Q, K and V, in which the heads are blocks of columns, side by side."""

    w_q: Any  # (M, H·D)
    w_k: Any  # (Mk, G·D)
    w_v: Any  # (Mv, G·Dv)
    b_q: Any  # (H·D,)
    b_k: Any  # (G·D,)
    b_v: Any  # (G·Dv,)

    form = "stacked"

    def project(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        h = self.sizes.num_heads
        g = self.sizes.num_kv_heads

        # In self-attention, one operation adds up the three gradients of the one input.
        if query is key is value:
            ws = self.w_q, self.w_k, self.w_v
            bs = self.b_q, self.b_k, self.b_v
            return project_self(query, *ws, *bs, num_heads=h, num_kv_heads=g)

        q = project_in(query, self.w_q, self.b_q, num_heads=h)  # (…, H, T, D)
        k = project_in(key, self.w_k, self.b_k, num_heads=g)  # (…, G, S, D)
        v = project_in(value, self.w_v, self.b_v, num_heads=g)  # (…, G, S, Dv)
        return q, k, v

    def to_stacked(self) -> Stacked:
        return self

    @classmethod
    def from_stacked(cls, stacked: Stacked) -> Stacked:
        return stacked


def Projections(  # noqa: N802 — reads as the class of what it makes
    d_model: int,
    num_heads: int,
    *,
    form: str = "stacked",
    bias: bool = True,
    rng: Rng = 0,
    dtype: str = "float32",
    **sizes: int | None,
) -> Any:
    """New projections in one of the `FORMS`.

    d_model, num_heads  M, the width of the query input, and H
    form                how the weights are held: a name in `FORMS`
    bias                whether b_q, b_k and b_v are added
    rng                 a generator or a seed. The stacked weights are normal with variance 1/rows,
                        and the other forms are converted from them: up to rounding, the same seed
                        gives the same attention in every form
    dtype               of the weights
    sizes               num_kv_heads, head_dim, v_head_dim, kdim, vdim: G, D, Dv, Mk, Mv. By default
                        G is H, D is M/H, Dv is D, Mk is M and Mv is Mk

    Raises ValueError for an unknown form, and for sizes that do not match or that the form cannot
    represent.
    """
    all_sizes = Sizes.of(d_model, num_heads, **sizes)
    rng = backend.generator(rng)

    weights: dict[str, Any] = {}
    for role, (width, count, dim) in all_sizes.roles().items():
        # With variance 1/width, a sum of `width` products is about as large as an entry of x.
        std = 1 / math.sqrt(width)
        columns = count * dim
        w = backend.normal(rng, (width, columns), std=std, dtype=dtype)  # for Q (M, H·D)
        b = None
        if bias:
            b = backend.full((columns,), 0, dtype=dtype)
        weights[f"w_{role}"] = w
        weights[f"b_{role}"] = b

    stacked = Stacked(all_sizes, **weights)
    return form_named(form).from_stacked(stacked).trainable()
