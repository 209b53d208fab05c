"""The usual mistakes in the tasks of chapter 07, as changes of their solutions."""

import itertools

from .ch07_multihead import (
    head_contributions,
    merge_heads,
    multi_head_attention,
    repeat_heads,
)

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

for _new in ("np.tile(x, (rep, 1, 1))", "np.concatenate([x] * rep, axis=-3)"):
    repeat_heads.mistake(
        "np.repeat(x, rep, axis=-3)",
        _new,
        "the heads are in the order 0 1 0 1 0 1; the copies of a head have to be adjacent, "
        "0 0 0 1 1 1: np.repeat(x, rep, axis=-3)",
    )
_SHAPE = "(*x.shape[:-3], rep * x.shape[-3], *x.shape[-2:])"
for _new in ("axis=0)", "axis=1)", "axis=-2)", f"axis=-2).reshape{_SHAPE}"):
    repeat_heads.mistake(
        "np.repeat(x, rep, axis=-3)",
        f"np.repeat(x, rep, {_new}",
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
        f"{_text}: each head of x appears rep times in a row, np.repeat(x, rep, axis=-3)",
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
        "the output is y, without x: a residual connection belongs to the block, not to attention",
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
