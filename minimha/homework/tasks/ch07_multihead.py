"""Tasks of chapter 07: several heads, their concatenation, and shared key and value heads."""

import itertools

import numpy as np

from ..checks.comparisons import (
    recorded,
    same,
    same_gradients,
    same_operation,
    same_steps,
    tap_is_used,
    value_of,
)
from ..checks.task import task


@task(chapter=7, difficulty=1, minutes=8, hints=(
    "There are two steps: move the heads next to their width, then merge these two axes. Which of "
    "them is a reshape?",
    "x.swapaxes(-3, -2) is (…, T, H, D), and a reshape merges its last two axes. The pullback "
    "undoes both steps in reverse order.",
    "The value is swapped.reshape(*swapped.shape[:-2], -1). The gradient is "
    "dy.reshape(swapped.shape).swapaxes(-3, -2), in a tuple.",
))  # fmt: skip
def merge_heads(x):
    """Concatenate the heads, as the output projection needs them, and return the pullback.

    x  (…, H, T, D), with any number of axes before H, or none
    Returns y (…, T, H·D), in which columns h·D to (h + 1)·D − 1 hold head h, and a function that
    takes dy (…, T, H·D) and returns a tuple with one gradient, (dx,).
    """
    # BEGIN SOLUTION: return y, pullback
    swapped = x.swapaxes(-3, -2)  # (…, T, H, D)

    def pullback(dy):
        return (dy.reshape(swapped.shape).swapaxes(-3, -2),)

    return swapped.reshape(*swapped.shape[:-2], -1), pullback
    # END SOLUTION


def _rearranged(yours, x, axes):
    """In which order it has the axes of x, if it is x with axes swapped, then reshaped."""
    if not isinstance(yours, np.ndarray) or yours.size != x.size:
        return ""
    for order in itertools.permutations(range(x.ndim)):
        if (x.transpose(order).reshape(yours.shape) == yours).all():
            letters = ", ".join(axes.split()[k] for k in order)
            return f"x with its axes in the order ({letters}), reshaped to {yours.shape}"
    return ""


@merge_heads.check
def each_row_holds_one_position(yours, rng):
    x = rng.standard_normal((2, 3, 5, 4))
    expected = np.concatenate([x[:, h] for h in range(3)], axis=-1)
    y = value_of(yours(x), "merge_heads")
    guess = _rearranged(y, x, "B H T D")
    guess += ": put them into the order (B, T, H, D), then reshape to (B, T, H·D)" * bool(guess)
    same(y, expected, axes="B T H·D", guess=guess)


@merge_heads.check(hidden=True)
def any_axes_may_come_before_the_heads(yours, rng):
    for lead in ((), (2, 4)):
        x = rng.standard_normal((*lead, 3, 5, 2))
        expected = np.concatenate([x[..., h, :, :] for h in range(3)], axis=-1)
        same(value_of(yours(x), "merge_heads"), expected, f"the result for x of shape {x.shape}")


@merge_heads.check(weight=2)
def the_gradient_undoes_both_steps(yours, rng):
    for axes, *shapes in (
        ("batch head position width", (4, 2, 3, 1), (2, 4, 40, 400)),
        ("head position width", (3, 5, 2), (4, 6, 8)),
    ):
        x, large = map(rng.standard_normal, shapes)
        same_operation(yours, merge_heads, x, large=[large], axes=[axes])


@task(chapter=7, difficulty=2, minutes=10, hints=(
    "np.repeat and np.tile both give G·rep heads. Which of them puts the copies of a head next to "
    "each other? A value that is used rep times gets the sum of rep gradients.",
    "The value is np.repeat(x, rep, axis=-3). In the pullback, reshape the heads to (G, rep) and "
    "sum over rep.",
    "dy.reshape(*x.shape[:-2], rep, *x.shape[-2:]).sum(axis=-3), in a tuple with one gradient.",
))  # fmt: skip
def repeat_heads(x, rep):
    """Repeat key or value heads so that each query head has one, and return the pullback.

    x    (…, G, S, D)
    rep  H // G, the number of query heads that share a head of x
    Returns y (…, H, S, D), in which head h is head h // rep of x, and a function that takes
    dy (…, H, S, D) and returns a tuple with one gradient, (dx,), of the shape of x.
    """

    # BEGIN SOLUTION: return y, pullback
    def pullback(dy):
        groups = dy.reshape(*x.shape[:-2], rep, *x.shape[-2:])  # (…, G, rep, S, D)
        return (groups.sum(axis=-3),)

    return np.repeat(x, rep, axis=-3), pullback
    # END SOLUTION


@repeat_heads.check
def query_head_h_reads_head_h_over_rep(yours, rng):
    x = rng.standard_normal((4, 2, 5, 7))
    expected = np.stack([x[:, h // 3] for h in range(6)], axis=1)
    same(value_of(yours(x, 3), "repeat_heads"), expected, axes="B H S D")


@repeat_heads.check(hidden=True)
def one_head_serves_all(yours, rng):
    x = rng.standard_normal((1, 5, 4))
    expected = np.stack([x[0]] * 3)
    same(
        value_of(yours(x, 3), "repeat_heads"),
        expected,
        "the result for x of shape (1, 5, 4)",
        "H S D",
    )


@repeat_heads.check(weight=2)
def gradients_add_up_over_the_group(yours, rng):
    for axes, *shapes in (
        ("batch head key width", (4, 2, 3, 1), (2, 4, 50, 300)),
        ("head key width", (2, 4, 3), (3, 8, 5)),
    ):
        x, large = map(rng.standard_normal, shapes)
        same_operation(yours, repeat_heads, x, 3, large=[large, 2], axes=[axes, None])


@task(chapter=7, difficulty=1, minutes=10, hints=(
    "The merged heads times w_o is a product of block matrices: head h is multiplied by rows h·D "
    "to (h + 1)·D − 1 of w_o only.",
    "Reshape w_o into H blocks of D rows, (H, D, M), and let matmul multiply each head by its "
    "block.",
    "heads @ w_o.reshape(H, D, M), where H and D are axes -3 and -1 of heads.",
))  # fmt: skip
def head_contributions(heads, w_o):
    """The contribution of each head to the output.

    heads  (…, H, T, D), the outputs of the heads
    w_o    (H·D, M), the output projection
    Returns an array (…, H, T, M), whose sum over the heads is the output, merge(heads) w_o.
    """
    # BEGIN SOLUTION: return the array
    num_heads, width = heads.shape[-3], heads.shape[-1]
    return heads @ w_o.reshape(num_heads, width, -1)
    # END SOLUTION


@head_contributions.check
def a_single_head_contributes_the_whole_output(yours, rng):
    heads, w_o = rng.standard_normal((2, 1, 5, 4)), rng.standard_normal((4, 7))
    same(yours(heads, w_o), heads @ w_o, "the result for one head", "B H T M")


def _rows_used(f, w):
    """For each head of f(w), (…, H, T, M), the rows of w that it depends on."""
    used = {}
    for row in range(len(w)):
        changed = w + (np.arange(len(w)) == row)[:, None]
        moved = np.moveaxis(np.asarray(f(changed) != f(w)), -3, 0)
        for head in (h for h, x in enumerate(moved) if x.any()):
            used.setdefault(head, []).append(row)
    return used


@head_contributions.check
def each_head_is_multiplied_by_its_own_rows_of_w_o(yours, rng):
    heads, w_o = rng.standard_normal((3, 5, 4)), rng.standard_normal((12, 7))
    expected = np.stack([heads[h] @ w_o[4 * h : 4 * (h + 1)] for h in range(3)])
    found, guess = yours(heads, w_o), ""
    if np.shape(found) == expected.shape:
        used = _rows_used(lambda w: yours(heads, w), w_o)
        of = next((h for h in used if used[h] != list(range(4 * h, 4 * h + 4))), None)
        if of is not None:
            guess = f"head {of} depends on the rows {used[of]} of w_o; its rows are {4 * of} to "
            guess += f"{4 * of + 3}, h·D to (h + 1)·D − 1, because D = 4"
    same(found, expected, axes="H T M", guess=guess)


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
    "Write the forward first, one line for each step, and keep the pullback of each step. Then go "
    "through the lines in reverse order.",
    "split undoes merge, and merge undoes split, so each is the other's pullback. x is used in "
    "three products, so its gradient is a sum of three.",
    "dmerged, dw_o = pull_o(dy); dheads = split(dmerged, num_heads); dquery, dkey, dvalue = "
    "pull_attention(dheads); dx_q, dw_q = pull_q(merge(dquery)), and so on for k and v; "
    "dx = dx_q + dx_k + dx_v.",
))  # fmt: skip
def multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads, *, tap=lambda name, x: x):
    """Self-attention with H heads; its pullback is composed of the pullbacks of its steps.

    x              (…, T, M)
    w_q, w_k       (M, H·D)
    w_v            (M, H·Dv)
    w_o            (H·Dv, M)
    num_heads      H
    tap            call it with query, key, value (…, H, T, D or Dv) after the split, with heads
                   (…, H, T, Dv) after attention, and with merged (…, T, H·Dv); continue with what
                   it returns: query = tap("query", query)
    Returns the output y (…, T, M), and a function that takes dy and returns a tuple: dx, dw_q,
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
def each_step_of_the_forward(yours, rng):
    inputs = _layer(rng, (2,), 5, 6, 3, 4, 7)  # M = 6 can be cut into 3 slices
    same_steps(yours, multi_head_attention, *inputs, 3)
    value_of(yours(*inputs, 3), "multi_head_attention")


@multi_head_attention.check(hidden=True)
def what_tap_returns_is_used(yours, rng):
    tap_is_used(yours, multi_head_attention, *_layer(rng, (2,), 5, 7, 3, 4, 6), 3)


@multi_head_attention.check(weight=3)
def gradients_of_x_and_all_weights(yours, rng):
    inputs, large = _layer(rng, (2,), 4, 5, 2, 3, 1), _layer(rng, (), 150, 80, 4, 20, 16)
    axes = ["batch position width", *["width feature"] * 3, "feature width", None]
    same_operation(
        yours, multi_head_attention, *inputs, 2, large=[*large, 4], name="out", axes=axes
    )


@multi_head_attention.check
def the_dictionary_holds_the_gradients_of_the_steps(yours, rng):
    inputs, dy = _layer(rng, (2,), 60, 80, 4, 20, 16), rng.standard_normal((2, 60, 80))
    *_, expected = multi_head_attention(*inputs, 4)[1](dy)
    *_, steps = yours(*inputs, 4)[1](dy)
    same_gradients(steps, expected, recorded(multi_head_attention, *inputs, 4)[1])
