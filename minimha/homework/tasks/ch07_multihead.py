"""Tasks of chapter 07: several heads, their concatenation, and shared key and value heads."""

import itertools

import numpy as np

from minimha_autograd import gradcheck

from ..comparisons import recorded, same, same_gradients, same_steps, tap_is_used, value_of
from ..inferred import rearranged, rows_used
from ..task import task


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


@merge_heads.check
def each_row_holds_one_position(yours, rng):
    x = rng.standard_normal((2, 3, 5, 4))
    expected = np.concatenate([x[:, h] for h in range(3)], axis=-1)
    y = value_of(yours(x), "merge_heads")
    guess = rearranged(y, x, "B H T D")
    guess += ": put them into the order (B, T, H, D), then reshape to (B, T, H·D)" * bool(guess)
    same(y, expected, axes="B T H·D", guess=guess)


@merge_heads.check
def any_axes_may_come_before_the_heads(yours, rng):
    for lead in ((), (2, 4)):
        x = rng.standard_normal((*lead, 3, 5, 2))
        expected = np.concatenate([x[..., h, :, :] for h in range(3)], axis=-1)
        same(value_of(yours(x), "merge_heads"), expected, f"the result for x of shape {x.shape}")


@merge_heads.check(weight=2)
def the_gradient_undoes_both_steps(yours, rng):
    for axes, lead in (("batch head position width", (2,)), ("head position width", ())):
        x = rng.standard_normal((*lead, 3, 5, 2))
        gradcheck(yours, x, axes=[axes])
        same(value_of(yours(x), "merge_heads"), merge_heads(x)[0], "y")


for _new in ("np.concatenate(np.moveaxis(x, -3, 0), axis=-2)", "np.vstack(list(x))"):
    merge_heads.mistake(
        "return swapped.reshape(*swapped.shape[:-2], -1)",
        f"return {_new}",
        "the heads are one below the other, along T; put them side by side, along D: axis=-1",
    )
merge_heads.mistake(
    "return swapped.reshape(*swapped.shape[:-2], -1)",
    "return np.concatenate(np.moveaxis(x, -3, 0)[::-1], axis=-1)",
    "the heads are in reverse order: head 0 comes first",
)
for _reduced in ("mean", "sum", "max"):
    merge_heads.mistake(
        "return swapped.reshape(*swapped.shape[:-2], -1)",
        f"return x.{_reduced}(axis=-3)",
        f"this is the {_reduced} of the heads; keep them, side by side in a row",
    )
merge_heads.mistake(
    "return swapped.reshape(*swapped.shape[:-2], -1)",
    "return np.repeat(x.mean(axis=-3), x.shape[-3], axis=-1)",
    "each head is replaced by the mean of all heads; keep them, side by side in a row",
)
for _new in ("np.concatenate(list(x), axis=-1)", "np.hstack(list(x))",
             "np.concatenate([x[h] for h in range(x.shape[-3])], axis=-1)"):  # fmt: skip
    merge_heads.mistake(
        "return swapped.reshape(*swapped.shape[:-2], -1)",
        f"return {_new}",
        "the loop runs over the first axis, the batch; head h is x[..., h, :, :]",
    )
for _new in ("_, h, t, d = x.shape\n    swapped", "h, t, d = x.shape\n    swapped"):
    merge_heads.mistake(
        "swapped = x",
        f"{_new} = x",
        "the number of axes before H is fixed: x.shape[-3:] are H, T, D, whatever comes before",
    )
for _new in ("(dy,)", "(dy.swapaxes(-2, -1),)", "(dy.reshape(swapped.shape).swapaxes(-2, -1),)",
             "(dy.swapaxes(-2, -1).reshape(x.shape),)",
             "(np.stack(np.split(dy, x.shape[-3], axis=-1)),)"):  # fmt: skip
    merge_heads.mistake(
        "(dy.reshape(swapped.shape).swapaxes(-3, -2),)",
        _new,
        "the pullback undoes both steps in reverse order: reshape dy to (…, T, H, D), then swap T "
        "and H",
    )
merge_heads.mistake(
    "dy.reshape(swapped.shape).swapaxes(-3, -2)",
    "np.moveaxis(dy.reshape(*swapped.shape[:-2], x.shape[-1], -1), -1, -3)",
    "the columns are cut as (D, H), but head h is a block of D columns: reshape to (…, T, H, D)",
)
merge_heads.mistake(
    "dy.reshape(swapped.shape).swapaxes(-3, -2)",
    "np.repeat(dy.reshape(swapped.shape).swapaxes(-3, -2)[..., :1, :, :], x.shape[-3], axis=-3)",
    "every head gets the columns of head 0; head h gets columns h·D to (h + 1)·D − 1",
)
merge_heads.mistake(
    "return swapped.reshape(",
    "return x.reshape(",
    "x is reshaped without a swap, which mixes positions and heads: swap H and T first, then merge "
    "H and D by a reshape",
)
merge_heads.mistake(
    "return swapped.reshape(*swapped.shape[:-2], -1)",
    "return swapped.swapaxes(-1, -2).reshape(*swapped.shape[:-2], -1)",
    "column d·H + h holds head h; each head is a block of D columns, so merge (H, D), not (D, H)",
)
merge_heads.mistake(
    "return swapped.reshape(*swapped.shape[:-2], -1)",
    "return swapped",
    "H and D are still two axes: merge them by a reshape to (…, T, H·D)",
)
for _reduced in ("mean", "sum"):
    merge_heads.mistake(
        "return swapped.reshape(*swapped.shape[:-2], -1)",
        f"return np.concatenate([x.{_reduced}(axis=-3)] * x.shape[-3], axis=-1)",
        f"each head is replaced by the {_reduced} of all heads; keep them, side by side in a row",
    )
for _new in ("x.swapaxes(1, 2)", "x.swapaxes(0, 1)", "x.transpose(0, 2, 1, 3)"):
    merge_heads.mistake(
        "x.swapaxes(-3, -2)",
        _new,
        "the axes are counted from the front, which fits only one number of axes before H: count "
        "from the back, x.swapaxes(-3, -2)",
    )
merge_heads.mistake(
    "dy.reshape(swapped.shape).swapaxes(-3, -2)",
    "dy.reshape(x.shape)",
    "dy is reshaped without a swap, which mixes positions and heads: reshape to (…, T, H, D), then "
    "swap T and H",
)
merge_heads.mistake(
    "dy.reshape(swapped.shape).swapaxes(-3, -2)",
    "dy.reshape(swapped.shape)",
    "dx is (…, T, H, D): the pullback has to swap T and H back",
)


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


@repeat_heads.check
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
    def repeat_heads(x):
        return yours(x, 3)

    for axes, lead in (("batch head key width", (2,)), ("head key width", ())):
        x = rng.standard_normal((*lead, 2, 5, 4))
        gradcheck(repeat_heads, x, axes=[axes])
        same(value_of(repeat_heads(x), "repeat_heads"), np.repeat(x, 3, axis=-3), "y")


for _new in ("np.tile(x, (rep, 1, 1))", "np.concatenate([x] * rep, axis=-3)"):
    repeat_heads.mistake(
        "np.repeat(x, rep, axis=-3)",
        _new,
        "the heads are in the order 0 1 0 1 0 1; the copies of a head have to be adjacent, "
        "0 0 0 1 1 1: np.repeat(x, rep, axis=-3)",
    )
for _axis in ("0", "1", "-2"):
    repeat_heads.mistake(
        "np.repeat(x, rep, axis=-3)",
        f"np.repeat(x, rep, axis={_axis})",
        "the wrong axis is repeated: the heads are axis −3, whatever comes before them",
    )
repeat_heads.mistake(
    "np.repeat(x, rep, axis=-3)",
    "np.repeat(x, rep)",
    "without an axis np.repeat flattens the array: axis=-3 repeats the heads",
)
repeat_heads.mistake(
    "groups.sum(axis=-3)",
    "groups.mean(axis=-3)",
    "dx is the mean over the query heads of a group; each uses the head of x, so dx is their sum",
)
for _new, _text in (
    ("x", "the heads are not repeated"),
    ("np.repeat(x, rep - 1, axis=-3)", "there are rep − 1 copies of each head, not rep"),
    ("np.repeat(x, rep + 1, axis=-3)", "there are rep + 1 copies of each head, not rep"),
    ("np.repeat(x, rep, axis=-3) / rep", "each copy is divided by rep"),
    ("np.repeat(x[..., None, :, :], rep, axis=-3)", "the copies have an axis of their own"),
    ("np.repeat(x, rep, axis=-1)", "the wrong axis is repeated, the width"),
    ("np.repeat(x, rep, axis=-3) * (np.arange(rep * x.shape[-3]) % rep == 0)[:, None, None]",
     "only one copy of each head is filled"),
    ("x[..., np.arange(rep * x.shape[-3]) % rep, :, :]",
     "head h is head h % rep of x; it should be h // rep"),
):  # fmt: skip
    repeat_heads.mistake(
        "np.repeat(x, rep, axis=-3)",
        _new,
        f"{_text}: each head of x stands rep times in a row, np.repeat(x, rep, axis=-3)",
    )
for _new, _what in (
    ("dy[..., : x.shape[-3], :, :]", "the first heads of dy alone"),
    ("dy[..., -x.shape[-3] :, :, :]", "the last heads of dy alone"),
    ("np.broadcast_to(dy.sum(axis=-3, keepdims=True), x.shape)", "the sum over all query heads"),
    ("dy.sum(axis=-3, keepdims=True)", "the sum over all query heads"),
    ("groups[..., 0, :, :] * rep", "rep times one head of dy"),
    ("groups[..., -1, :, :] * rep", "rep times one head of dy"),
    ("groups.max(axis=-3)", "the largest head of dy"),
    ("groups.sum(axis=-4)", "the sum over the wrong axis, along the groups"),
    ("groups.sum(axis=2)", "the sum over an axis counted from the front"),
    ("groups", "dy of each query head, not yet summed"),
):
    repeat_heads.mistake(
        "groups.sum(axis=-3)",
        _new,
        f"dx is {_what}; rep adjacent query heads share a head of x, so dx is the sum over these: "
        "reshape to (…, G, rep, S, D), then sum over rep",
    )
for _member in ("0", "-1"):
    repeat_heads.mistake(
        "groups.sum(axis=-3)",
        f"groups[..., {_member}, :, :]",
        "dx takes one query head of each group; all of them use the head of x, so dx is their sum",
    )
repeat_heads.mistake(
    "dy.reshape(*x.shape[:-2], rep, *x.shape[-2:])  # (…, G, rep, S, D)\n        "
    "return (groups.sum(axis=-3),)",
    "dy.reshape(*x.shape[:-3], rep, *x.shape[-3:])\n        return (groups.sum(axis=-4),)",
    "the reshape to (rep, G) adds up heads of different groups: the copies of a head are adjacent, "
    "so reshape to (G, rep) and sum over rep",
)
repeat_heads.mistake(
    "return (groups.sum(axis=-3),)",
    "return (dy,)",
    "dy has H heads and x has G: sum dy over the rep query heads that share a head of x",
)


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


@head_contributions.check
def each_head_is_multiplied_by_its_own_rows_of_w_o(yours, rng):
    heads, w_o = rng.standard_normal((3, 5, 4)), rng.standard_normal((12, 7))
    expected = np.stack([heads[h] @ w_o[4 * h : 4 * (h + 1)] for h in range(3)])
    found, guess = yours(heads, w_o), ""
    if np.shape(found) == expected.shape:
        used = rows_used(lambda w: yours(heads, w), w_o)
        of = next((h for h in used if used[h] != list(range(4 * h, 4 * h + 4))), None)
        if of is not None:
            guess = f"head {of} depends on the rows {used[of]} of w_o; its rows are {4 * of} to "
            guess += f"{4 * of + 3}, h·D to (h + 1)·D − 1, because D = 4"
    same(found, expected, axes="H T M", guess=guess)


head_contributions.mistake(
    "return heads @ w_o.reshape(num_heads, width, -1)",
    "return heads.swapaxes(-3, -2).reshape(*heads.shape[:-3], heads.shape[-2], -1) @ w_o",
    "this is the whole output, summed over the heads: keep one contribution for each head, by "
    "multiplying head h by its own D rows of w_o",
)
head_contributions.mistake(
    "w_o.reshape(num_heads, width, -1)",
    "w_o",
    "a head has D columns and w_o has H·D rows: head h is multiplied by rows h·D to (h + 1)·D − 1, "
    "w_o.reshape(H, D, M)",
)
head_contributions.mistake(
    "w_o.reshape(num_heads, width, -1)",
    "w_o[:width]",
    "every head is multiplied by the first D rows of w_o: head h has rows h·D to (h + 1)·D − 1",
)
head_contributions.mistake(
    "w_o.reshape(num_heads, width, -1)",
    "w_o.reshape(width, num_heads, -1).swapaxes(0, 1)",
    "head h is multiplied by every H-th row of w_o; its rows are a block, h·D to (h + 1)·D − 1: "
    "w_o.reshape(H, D, M)",
)
head_contributions.mistake(
    "w_o.reshape(num_heads, width, -1)",
    "w_o.reshape(-1, num_heads, width).transpose(1, 2, 0)",
    "w_o is cut along its columns, as if it were (M, H·D): its rows belong to the heads, "
    "w_o.reshape(H, D, M)",
)
for _axis in ("0", "1", "-2", "-1"):
    head_contributions.mistake(
        "return heads @ w_o.reshape(num_heads, width, -1)",
        "parts = heads @ w_o.reshape(num_heads, width, -1)\n"
        f"    return np.stack([parts[..., h, :, :] for h in range(num_heads)], axis={_axis})",
        "the axis of the heads is in the wrong place: the result is (…, H, T, M), so stack along "
        "axis −3",
    )
head_contributions.mistake(
    "return heads @ w_o.reshape(num_heads, width, -1)",
    "parts = [heads[h] @ w_o[h * width : (h + 1) * width] for h in range(num_heads)]\n"
    "    return np.stack(parts)",
    "heads[h] is item h of the first axis, which may be the batch: head h is heads[..., h, :, :]",
)
head_contributions.mistake(
    "w_o.reshape(num_heads, width, -1)",
    "w_o.T.reshape(num_heads, width, -1)",
    "w_o is transposed: its rows belong to the heads, w_o.reshape(H, D, M)",
)
head_contributions.mistake(
    "return heads @ w_o.reshape(num_heads, width, -1)",
    "cut = [slice(h * width, (h + 1) * width) for h in range(num_heads)]\n"
    "    return np.stack([heads[..., h, :, :] @ w_o[:, c] for h, c in enumerate(cut)], axis=-3)",
    "the columns of w_o are cut into heads: its rows belong to the heads, w_o[h·D : (h + 1)·D]",
)
for _new, _text in (
    ("heads @ w_o.reshape(num_heads, width, -1)[::-1]", "the blocks of w_o are in reverse order"),
    ("heads @ np.roll(w_o.reshape(num_heads, width, -1), 1, axis=0)", "the blocks are shifted"),
    ("heads.sum(axis=-3, keepdims=True) @ w_o.reshape(num_heads, width, -1)",
     "the heads are added up first"),
    ("heads @ w_o.reshape(num_heads, width, -1) / num_heads", "the result is divided by H"),
    ("heads.reshape(*heads.shape[:-3], heads.shape[-2], num_heads, width).swapaxes(-3, -2)"
     " @ w_o.reshape(num_heads, width, -1)",
     "the heads are reshaped without a swap, which mixes heads and positions"),
):  # fmt: skip
    head_contributions.mistake(
        "heads @ w_o.reshape(num_heads, width, -1)",
        _new,
        f"{_text}: head h is multiplied by block h of w_o, rows h·D to (h + 1)·D − 1",
    )
head_contributions.mistake(
    "return heads @ w_o.reshape(num_heads, width, -1)",
    "own = heads @ w_o.reshape(num_heads, width, -1)\n"
    "    return np.stack([own.mean(axis=-3)] * num_heads, axis=-3)",
    "the output is divided equally among the heads; each head contributes its own product with its "
    "D rows of w_o",
)
head_contributions.mistake(
    "return heads @ w_o.reshape(num_heads, width, -1)",
    "return (heads @ w_o.reshape(num_heads, width, -1)).sum(axis=-3)",
    "this is the whole output, summed over the heads: keep one contribution for each head",
)


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


@multi_head_attention.check
def what_tap_returns_is_used(yours, rng):
    tap_is_used(yours, multi_head_attention, *_layer(rng, (2,), 5, 7, 3, 4, 6), 3)


@multi_head_attention.check(weight=3)
def gradients_of_x_and_all_weights(yours, rng, right=multi_head_attention):
    def multi_head_attention(x, w_q, w_k, w_v, w_o, *, tap=lambda name, x: x):
        return yours(x, w_q, w_k, w_v, w_o, 2, tap=tap)

    weights = ["width feature"] * 3 + ["feature width"]
    inputs = _layer(rng, (2,), 4, 5, 2, 3, 1)
    gradcheck(multi_head_attention, *inputs, axes=["batch position width", *weights])
    expected = right(*inputs, 2)[0]
    same(value_of(yours(*inputs, 2), "multi_head_attention"), expected, "out")


@multi_head_attention.check
def the_dictionary_holds_the_gradients_of_the_steps(yours, rng):
    inputs, dy = _layer(rng, (2,), 5, 7, 3, 4, 6), rng.standard_normal((2, 5, 7))
    *_, expected = multi_head_attention(*inputs, 3)[1](dy)
    *_, steps = yours(*inputs, 3)[1](dy)
    same_gradients(steps, expected, recorded(multi_head_attention, *inputs, 3)[1])


_PROJECTED = """\
query, pull_q = linear(x, w_q)
    key, pull_k = linear(x, w_k)
    value, pull_v = linear(x, w_v)
"""
_SLICED = """\
    def own(w):  # zero outside the block of rows and columns of each head
        block = np.ones((w.shape[0] // num_heads, w.shape[1] // num_heads))
        return w * np.kron(np.eye(num_heads), block)

    query, pull_q = linear(x, own(w_q))
    key, pull_k = linear(x, own(w_k))
    value, pull_v = linear(x, own(w_v))
"""
_A_SLICE = (
    "each head gets only a slice of the columns of x, as if w_q, w_k and w_v were block-diagonal. "
    "Every head reads all of x: project first, x @ w_q, then split the result. To see it, change "
    "one column of x: every head must change"
)
multi_head_attention.mistake(_PROJECTED, _SLICED.lstrip(), _A_SLICE)
multi_head_attention.mistake(
    _PROJECTED,
    "query = key = value = x\n    pull_q = pull_k = pull_v = None\n",
    "x itself is split into heads, so each head gets only a slice of the columns of x, and w_q, "
    "w_k and w_v are not used: project first, x @ w_q, then split the result",
)
for _name, _other in itertools.permutations("qkv", 2):
    multi_head_attention.mistake(
        f"linear(x, w_{_name})",
        f"linear(x, w_{_other})",
        f"the wrong matrix is used, w_{_other} in place of w_{_name}: query, key and value each "
        "have their own",
    )
multi_head_attention.mistake(
    'query = tap("query", split(query, num_heads))\n    key = tap("key", split(key, num_heads))\n'
    '    value = tap("value", split(value, num_heads))\n',
    'query = tap("query", query)\n    key = tap("key", key)\n    value = tap("value", value)\n',
    "query, key and value are not split into heads: split(query, num_heads) after the projection",
)
_SPLIT = """\
query = tap("query", split(query, num_heads))
    key = tap("key", split(key, num_heads))
    value = tap("value", split(value, num_heads))
"""
multi_head_attention.mistake(
    _SPLIT,
    _SPLIT.replace("num_heads", "1"),
    "there is one head over all columns: split into num_heads heads",
)
multi_head_attention.mistake(
    _SPLIT,
    """\
cut = lambda y: y.reshape(*y.shape[:-2], num_heads, y.shape[-2], -1)
    query, key, value = tap("query", cut(query)), tap("key", cut(key)), tap("value", cut(value))
""",
    "the heads are split by a reshape alone, which mixes heads and positions: use split, which "
    "swaps T and H after the reshape",
)
for _parts in ("key, query, value", "query, value, key"):
    multi_head_attention.mistake(
        "pull_attention = attention(query, key, value)",
        f"pull_attention = attention({_parts})",
        "query, key and value are in the wrong order: attention(query, key, value)",
    )
multi_head_attention.mistake(
    "merge(heads)",
    "heads.reshape(*x.shape[:-1], -1)",
    "the heads are merged by a reshape alone, which mixes heads and positions: use merge, which "
    "swaps H and T first",
)
for _new in ("heads.sum(axis=-3)", "heads.mean(axis=-3)"):
    multi_head_attention.mistake(
        "merge(heads)",
        _new,
        "the heads are added up; put them side by side, merge(heads), so that w_o can combine them",
    )
multi_head_attention.mistake(
    "return y, pullback",
    "return merged, pullback",
    "the output projection is missing: y = merged w_o is (…, T, M)",
)
for _name in ("q", "k"):
    multi_head_attention.mistake(
        f"linear(x, w_{_name})",
        f"linear(x, w_{_name}.T)",
        "a matrix is transposed: w_q, w_k and w_v are (M, H·D), so a projection is x @ w_q",
    )
multi_head_attention.mistake(
    _PROJECTED,
    _PROJECTED.replace("w_q", "w_v").replace("w_k", "w_v"),
    "one matrix is used for all: query, key and value each have their own",
)
for _name in ("query", "key", "value"):
    multi_head_attention.mistake(
        f"split({_name}, num_heads))",
        f"split({_name}, w_{_name[0]}.shape[1] // num_heads))",
        "split gets the width of a head instead of the number of heads: split(…, num_heads)",
    )
multi_head_attention.mistake(
    _SPLIT,
    _SPLIT.replace("num_heads", "w_q.shape[1] // num_heads"),
    "split gets the width of a head instead of the number of heads: split(…, num_heads)",
)
multi_head_attention.mistake(
    "merge(heads)",
    "heads",
    "the heads are not merged: merge(heads) is (…, T, H·Dv), as w_o needs it",
)
for _new in ("return y + x, pullback", "return x, pullback"):
    multi_head_attention.mistake(
        "return y, pullback",
        _new,
        "x is added to the output; a residual belongs to the block, not to attention",
    )
multi_head_attention.mistake(
    "pull_attention = attention(query, key, value)",
    "pull_attention = attention(query / query.shape[-1] ** 0.5, key, value)",
    "1/√D is applied twice: attention divides by √D already",
)
multi_head_attention.mistake(
    'query = tap("query", split(query, num_heads))',
    'query = tap("query", split(query, num_heads) / (w_q.shape[1] // num_heads) ** 0.5)',
    "1/√D is applied twice: attention divides by √D already",
)
for _wrong in ("merge(dmerged)", "dmerged", "split(dy, num_heads)"):
    multi_head_attention.mistake(
        "dheads = split(dmerged, num_heads)",
        f"dheads = {_wrong}",
        "dheads = split(dmerged, num_heads): dmerged comes from the pullback of the output "
        "projection, and split is the pullback of merge",
    )
for _wrong in ("dvalue, dkey, dquery", "dkey, dquery, dvalue", "dvalue, dquery, dkey"):
    multi_head_attention.mistake(
        "dquery, dkey, dvalue = pull_attention",
        f"{_wrong} = pull_attention",
        "the pullback of attention returns dquery, dkey, dvalue, in this order",
    )
multi_head_attention.mistake(
    "dmerged, dw_o = pull_o(dy)",
    "dw_o, dmerged = pull_o(dy)",
    "the pullback of linear returns the gradient of its input first, then that of its matrix",
)
_PULLED = """dx_q, dw_q = pull_q(merge(dquery))
        dx_k, dw_k = pull_k(merge(dkey))
        dx_v, dw_v = pull_v(merge(dvalue))"""
for _names in (("q",), ("q", "k", "v")):
    _swapped = _PULLED
    for _name in _names:
        _swapped = _swapped.replace(f"dx_{_name}, dw_{_name} =", f"dw_{_name}, dx_{_name} =")
    multi_head_attention.mistake(
        _PULLED,
        _swapped,
        "the pullback of linear returns the gradient of its input first, then that of its matrix",
    )
multi_head_attention.mistake(
    "linear(merged, w_o)",
    "linear(merged, w_o.T)",
    "w_o is transposed: it is (H·Dv, M), so y = merged @ w_o",
)
multi_head_attention.mistake(
    "dheads = split(dmerged, num_heads)",
    "dheads = dmerged.reshape(heads.shape)",
    "dheads is reshaped without a swap, which mixes heads and positions: the pullback of merge is "
    "split",
)
for _old, _new in (
    ("merge(dquery)", "dquery"), ("merge(dkey)", "dkey"), ("merge(dvalue)", "dvalue"),
):  # fmt: skip
    multi_head_attention.mistake(
        _old,
        _new,
        "dquery, dkey and dvalue are still split into heads: merge each before the pullback of its "
        "projection",
    )
for _sum in ("dx_q", "dx_v", "dx_q + dx_k", "(dx_q + dx_k + dx_v) / 3"):
    multi_head_attention.mistake(
        "return dx_q + dx_k + dx_v",
        f"return {_sum}",
        "x is used three times, for query, key and value: dx is the sum of the three gradients",
    )
