"""Wrong answers to the tasks of chapter 12."""

from wrong_answers import Wrong

WRONG = {
    "tiled_product": [
        Wrong("no power of 2", "ct.full((m, n), 0.0, ct.float64)", "ct.full((3, n), 0.0, ct.float64)", "one tile of the result", "its sizes must be powers of 2"),
        Wrong("a tile changed in place", "acc = ct.mma(left, right, acc)", "acc[...] = ct.mma(left, right, acc)", "one tile of the result", "cannot be assigned"),
        Wrong("a load without its shape's axes", "(m, k), padding_mode", "(m,), padding_mode", "one tile of the result", "tile (0, 0) of shape (4,)"),
    ],
    "softmax_rows": [
        Wrong("the sum of all rows", "ct.sum(ct.exp(tile - new), axis=1, keepdims=True)", "ct.sum(ct.exp(tile - new))", "rows that fit into a tile", "is wrong"),
    ],
    "attention_in_blocks": [
        Wrong("e to the power of lse", "(peak + ct.log(total))", "(ct.exp(peak) * total)", "two tokens worked by hand", "lse is wrong"),
        Wrong("a tile stored in the wrong shape", "(peak + ct.log(total)).reshape((m,))", "peak + ct.log(total)", "two tokens worked by hand", "tile (0,) of shape (2, 1)"),
    ],
    "key_gradients_in_blocks": [
        Wrong("queries of another block", "q = ct.load(query, (i, 0), (m, d), padding_mode=zero)", "q = ct.load(query, (0, 0), (m, d), padding_mode=zero)", "one block of keys", "dkey, for T = 6"),
        Wrong("the wrong axis of dout", "ct.load(dout, (0, i), (dv, m), order=(1, 0), padding_mode=zero)", "ct.load(dout, (i, 0), (m, dv), padding_mode=zero)", "one block of keys", "dkey, for T = 6"),
    ],
}  # fmt: skip
