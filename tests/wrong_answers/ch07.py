"""Wrong answers to the tasks of chapter 07."""

from wrong_answers import Wrong

WRONG = {
    "merge_heads": [
        Wrong("a reshape alone", "return swapped.reshape(*swapped.shape[:-2], -1), pullback", "return x.reshape(*swapped.shape[:-2], -1), pullback", "each row holds one position", "swap H and T first"),
        Wrong("one axis before the heads, always", "x.swapaxes(-3, -2)  #", "x.transpose(0, 2, 1, 3)  #", "any axes may stand before the heads", "axes"),
        Wrong("backward, a reshape alone", "dy.reshape(swapped.shape).swapaxes(-3, -2)", "dy.reshape(x.shape)", "the gradient goes the way back", "reshape"),
        Wrong("a gradient and no tuple", "return (dy.reshape(swapped.shape).swapaxes(-3, -2),)", "return dy.reshape(swapped.shape).swapaxes(-3, -2)", "the gradient goes the way back", "tuple"),
    ],
    "repeat_heads": [
        Wrong("all heads, and then all again", "return np.repeat(x, rep, axis=-3), pullback", "return np.concatenate([x] * rep, axis=-3), pullback", "query head h reads head h over rep", "0 0 1 1 2 2"),
        Wrong("the second axis, always", "np.repeat(x, rep, axis=-3)", "np.repeat(x, rep, axis=1)", "one head serves all", "wrong shape"),
        Wrong("the mean of the group", "groups.sum(axis=-3)", "groups.mean(axis=-3)", "gradients add up over the group", "the mean over the group"),
        Wrong("four axes, always", "dy.reshape(*x.shape[:-2], rep, *x.shape[-2:])", "dy.reshape(-1, x.shape[-3], rep, *x.shape[-2:])", "gradients add up over the group", "shape"),
        Wrong("groups in turn", "dy.reshape(*x.shape[:-2], rep, *x.shape[-2:])  # (…, G, rep, S, D)\n        return (groups.sum(axis=-3),)", "dy.reshape(*x.shape[:-3], rep, *x.shape[-3:])\n        return (groups.sum(axis=-4),)", "gradients add up over the group", "worst entry"),
    ],
    "head_contributions": [
        Wrong("merged, which is the sum", "return heads @ w_o.reshape(num_heads, width, -1)", "return heads.swapaxes(-3, -2).reshape(*heads.shape[:-3], heads.shape[-2], -1) @ w_o", "one head adds all of the output", "wrong shape"),
        Wrong("rows of the heads in turn", "w_o.reshape(num_heads, width, -1)", "w_o.reshape(width, num_heads, -1).swapaxes(0, 1)", "each head meets its own rows of w o", "rows D to 2 D"),
        Wrong("the same share to each", "return heads @ w_o.reshape(num_heads, width, -1)", "every = heads @ w_o.reshape(num_heads, width, -1)\n    return np.broadcast_to(every.mean(axis=-3, keepdims=True), every.shape)", "each head meets its own rows of w o", "worst entry"),
    ],
    "multi_head_attention": [
        Wrong("merged by a reshape", 'merge(heads))', 'heads.reshape(*x.shape[:-1], -1))', "every step of the forward", "merged is wrong; query, key, value, heads: right"),
        Wrong("keys from the weights of the queries", "linear(x, w_k)", "linear(x, w_q)", "every step of the forward", "key is wrong; query: right"),
        Wrong("a step that is not named", 'merged = tap("merged", merge(heads))', "merged = merge(heads)", "every step of the forward", "merged is missing"),
        Wrong("no output projection", "y, pull_o = linear(merged, w_o)", "y, pull_o = merged, lambda dy: (dy, 0 * w_o)", "every step of the forward", "the result"),
        Wrong("a value and no pullback", "return y, pullback", "return y", "every step of the forward", "should return two things"),
        Wrong("a tap that is only told", 'heads = tap("heads", heads)', 'tap("heads", heads)', "what tap returns is used", 'heads = tap("heads", …)'),
        Wrong("no steps", "dw_v, dw_o, steps", "dw_v, dw_o", "the steps are told by name", "a dictionary of query, key, value, heads, merged"),
        Wrong("two steps swapped", '"heads": dheads, "merged": dmerged', '"heads": dmerged, "merged": dheads', "the steps are told by name", "the gradient of heads in the dictionary"),
        Wrong("the gradient of the heads by a reshape", "dheads = split(dmerged, num_heads)", "dheads = dmerged.reshape(heads.shape)", "gradients of all five", "reshape"),
        Wrong("x through the values is forgotten", "return dx_q + dx_k + dx_v, dw_q", "return dx_q + dx_k, dw_q", "gradients of all five", "the gradient of x is wrong"),
        Wrong("keys and queries swapped", "dquery, dkey, dvalue = pull_attention(dheads)", "dkey, dquery, dvalue = pull_attention(dheads)", "gradients of all five", "query"),
    ],
}  # fmt: skip
