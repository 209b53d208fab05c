"""Wrong answers to the tasks of chapter 07."""

from wrong_answers import Wrong

WRONG = {
    "merge_heads": [
        Wrong("a gradient and no tuple", "return (dy.reshape(swapped.shape).swapaxes(-3, -2),)", "return dy.reshape(swapped.shape).swapaxes(-3, -2)", "the gradient undoes both steps", "tuple"),
    ],
    "repeat_heads": [
        Wrong("four axes, always", "dy.reshape(*x.shape[:-2], rep, *x.shape[-2:])", "dy.reshape(-1, x.shape[-3], rep, *x.shape[-2:])", "gradients add up over the group", "shape"),
    ],
    "head_contributions": [
        Wrong("the same share to each", "return heads @ w_o.reshape(num_heads, width, -1)", "every = heads @ w_o.reshape(num_heads, width, -1)\n    return np.broadcast_to(every.mean(axis=-3, keepdims=True), every.shape)", "each head is multiplied by its own rows of w o", "worst entry"),
    ],
    "multi_head_attention": [
        Wrong("a step that is not named", 'merged = tap("merged", merge(heads))', "merged = merge(heads)", "each step of the forward", "merged is missing"),
        Wrong("a value and no pullback", "return y, pullback", "return y", "each step of the forward", "should return two things"),
        Wrong("result of tap ignored", 'heads = tap("heads", heads)', 'tap("heads", heads)', "what tap returns is used", 'heads = tap("heads", …)'),
        Wrong("no steps", "dw_v, dw_o, steps", "dw_v, dw_o", "the dictionary holds the gradients of the steps", "a dictionary of query, key, value, heads, merged"),
        Wrong("two steps swapped", '"heads": dheads, "merged": dmerged', '"heads": dmerged, "merged": dheads', "the dictionary holds the gradients of the steps", "the gradient of heads in the dictionary"),
        Wrong("keys and queries swapped", "dquery, dkey, dvalue = pull_attention(dheads)", "dkey, dquery, dvalue = pull_attention(dheads)", "gradients of x and all weights", "query"),
    ],
}  # fmt: skip
