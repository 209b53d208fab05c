"""Tasks of chapter 07: many heads, put together and shared."""

import numpy as np

from minimha_autograd import gradcheck

from ..comparisons import same, same_gradients, same_steps, tap_is_used, value_of
from ..task import task


@task(chapter=7, difficulty=1, minutes=8, hints=(
    "Two steps: move the heads next to their width, then merge the two axes. Which of the two is "
    "a reshape?",
    "x.swapaxes(-3, -2) is (…, T, H, D), and a reshape joins its last two axes. The pullback "
    "undoes the two steps, the last one first.",
    "swapped.reshape(*swapped.shape[:-2], -1) is the value; the gradient is "
    "dy.reshape(swapped.shape).swapaxes(-3, -2), in a tuple.",
))  # fmt: skip
def merge_heads(x):
    """The heads side by side, as the output projection needs them, and the pullback.

    x  (…, H, T, D), with any number of axes before H, or none
    Returns y (…, T, H·D), where columns h·D to (h + 1)·D of a row are head h at that position, and
    the function that takes dy (…, T, H·D) to a tuple with one gradient, (dx,).
    """
    # BEGIN SOLUTION: return y, pullback
    swapped = x.swapaxes(-3, -2)  # (…, T, H, D)

    def pullback(dy):
        return (dy.reshape(swapped.shape).swapaxes(-3, -2),)

    return swapped.reshape(*swapped.shape[:-2], -1), pullback
    # END SOLUTION


@merge_heads.check
def each_row_holds_one_position(yours, rng):
    x = rng.standard_normal((2, 3, 5, 4))
    expected = np.concatenate([x[:, h] for h in range(3)], axis=-1)
    advice = "a reshape never moves an axis past another: swap H and T first"
    same(value_of(yours(x), "merge_heads"), expected, axes="B T H·D", advice=advice)


@merge_heads.check
def any_axes_may_stand_before_the_heads(yours, rng):
    for lead in ((), (2, 4)):
        x = rng.standard_normal((*lead, 3, 5, 2))
        expected = np.concatenate([x[..., h, :, :] for h in range(3)], axis=-1)
        same(value_of(yours(x), "merge_heads"), expected, f"the result for x {x.shape}")


@merge_heads.check(weight=2)
def the_gradient_goes_the_way_back(yours, rng):
    for axes, lead in (("batch head position width", (2,)), ("head position width", ())):
        x = rng.standard_normal((*lead, 3, 5, 2))
        gradcheck(yours, x, axes=[axes])
        same(value_of(yours(x), "merge_heads"), merge_heads(x)[0], "y")


@task(chapter=7, difficulty=2, minutes=10, hints=(
    "np.repeat and np.tile both give G·rep heads. Which one puts the copies of a head next to "
    "each other? And a value used rep times gets rep gradients.",
    "np.repeat(x, rep, axis=-3). Backward, an axis of length rep is put back behind G by a "
    "reshape, and summed away.",
    "dy.reshape(*x.shape[:-2], rep, *x.shape[-2:]).sum(axis=-3), as a tuple with one gradient.",
))  # fmt: skip
def repeat_heads(x, rep):
    """Key or value heads repeated so that each query head has one, and the pullback.

    x    (…, G, S, D)
    rep  H // G, the number of query heads that share a head of x
    Returns y (…, H, S, D), in which head h is head h // rep of x, and the function that takes
    dy (…, H, S, D) to a tuple with one gradient, (dx,), of the shape of x.
    """

    # BEGIN SOLUTION: return y, pullback
    def pullback(dy):
        groups = dy.reshape(*x.shape[:-2], rep, *x.shape[-2:])  # (…, G, rep, S, D)
        return (groups.sum(axis=-3),)

    return np.repeat(x, rep, axis=-3), pullback
    # END SOLUTION


@repeat_heads.check
def query_head_h_reads_head_h_over_rep(yours, rng):
    x = rng.standard_normal((2, 3, 5, 4))
    expected = np.stack([x[:, h // 2] for h in range(6)], axis=1)
    advice = "the copies of a head stand next to each other: 0 0 1 1 2 2"
    same(value_of(yours(x, 2), "repeat_heads"), expected, axes="B H S D", advice=advice)


@repeat_heads.check
def one_head_serves_all(yours, rng):
    x = rng.standard_normal((1, 5, 4))
    expected = np.stack([x[0]] * 3)
    same(value_of(yours(x, 3), "repeat_heads"), expected, "the result for x (1, 5, 4)", "H S D")


@repeat_heads.check(weight=2)
def gradients_add_up_over_the_group(yours, rng):
    def repeat_heads(x):
        return yours(x, 3)

    for axes, lead in (("batch head key width", (2,)), ("head key width", ())):
        x = rng.standard_normal((*lead, 2, 5, 4))
        gradcheck(repeat_heads, x, axes=[axes])
        same(value_of(repeat_heads(x), "repeat_heads"), np.repeat(x, 3, axis=-3), "y")


@task(chapter=7, difficulty=1, minutes=10, hints=(
    "Merged heads times w_o is a product of block matrices: head h meets only rows h·D to "
    "(h + 1)·D of w_o.",
    "Cut w_o into H blocks of D rows, an array (H, D, M), and let matmul pair them with the "
    "heads.",
    "heads @ w_o.reshape(H, D, M), where H and D are axes -3 and -1 of heads.",
))  # fmt: skip
def head_contributions(heads, w_o):
    """What each head adds to the output: out = merge(heads) w_o is the sum of these over the heads.

    heads  (…, H, T, D), the outputs of the heads
    w_o    (H·D, M), the output projection
    Returns an array (…, H, T, M).
    """
    # BEGIN SOLUTION: return the array
    num_heads, width = heads.shape[-3], heads.shape[-1]
    return heads @ w_o.reshape(num_heads, width, -1)
    # END SOLUTION


@head_contributions.check
def one_head_adds_all_of_the_output(yours, rng):
    heads, w_o = rng.standard_normal((2, 1, 5, 4)), rng.standard_normal((4, 7))
    same(yours(heads, w_o), heads @ w_o, "the result for one head", "B H T M")


@head_contributions.check
def each_head_meets_its_own_rows_of_w_o(yours, rng):
    heads, w_o = rng.standard_normal((3, 5, 4)), rng.standard_normal((12, 7))
    expected = np.stack([heads[h] @ w_o[4 * h : 4 * (h + 1)] for h in range(3)])
    same(yours(heads, w_o), expected, axes="H T M", advice="head 1 meets rows D to 2 D of w_o")


def linear(x, weight):
    """x (…, M), weight (M, N): x weight, and the pullback to both (chapter 04)."""

    def pullback(dy):
        rows = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        return dy @ weight.T, rows[0].T @ rows[1]

    return x @ weight, pullback


def split(x, num_heads):
    """(…, T, H·D) -> (…, H, T, D) (chapter 04)."""
    return x.reshape(*x.shape[:-1], num_heads, -1).swapaxes(-3, -2)


def merge(x):
    """(…, H, T, D) -> (…, T, H·D), the inverse of split."""
    x = x.swapaxes(-3, -2)
    return x.reshape(*x.shape[:-2], -1)


def attention(query, key, value):
    """(…, T, D), (…, S, D), (…, S, Dv) -> (…, T, Dv), and the pullback to all (chapter 05)."""
    scale = query.shape[-1] ** -0.5
    scores = scale * query @ key.mT
    e = np.exp(scores - scores.real.max(axis=-1, keepdims=True))
    weights = e / e.sum(axis=-1, keepdims=True)

    def pullback(dout):
        dweights = dout @ value.mT
        dscores = weights * (dweights - (dweights * weights).sum(axis=-1, keepdims=True))
        return scale * dscores @ key, scale * dscores.mT @ query, weights.mT @ dout

    return weights @ value, pullback


@task(chapter=7, difficulty=3, minutes=20, given=(linear, split, merge, attention), hints=(
    "Write the forward first, a line a step, and keep the pullback of each step. Then go "
    "through your lines from the last to the first.",
    "merge is undone by split, and split by merge: each is the other's pullback. x goes into "
    "three products, so its gradient is a sum of three.",
    "dmerged, dw_o = pull_o(dy); dheads = split(dmerged, num_heads); dquery, dkey, dvalue = "
    "pull_attention(dheads); dx_q, dw_q = pull_q(merge(dquery)), and so on for k and v; "
    "dx = dx_q + dx_k + dx_v.",
))  # fmt: skip
def multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads, *, tap=lambda name, x: x):
    """Self-attention in H heads, and its backward composed of the pullbacks of its steps.

    x              (…, T, M)
    w_q, w_k       (M, H·D)
    w_v            (M, H·Dv)
    w_o            (H·Dv, M)
    num_heads      H
    tap            query, key, value (…, H, T, D or Dv) after the split, heads (…, H, T, Dv) after
                   attention and merged (…, T, H·Dv) go through it: query = tap("query", query)
    Returns the output (…, T, M), and the function that takes its gradient to a tuple: dx, dw_q,
    dw_k, dw_v, dw_o, and a dictionary with the gradients of query, key, value, heads and merged.
    """
    # BEGIN SOLUTION: return y, pullback
    query, pull_q = linear(x, w_q)
    key, pull_k = linear(x, w_k)
    value, pull_v = linear(x, w_v)
    query = tap("query", split(query, num_heads))
    key = tap("key", split(key, num_heads))
    value = tap("value", split(value, num_heads))
    heads, pull_attention = attention(query, key, value)
    heads = tap("heads", heads)
    merged = tap("merged", merge(heads))
    y, pull_o = linear(merged, w_o)

    def pullback(dy):
        dmerged, dw_o = pull_o(dy)
        dheads = split(dmerged, num_heads)
        dquery, dkey, dvalue = pull_attention(dheads)
        dx_q, dw_q = pull_q(merge(dquery))
        dx_k, dw_k = pull_k(merge(dkey))
        dx_v, dw_v = pull_v(merge(dvalue))
        steps = {"query": dquery, "key": dkey, "value": dvalue, "heads": dheads, "merged": dmerged}
        return dx_q + dx_k + dx_v, dw_q, dw_k, dw_v, dw_o, steps

    return y, pullback
    # END SOLUTION


def _layer(rng, lead, t, m, h, d, dv):
    """x, w_q, w_k, w_v, w_o, random."""
    shapes = (*lead, t, m), (m, h * d), (m, h * d), (m, h * dv), (h * dv, m)
    return [rng.standard_normal(shape) for shape in shapes]


@multi_head_attention.check
def every_step_of_the_forward(yours, rng):
    inputs = _layer(rng, (2,), 5, 7, 3, 4, 6)
    same_steps(yours, multi_head_attention, *inputs, 3)
    value_of(yours(*inputs, 3), "multi_head_attention")


@multi_head_attention.check
def what_tap_returns_is_used(yours, rng):
    tap_is_used(yours, multi_head_attention, *_layer(rng, (2,), 5, 7, 3, 4, 6), 3)


@multi_head_attention.check(weight=3)
def gradients_of_all_five(yours, rng, right=multi_head_attention):
    def multi_head_attention(x, w_q, w_k, w_v, w_o, *, tap=lambda name, x: x):
        return yours(x, w_q, w_k, w_v, w_o, 2, tap=tap)

    weights = ["width feature"] * 3 + ["feature width"]
    inputs = _layer(rng, (2,), 4, 5, 2, 3, 1)
    gradcheck(multi_head_attention, *inputs, axes=["batch position width", *weights])
    expected = right(*inputs, 2)[0]
    same(value_of(yours(*inputs, 2), "multi_head_attention"), expected, "out")


@multi_head_attention.check
def the_steps_are_told_by_name(yours, rng):
    inputs, dy = _layer(rng, (2,), 5, 7, 3, 4, 6), rng.standard_normal((2, 5, 7))
    *_, expected = multi_head_attention(*inputs, 3)[1](dy)
    *_, steps = yours(*inputs, 3)[1](dy)
    same_gradients(steps, expected)
