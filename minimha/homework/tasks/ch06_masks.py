"""Tasks of chapter 06: masks, and softmax with a mask. True = may attend."""

import numpy as np

from ..checks.comparisons import instead, same, same_operation, value_of
from ..checks.task import task


@task(chapter=6, difficulty=1, minutes=5, hints=(
    "The rule compares two numbers, i and j. Make all i and all j with np.arange.",
    "A column of query positions (T, 1) and a row of key positions (1, S) broadcast to (T, S).",
    "np.arange(s)[None, :] <= np.arange(t)[:, None] + offset",
))  # fmt: skip
def causal(t, s, offset=0):
    """The causal mask: query i sees key j if j ≤ i + offset.

    t, s    the numbers of query and of key positions
    offset  the position of the first query among the keys; it may be negative
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
    same(yours(n, n), causal(n, n), f"causal({n}, {n})", "query key")


@causal.check
def there_may_be_more_keys_than_queries(yours, rng):
    for t, s in rng.permutation([3, 5, 7, 4, 8, 2]).reshape(3, 2).tolist():
        same(yours(t, s), causal(t, s), f"causal({t}, {s})", "query key")


@causal.check(hidden=True)
def the_offset_moves_the_first_query(yours, rng):
    t = int(rng.integers(3, 6))
    for s, offset in ((t + 3, 3), (t + 3, 1), (t, -1), (t - 1, -2), (t, 9)):
        name = f"causal({t}, {s}, offset={offset})"
        same(yours(t, s, offset), causal(t, s, offset), name, "query key")


@task(chapter=6, difficulty=1, minutes=5, hints=(
    "Key j of sequence b is real if j < lengths[b], for all heads and all queries alike.",
    "A row of positions (S,) compared with a column of lengths (B, 1) gives (B, S). Then insert an "
    "axis of length 1 for the heads and one for the queries.",
    "(np.arange(s) < lengths[:, None])[:, None, None, :]",
))  # fmt: skip
def padding(lengths, s):
    """The padding mask: every query of sequence b sees the first lengths[b] keys.

    lengths  (B,) integers from 0 to S
    s        the number of key positions
    Returns a boolean array (B, 1, 1, S), True = may attend. It hides keys, never queries.
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
    same(mask, padding(lengths, 7)[:, 0, 0, :], axes="sequence key")


@padding.check
def a_sequence_may_be_empty_or_whole(yours, rng):
    s = int(rng.integers(5, 9))
    lengths = rng.permutation([0, s, 3])
    mask = np.squeeze(yours(lengths, s))
    same(mask, padding(lengths, s)[:, 0, 0, :], axes="sequence key")


@padding.check(hidden=True)
def it_hides_keys_and_not_queries(yours, rng):
    lengths = 1 + rng.permutation(3)
    advice = "the mask must broadcast to scores (B, H, T, S) along H and T"
    same(yours(lengths, 3), padding(lengths, 3), axes="batch head query key", advice=advice)


@task(chapter=6, difficulty=1, minutes=5, hints=(
    "Compare ids[b, i] with ids[b, j], for all i and all j at once.",
    "(B, T, 1) compared with (B, 1, S) gives (B, T, S). The axis of the heads comes second.",
    "ids[:, None, :, None] == ids[:, None, None, :]",
))  # fmt: skip
def documents(ids):
    """The mask of packed documents: query i sees key j if both belong to the same document.

    ids  (B, S) integers: the document of each position, for queries and keys alike
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
    same(mask, documents(ids)[0, 0], "the mask of one sequence")


@documents.check
def sequences_do_not_mix(yours, rng):
    ends = 1 + rng.permutation(4)[:3, None]
    ids = rng.integers(9) + (np.arange(5) >= ends)
    same(yours(ids), documents(ids), axes="batch head query key")


@documents.check(hidden=True)
def a_document_may_return_later(yours, rng):
    ids = rng.permutation(9)[None, [0, 1, 0, 2, 2, 1]]
    same(yours(ids), documents(ids), f"the mask of {ids[0].tolist()}", "batch head query key")


@task(chapter=6, difficulty=3, minutes=15, hints=(
    "Put −∞ where the mask is False; exp turns it into an exact 0. If all entries of a row are −∞, "
    "what is the largest, and what is −∞ − (−∞)?",
    "If the largest entry of a row is −∞, subtract 0 instead. If the sum is 0, divide by 1. In the "
    "pullback, 0 · NaN is NaN, so set dy to 0 where the mask is False.",
    "np.where(peak == -np.inf, 0.0, peak), np.where(total == 0, 1.0, total), and in the "
    "pullback dy = np.where(mask, dy, 0.0) before the formula of chapter 05.",
))  # fmt: skip
def masked_softmax(x, mask):
    """Softmax over the visible entries of the last axis, and its pullback.

    x     (…, T, S); hidden entries have no effect, even if they are NaN
    mask  boolean, broadcasts to x; True = may attend
    Returns y (…, T, S), 0 where hidden, and a function that takes dy (…, T, S) and returns a tuple
    with one gradient, (dx,), which is 0 where hidden, whatever dy is there. A row without a visible
    entry gives zeros, and zero gradients. Large entries, such as 1000, must not overflow.
    """
    # BEGIN SOLUTION: return y and the pullback; use x.real.max, as in softmax
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
    """y and dx from the results of masked_softmax."""
    y = value_of(returned, "masked_softmax")
    gradients = returned[1](dy)
    if not isinstance(gradients, tuple) or len(gradients) != 1:
        wanted = "return a tuple, (dx,), with the comma"
        raise AssertionError(instead("the pullback returns", gradients, wanted))
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
        same(
            y,
            masked_softmax(x, mask)[0],
            f"y, for x around ±{size}," if size else "y",
            "batch head query key",
            guess=_sums(y, mask),
        )


def _sums(y, mask):
    """What is wrong if hidden entries have no weight, and rows do not sum to 1."""
    hidden = np.shape(y) == (2, 3, 4, 5) and not y[..., ~mask].any()
    if not hidden or np.isnan(y).any() or np.allclose(y.sum(axis=-1), 1):
        return ""
    return (
        "hidden entries have no weight, but they are still in the sum: the rows do not sum to 1. "
        "Hide them before the sum"
    )


@masked_softmax.check
def rows_without_a_visible_entry_are_zero(yours, rng):
    x = rng.standard_normal((200, 4, 90))
    mask = np.arange(90) < np.array([[3], [0], [90], [1]])
    with np.errstate(all="ignore"):
        y, dx = _both(yours(x, mask), rng.standard_normal(x.shape))
    advice = "query 1 sees nothing: compute such a row by hand"
    same(y, masked_softmax(x, mask)[0], "y", "head query key", advice=advice)
    same(dx[:, 1], np.zeros((200, 90)), "dx of query 1", "head key", advice=advice)


@masked_softmax.check(weight=2)
def the_gradient_of_x(yours, rng):
    x, mask = rng.standard_normal((2, 3, 4)), np.arange(4) <= np.array([[1], [-1], [2]])
    large = rng.standard_normal((700, 90)), np.arange(90) < rng.integers(0, 91, (700, 1))
    same_operation(yours, masked_softmax, x, mask, large=large, axes=["head query key", None])


@masked_softmax.check(hidden=True)
def hidden_entries_have_no_effect(yours, rng):
    x, dy = rng.standard_normal((2, 700, 90))
    mask = np.arange(90) % 3 != 1
    x[0, 1], x[1, 4] = np.nan, np.inf  # the other rows show whether anything else is wrong
    dy[0, 1], dy[1, 4] = np.inf, np.nan
    with np.errstate(all="ignore"):
        y, dx = _both(yours(x, mask), dy)
        right, right_dx = _both(masked_softmax(x, mask), dy)
    same(y, right, "y, with NaN and ∞ in hidden entries of x,", "row key")
    advice = "0 · NaN is NaN, also in the sum over the row"
    same(dx, right_dx, "dx, with NaN and ∞ in hidden entries of dy,", "row key", advice=advice)
