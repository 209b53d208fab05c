"""The cost of the projections to Q, K and V, in each form."""

from __future__ import annotations

from typing import Any

from ..projections.form import Sizes, form_named
from .primitives import NODE, Cost, Primitive, linear, product, repeated, total, walk
from .setting import Setting


def projections(form: str = "stacked", *, backward: bool = True, **letters: Any) -> Cost:
    """The cost of computing Q, K and V from the inputs.

    form      the way to compute them, one of `projections.FORMS`
    letters   the sizes, such as M, H and T: see `Setting.of`
    backward  whether to include the backward pass; without it nothing is saved

        form       parameters, without biases   forward flops
        per-head   (H + G)·M·D + G·M·Dv         2·B·T times these
        stacked    the same                     the same
        fused      the same                     the same
        double     3·M² more                    2·B·T times these
        bilinear   H·M² + G·M·Dv                2·B·T times these

    for one input of width M. The backward pass takes twice these flops. The double form multiplies
    the input by two matrices in turn for each of Q, K and V. It alone saves more than inputs and
    parameters: the first products, 3·B·T·M numbers. The bilinear form has keys of width M, which
    make `attention` more expensive: `multi_head` counts both.

    Raises ValueError for an unknown form, for sizes that do not match, and for the fused form if S,
    Mk or Mv is given: query, key and value are then three inputs.
    """
    form_named(form)
    s = Setting.of(**letters)
    z, lengths, widths = s.sizes, {"q": s.T, "k": s.S, "v": s.S}, s.sizes.roles()
    if form == "fused" and s.cross:
        raise ValueError("the fused form is for self-attention, with one input: omit S, Mk and Mv")
    inputs = {role: s.B * n * widths[role][0] for role, n in lengths.items()}  # B·T·M, B·S·Mk, …
    weights = _weights(form, z, s.bias)
    primitives = [walk(2 * n, backward=True) for n in weights]  # gradients of weights are copied
    if form == "fused":
        primitives += _fused(s)
    else:
        for role in inputs:
            primitives += _role(form, role, s)
        heads = {"q": z.num_heads, "k": z.num_kv_heads, "v": z.num_kv_heads}
        uses = {role: heads[role] if form == "per-head" else 1 for role in inputs}
        if not s.cross:
            uses = {"q": sum(uses.values())}
        for role, n in uses.items():  # the gradients of an input are summed over its uses
            primitives += [walk(3 * inputs[role], times=n - 1, backward=True)] if n > 1 else []
    saved = sum(inputs.values()) if form == "double" else 0
    return total(s, backward, primitives, parameters=sum(weights), saved=saved)


def _weights(form: str, z: Sizes, bias: bool) -> list[int]:
    """A list with the number of entries of each array of weights and, with `bias`, of biases that
    this form has for sizes z."""
    roles = list(z.roles().values())
    if form == "fused":
        columns = sum(count * dim for _, count, dim in roles)
        return [z.d_model * columns] + [columns] * bias
    if form == "bilinear":
        width, v_columns = z.num_heads * z.kdim, z.num_kv_heads * z.v_head_dim
        return [z.d_model * width, z.vdim * v_columns] + [width, v_columns] * bias
    sizes = []
    for width, count, dim in roles:
        matrices = [dim] * count if form == "per-head" else [count * dim]
        sizes += [rows * columns for rows in [width] + [1] * bias for columns in matrices]
    return sizes + ([width**2 for width, _, _ in roles] if form == "double" else [])


def _fused(s: Setting) -> list[Primitive]:
    """The primitives of the fused form: one product gives Q, K and V, and a node of the tape cuts
    out each of the three. In the backward pass, the heads of each of the three gradients are merged
    to rows, and the results are joined in one array."""
    z, n = s.sizes, s.B * s.T
    roles = list(z.roles().values())
    columns = sum(count * dim for _, count, dim in roles)
    merged = [x for _, count, dim in roles for x in _merged(count, s.T, n * count * dim)]
    joined = walk(2 * n * columns, backward=True)
    return [NODE] * 4 + linear(n, z.d_model, columns, s.bias) + [*merged, joined]


def _role(form: str, role: str, s: Setting) -> list[Primitive]:
    """The primitives that compute Q, K or V (`role` is "q", "k" or "v"), in a form that computes
    each of the three separately."""
    width, count, dim = s.sizes.roles()[role]
    t = s.T if role == "q" else s.S
    n = s.B * t
    if form == "bilinear" and role == "q":
        return _bilinear(s)
    if form == "bilinear" and role == "k":  # the input itself, seen by every head
        summed = [walk(n * width * (count + 1), backward=True)] if count > 1 else []
        return [NODE] * 2 + summed
    if form == "per-head":
        one = [NODE, *linear(n, width, dim, s.bias)]
        if count > 1 and s.B > 1 and t > 1:
            one += [walk(2 * n * dim, backward=True)]  # one head of dy, made contiguous
        return [NODE, walk(2 * n * count * dim), *repeated(count, one)]  # the heads are stacked
    first = [NODE, *linear(n, width, width, bias=False)] if form == "double" else []
    merged = _merged(count, t, n * count * dim)
    return [*first, NODE, *linear(n, width, count * dim, s.bias), *merged]


def _merged(count: int, t: int, size: int) -> list[Primitive]:
    """The primitives of merging the heads of a gradient, (B, H, T, D) to (B, T, H·D): a copy,
    unless H or T is 1.

    count  H, or G for keys and values
    t      T
    size   the number of entries
    """
    return [walk(2 * size, backward=True)] if count > 1 and t > 1 else []


def _bilinear(s: Setting) -> list[Primitive]:
    """The primitives of Q = x W_i + b for every head, where x is (B, 1, T, M), W (H, M, Mk), b (H,
    1, Mk) and Q (B, H, T, Mk)."""
    z = s.sizes
    h, m, mk = z.num_heads, z.d_model, z.kdim
    x, w, y = s.B * s.T * m, h * m * mk, s.B * h * s.T * mk
    primitives = [NODE] * 2 + product(s.B * h, s.T, m, mk, a=x, b=w)
    if h > 1:
        primitives += [walk(h * x + x, backward=True)]  # dx, summed over the heads
    primitives += [walk(s.B * w + w, backward=True)]  # dW, summed over the batch
    if s.bias:
        primitives += NODE, NODE, walk(2 * y + h * mk), walk(y + h * mk, backward=True)
    return primitives
