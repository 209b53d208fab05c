"""Tasks of chapter 06: masks, and the softmax that obeys them. True = may attend."""

import numpy as np

from minimha_autograd import gradcheck

from ..comparisons import same, value_of
from ..task import task


def _same_mask(yours, expected, name="the mask", axes="query key", advice=""):
    if isinstance(yours, np.ndarray) and np.array_equal(yours, ~expected):
        advice = "it is the exact opposite: True = may attend, False = hidden"
    same(yours, expected, name, axes, advice=advice)


@task(chapter=6, difficulty=1, minutes=5, hints=(
    "The rule is a comparison of two numbers, i and j. Make all i and all j with np.arange.",
    "A column of query positions (T, 1) and a row of key positions (1, S) broadcast to (T, S).",
    "np.arange(s)[None, :] <= np.arange(t)[:, None] + offset",
))  # fmt: skip
def causal(t, s, offset=0):
    """The mask of reading from left to right: query i sees key j where j ≤ i + offset.

    t, s    numbers of query and of key positions
    offset  where the first query stands among the keys; it may be negative
    Returns a boolean array (T, S), True = may attend.
    """
    # BEGIN SOLUTION
    i = np.arange(t)[:, None]
    j = np.arange(s)[None, :]
    return j <= i + offset
    # END SOLUTION


@causal.check
def each_query_sees_itself_and_what_came_before(yours, rng):
    n = int(rng.integers(4, 8))
    _same_mask(yours(n, n), causal(n, n), f"causal({n}, {n})")


@causal.check
def there_may_be_more_keys_than_queries(yours, rng):
    for t, s in rng.permutation([3, 5, 7, 4, 8, 2]).reshape(3, 2).tolist():
        _same_mask(yours(t, s), causal(t, s), f"causal({t}, {s})")


@causal.check
def the_offset_moves_the_first_query(yours, rng):
    t = int(rng.integers(3, 6))
    for s, offset in ((t + 3, 3), (t + 3, 1), (t, -1), (t - 1, -2), (t, 9)):
        name = f"causal({t}, {s}, offset={offset})"
        _same_mask(yours(t, s, offset), causal(t, s, offset), name)


@task(chapter=6, difficulty=1, minutes=5, hints=(
    "Key j of sequence b is real where j < lengths[b]. It is the same for all heads and "
    "all queries.",
    "A row of positions (S,) against a column of lengths (B, 1) makes (B, S). Then put in an "
    "axis of length 1 for the heads, and one for the queries.",
    "(np.arange(s) < lengths[:, None])[:, None, None, :]",
))  # fmt: skip
def padding(lengths, s):
    """The mask of padded sequences: every query of sequence b sees the first lengths[b] keys.

    lengths  (B,) integers from 0 to S
    s        number of key positions
    Returns a boolean array (B, 1, 1, S), True = may attend: it hides keys, never queries.
    """
    # BEGIN SOLUTION
    valid = np.arange(s) < lengths[:, None]
    return valid[:, None, None, :]
    # END SOLUTION


@padding.check
def each_sequence_shows_its_first_keys(yours, rng):
    lengths = 1 + rng.permutation(5)[:3]
    mask = yours(lengths, 7)
    mask = np.squeeze(mask) if isinstance(mask, np.ndarray) else mask
    _same_mask(mask, padding(lengths, 7)[:, 0, 0, :], axes="sequence key")


@padding.check
def a_sequence_may_be_empty_or_whole(yours, rng):
    s = int(rng.integers(5, 9))
    lengths = rng.permutation([0, s, 3])
    mask = np.squeeze(yours(lengths, s))
    _same_mask(mask, padding(lengths, s)[:, 0, 0, :], axes="sequence key")


@padding.check
def it_means_keys_and_not_queries(yours, rng):
    lengths = 1 + rng.permutation(3)
    advice = "scores are (B, H, T, S): which axes are broadcast when B = T = S?"
    _same_mask(yours(lengths, 3), padding(lengths, 3), axes="B H T S", advice=advice)


@task(chapter=6, difficulty=1, minutes=5, hints=(
    "Compare ids[b, i] with ids[b, j], for all i and all j at once.",
    "(B, T, 1) against (B, 1, S) makes (B, T, S), as in the mask of causal. Heads come second.",
    "ids[:, None, :, None] == ids[:, None, None, :]",
))  # fmt: skip
def documents(ids):
    """The mask of packed sequences: query i sees key j where both are of the same document.

    ids  (B, S) integers: the document of each position, of queries and keys alike
    Returns a boolean array (B, 1, S, S), True = may attend.
    """
    # BEGIN SOLUTION
    query = ids[:, None, :, None]
    key = ids[:, None, None, :]
    return query == key
    # END SOLUTION


@documents.check
def each_position_sees_its_own_document(yours, rng):
    ids = np.repeat(np.arange(3), rng.integers(1, 4, 3))[None]
    mask = yours(ids)
    mask = np.squeeze(mask) if isinstance(mask, np.ndarray) else mask
    _same_mask(mask, documents(ids)[0, 0], "the mask of one sequence")


@documents.check
def sequences_are_apart(yours, rng):
    ends = 1 + rng.permutation(4)[:3, None]
    ids = rng.integers(9) + (np.arange(5) >= ends)
    _same_mask(yours(ids), documents(ids), axes="B H T S")


@documents.check
def a_document_may_come_back(yours, rng):
    ids = rng.permutation(9)[None, [0, 1, 0, 2, 2, 1]]
    _same_mask(yours(ids), documents(ids), f"the mask of {ids[0].tolist()}", "B H T S")


@task(chapter=6, difficulty=3, minutes=15, hints=(
    "Put −∞ where the mask is False: exp makes it an exact 0. What is the largest entry of a "
    "row in which all are −∞, and what is −∞ − (−∞)?",
    "Where a row's largest entry is −∞ take away 0 instead, and where its sum is 0 divide by "
    "1. In the pullback, 0 · NaN is NaN: put 0 into dy where it is hidden.",
    "np.where(peak == -np.inf, 0.0, peak), np.where(total == 0, 1.0, total), and in the "
    "pullback dy = np.where(mask, dy, 0.0) before the formula of chapter 05.",
))  # fmt: skip
def masked_softmax(x, mask):
    """Softmax over the visible entries of the last axis, and its pullback.

    x     (…, T, S); hidden entries must not matter, even if they are NaN
    mask  boolean, broadcasts to x; True = may attend
    Returns y (…, T, S), 0 where hidden, and the function that takes dy (…, T, S) to a tuple with
    one gradient, (dx,), which is 0 where hidden, whatever dy holds there. A row in which nothing
    is visible gives zeros, and zero gradients. Large entries, such as 1000, must not overflow.
    """
    # BEGIN SOLUTION: return y and the pullback; x.real.max, as in softmax
    x = np.where(mask, x, -np.inf)
    peak = x.real.max(axis=-1, keepdims=True)
    e = np.exp(x - np.where(peak == -np.inf, 0.0, peak))
    total = e.sum(axis=-1, keepdims=True)
    y = e / np.where(total == 0, 1.0, total)

    def pullback(dy):
        dy = np.where(mask, dy, 0.0)
        return (y * (dy - (dy * y).sum(axis=-1, keepdims=True)),)

    return y, pullback
    # END SOLUTION


def _both(returned, dy):
    """y and dx of what masked_softmax returned."""
    y = value_of(returned, "masked_softmax")
    gradients = returned[1](dy)
    if not isinstance(gradients, tuple) or len(gradients) != 1:
        raise AssertionError("the pullback should return a tuple, (dx,): mind the comma")
    return y, gradients[0]


@masked_softmax.check
def hidden_entries_have_no_weight(yours, rng):
    mask = np.ones((4, 5), dtype=bool)
    mask[0, 1:] = mask[2, :2] = False
    for size in (0, 1000):
        x = rng.standard_normal((2, 3, 4, 5))
        x[0], x[1] = x[0] + size, x[1] - size
        x[..., 2, 0] += 2 * size  # the largest is hidden
        with np.errstate(all="ignore"):
            y = value_of(yours(x, mask), "masked_softmax")
        same(y, masked_softmax(x, mask)[0], f"y, of scores around ±{size}", "B H T S")


@masked_softmax.check
def rows_with_nothing_to_see_are_zeros(yours, rng):
    x = rng.standard_normal((2, 4, 5))
    mask = np.arange(5) < np.array([[3], [0], [5], [1]])
    with np.errstate(all="ignore"):
        y, dx = _both(yours(x, mask), rng.standard_normal(x.shape))
    advice = "query 1 sees nothing: follow one such row by hand"
    same(y, masked_softmax(x, mask)[0], "y", "head query key", advice=advice)
    same(dx[:, 1], np.zeros((2, 5)), "dx of query 1", "head key", advice=advice)


@masked_softmax.check(weight=2)
def gradients(yours, rng, right=masked_softmax):
    mask = np.arange(5) <= np.array([[1], [-1], [3]])

    def masked_softmax(x):
        return yours(x, mask)

    x = rng.standard_normal((2, 3, 5))
    gradcheck(masked_softmax, x, axes=["head query key"])
    same(value_of(masked_softmax(x), "masked_softmax"), right(x, mask)[0], "y")


@masked_softmax.check
def what_is_hidden_cannot_hurt(yours, rng):
    x, dy = rng.standard_normal((2, 3, 5))
    mask = np.array([True, False, True, True, False])
    x[:, 1], x[:, 4] = np.nan, np.inf
    dy[:, 1], dy[:, 4] = np.inf, np.nan
    with np.errstate(all="ignore"):
        y, dx = _both(yours(x, mask), dy)
        right, right_dx = _both(masked_softmax(x, mask), dy)
    same(y, right, "y, with NaN and ∞ in hidden entries of x", "row key")
    advice = "0 · NaN is NaN, in the sum over the row as well"
    same(dx, right_dx, "dx, with NaN and ∞ in hidden entries of dy", "row key", advice=advice)
