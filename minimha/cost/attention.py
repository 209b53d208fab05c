"""The cost of attention on Q, K and V, and of multi-head attention."""

from __future__ import annotations

from typing import Any

from .primitives import NODE, Cost, Primitive, linear, product, repeated, total, walk
from .projections import projections
from .setting import Setting

IMPLEMENTATIONS = "reference", "loop", "steps"


def attention(implementation: str = "reference", *, backward: bool = True, **letters: Any) -> Cost:
    """The cost of softmax(scale · Q Kᵀ) V for arrays Q (B, H, T, D), K (B, G, S, D), V (B, G, S,
    Dv).

    implementation  "reference", "loop", or "steps" for `attention_steps`
    backward        whether to include the backward pass; without it nothing is saved
    letters         the sizes, such as T and H: see `Setting.of`

        forward flops   2·B·H·T·S·(D + Dv), and twice that backward, in all implementations
        saved           B·H·T·S numbers, the weights; in "loop" with grouped heads also each head's
                        copy of its keys and values

    The raw and scaled scores that `attention_steps` keeps for inspection are not counted. Raises
    ValueError for another implementation, and for sizes that do not match.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"no costs are known for {implementation!r}, only for {', '.join(IMPLEMENTATIONS)}"
        )
    s = Setting.of(**letters)
    z = s.sizes
    heads, groups, d, dv = s.B * z.num_heads, s.B * z.num_kv_heads, z.head_dim, z.v_head_dim
    saved = heads * s.T * s.S
    if implementation != "loop":
        nodes = 4 if implementation == "steps" else 3
        primitives = [NODE] * nodes + _heads(groups, heads // groups * s.T, s.S, d, dv)
        return total(s, backward, primitives, saved=saved)
    primitives = [NODE] * 3 + repeated(heads, _heads(1, s.T, s.S, d, dv))
    primitives += [walk(2 * heads * s.T * n) for n in (dv, s.S)]  # outputs and weights, stacked
    parts = s.T * d, s.S * d, s.S * dv
    primitives += [walk(2 * heads * n, backward=True) for n in parts]  # gradients, stacked
    if heads != groups:
        saved += heads * s.S * (d + dv)
        copies = [(heads + groups) * s.S * n for n in (d, dv)]
        primitives += [walk(n) for n in copies] + [walk(n, backward=True) for n in copies]
    return total(s, backward, primitives, saved=saved)


def _heads(batch: int, t: int, s: int, d: int, dv: int) -> list[Primitive]:
    """The primitives of attention for `batch` heads, each with t queries of width d and s keys: the
    scores, the softmax, and the weighted sum of values of width dv."""
    p, r = batch * t * s, batch * t
    entrywise, down, across = 2 * p, p + r, 2 * p + r  # P to P, P to one number per row, both to P
    forward = [entrywise, down, across, entrywise, down, across]
    #          scale,     max,  subtract, exp,     sum,  divide
    backward = [3 * p, down, across, 3 * p, entrywise]
    #         dP · P,  sum,  subtract, times P, scale
    return [
        *product(batch, t, d, s),
        *(walk(n) for n in forward),
        walk(2 * r, times=4),  # maxima of −∞ and sums of 0 are replaced
        *product(batch, t, s, dv),
        *(walk(n, backward=True) for n in backward),
    ]


def multi_head(
    form: str = "stacked",
    implementation: str = "reference",
    *,
    backward: bool = True,
    **letters: Any,
) -> Cost:
    """The cost of a whole `MultiHeadAttention`: of `projections`, of `attention`, and of the output
    projection, which multiplies by W^O.

    form               how Q, K and V are computed: one of `projections.FORMS`
    implementation     that of attention, "reference" or "loop"
    backward, letters  as for `projections`

    This is what it adds to `projections` and `attention`:

        output   H·Dv·M parameters and M of a bias, 2·B·T times H·Dv·M flops forward, twice that
                 backward
        saved    Q, K, V and the B·T·H·Dv merged outputs of the heads; in a loop with grouped heads
                 not K and V, only the copies that `attention` counts

    In the bilinear form Q is (B, H, T, Mk), and K is the input, which is not saved again unless a
    loop copies its heads. Raises the errors of `projections` and `attention`, and ValueError for
    "steps", which the module does not run.
    """
    if implementation == "steps":
        raise ValueError('"steps" is `attention_steps`, which MultiHeadAttention does not run')
    s = Setting.of(**letters)
    z, bilinear = s.sizes, form == "bilinear"
    d, dv, h, g = z.kdim if bilinear else z.head_dim, z.v_head_dim, z.num_heads, z.num_kv_heads
    inner = attention(
        implementation, backward=backward, B=s.B, T=s.T, S=s.S, H=h, G=g, D=d, Dv=dv, dtype=s.dtype
    )
    loop, n, columns = implementation == "loop", s.B * s.T, h * dv
    saved = n * h * (d + dv)  # Q and the merged outputs
    if not (loop and h != g):  # otherwise `attention` counts copies of K and V
        # K is the input in the bilinear form, unless the loop copies its heads out of a batch
        k_is_input = bilinear and not (loop and s.B > 1 and g > 1)
        saved += s.B * g * s.S * (dv + (0 if k_is_input else d))
    weights = [columns * z.d_model] + [z.d_model] * s.bias
    primitives = [NODE, *linear(n, columns, z.d_model, s.bias)]
    primitives += [walk(2 * n * columns)] if h > 1 else []  # merge heads
    primitives += [walk(2 * w, backward=True) for w in weights]
    outer = total(s, backward, primitives, parameters=sum(weights), saved=saved)
    return projections(form, backward=backward, **letters) + inner + outer
