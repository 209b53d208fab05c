"""Tasks of chapter 11: attention that never holds all scores at once."""

import tracemalloc

import numpy as np

from ...attention import attention
from ..comparisons import same
from ..task import task


@task(chapter=11, difficulty=2, minutes=10, hints=(
    "The sums so far are relative to the old maximum. Which factor does each term e^(x − old) "
    "need, so that it reads e^(x − new)?",
    "new = the larger of m and the block's own largest score. The factor e^(m − new) goes to l "
    "and to acc; then add the block's e^(scores − new), summed and times value. Where new is "
    "still −∞, measure against 0 instead: −∞ − (−∞) is not a number.",
    "new = np.maximum(m, scores.max(axis=-1)); safe = np.where(new == -np.inf, 0, new); factor = "
    "np.exp(m - safe); e = np.exp(scores - safe[:, None]); then new, l * factor + e.sum(axis=-1), "
    "and acc * factor[:, None] + e @ value.",
))  # fmt: skip
def online_softmax(m, l, acc, scores, value):
    """Take in one more block of keys: the state of each row, before and after.

    m       (T,), the largest score so far; −∞ where none was visible
    l       (T,), the sum of e^(score − m) over the scores so far; 0 where none was visible
    acc     (T, Dv), the sum of e^(score − m) times the value of the key; 0 where none was visible
    scores  (T, N), those of the next N keys; −∞ where a key is hidden
    value   (N, Dv), their values
    Returns m, l, acc with the block taken in. Rows that have seen nothing yet stay −∞, 0, 0. Scores
    as large as 1000 must not overflow. After the last block, acc / l is the output.
    """
    # BEGIN SOLUTION: return m, l, acc
    new = np.maximum(m, scores.max(axis=-1))
    safe = np.where(new == -np.inf, 0, new)
    factor = np.exp(m - safe)
    e = np.exp(scores - safe[:, None])
    return new, l * factor + e.sum(axis=-1), acc * factor[:, None] + e @ value
    # END SOLUTION


@online_softmax.check
def two_tokens_as_by_hand(yours, rng):
    state = np.array([0.0]), np.array([1.0]), np.array([[4.0]])
    state = yours(*state, np.array([[np.log(3)]]), np.array([[8.0]]))
    advice = "4 was counted against the maximum 0; against ln 3 it counts a third"
    expected = [np.log(3)], [4 / 3], [[28 / 3]]
    _same_parts(state, expected, _STATE, " after value 4, then value 8", advice)


@online_softmax.check(weight=2)
def in_blocks_as_all_at_once(yours, rng):
    scores, value = rng.standard_normal((4, 9)), rng.standard_normal((9, 3))
    scores[:, 5:] += [[3.0], [-3.0], [0.0], [0.0]]  # the maximum grows late, or never
    _feed(yours, scores, value, [2, 3, 4], "is each row measured against its own new maximum?")


@online_softmax.check
def what_is_hidden_adds_nothing(yours, rng):
    scores, value = rng.standard_normal((3, 6)), rng.standard_normal((6, 2))
    scores[0] = -np.inf  # sees nothing
    scores[1, :2] = scores[1, 4:] = -np.inf  # nothing in the first block, nor in the last
    with np.errstate(all="ignore"):
        advice = "e^(−∞) is 0, but −∞ − (−∞) is not a number: measure against 0 there"
        _feed(yours, scores, value, [2, 2, 2], advice)


@online_softmax.check
def large_scores_do_not_overflow(yours, rng):
    scores = np.array([[-1000.0, 1000.0, 999.0], [1000.0, -1000.0, -1000.0]])
    advice = "take the new maximum from both sides before exp"
    with np.errstate(all="ignore"):
        _feed(yours, scores, rng.standard_normal((3, 2)), [1, 1, 1], advice)


def _feed(yours, scores, value, sizes, advice):
    """Give it blocks of so many keys, and compare what it knows after each."""
    t, dv = len(scores), value.shape[-1]
    state = expected = np.full(t, -np.inf), np.zeros(t), np.zeros((t, dv))
    for k, end in enumerate(np.cumsum(sizes)):
        block = slice(end - sizes[k], end)
        state = yours(*state, scores[:, block].copy(), value[block].copy())
        expected = online_softmax(*expected, scores[:, block], value[block])
        _same_parts(state, expected, _STATE, f" after block {k + 1}", advice)


def _same_parts(yours, expected, names, when="", advice=""):
    """Compare the arrays of a tuple, one after the other."""
    _are(names, yours)
    for name, part, right in zip(names, yours, expected, strict=True):
        same(part, right, f"{name}{when}", _AXES.get(name), tolerance=1e-11, advice=advice)


def _are(names, yours):
    """Raise unless these are as many things."""
    several = isinstance(yours, tuple | list)
    if not several or len(yours) != len(names):
        count = f"{len(yours)} things" if several else type(yours).__name__
        raise AssertionError(f"it should return {', '.join(names)}, not {count}")


_STATE, _GRADIENTS = ("m", "l", "acc"), ("dquery", "dkey", "dvalue")
_AXES = {
    **dict.fromkeys(["m", "l", "lse"], "query"),
    **dict.fromkeys(["acc", "out", "dquery"], "query width"),
    **dict.fromkeys(["dkey", "dvalue"], "key width"),
}


@task(chapter=11, difficulty=3, minutes=20, given=(online_softmax.solution,), hints=(
    "Two loops, over the first query of a tile and over its first key. What is known of the "
    "rows starts anew for each tile of queries, and grows with each tile of keys.",
    "keys = np.arange(j, min(j + block, S)) are the places of a tile's keys, and (first[rows, "
    "None] <= keys) & (keys <= last[rows, None]) says who sees whom; continue where nobody "
    "does. Hide scores with np.where(…, scores, -np.inf), then online_softmax.",
    "After the inner loop: total = np.where(l > 0, l, 1); out[rows] = acc / total[:, None]; "
    "lse[rows] = m + np.log(total). Before it: m = np.full(n, -np.inf), l = np.zeros(n), "
    "acc = np.zeros((n, Dv)), with n = len(query[rows]).",
))  # fmt: skip
def tiled_forward(query, key, value, scale, first, last, block, *, tap=lambda name, x: x):
    """Attention of one head, tile by tile: no array has all T · S pairs.

    query  (T, D)
    key    (S, D)
    value  (S, Dv)
    scale  a number
    first  (T,), integers: query i sees the keys j with first[i] ≤ j ≤ last[i]
    last   (T,), integers; causal attention has first 0 and last[i] = i + offset
    block  a tile has at most this many queries and keys; T and S need not be multiples of it
    tap    called as tap("scores", scores) with the scaled scores of each tile, and of no tile in
           which nobody sees anything; go on with what it returns
    Returns out (T, Dv), softmax(scale · Q Kᵀ) V over what is visible, and lse (T,), the logarithm
    of each row's sum of e^score. A query that sees nothing has out 0 and lse −∞.
    """
    # BEGIN SOLUTION: return out, lse
    out, lse = np.empty((len(query), value.shape[1])), np.empty(len(query))
    for i in range(0, len(query), block):
        rows = slice(i, i + block)
        n = len(query[rows])
        m, l, acc = np.full(n, -np.inf), np.zeros(n), np.zeros((n, value.shape[1]))
        for j in range(0, len(key), block):
            keys = np.arange(j, min(j + block, len(key)))
            visible = (first[rows, None] <= keys) & (keys <= last[rows, None])
            if not visible.any():
                continue
            scores = tap("scores", scale * query[rows] @ key[keys].T)
            scores = np.where(visible, scores, -np.inf)
            m, l, acc = online_softmax(m, l, acc, scores, value[keys])
        total = np.where(l > 0, l, 1)
        out[rows], lse[rows] = acc / total[:, None], m + np.log(total)
    return out, lse
    # END SOLUTION


@tiled_forward.check
def tiles_of_any_size(yours, rng):
    inputs, everything = _inputs(rng, 5, 7), (np.zeros(5, int), np.full(5, 6))
    begin = "a first and only tile, smaller than block: m, l, acc from −∞, 0, 0; at the end acc / l"
    advice = {
        8: f"{begin} and m + ln l",
        3: "right in one tile. Do m, l, acc go on to the next? The last tile may be smaller",
        1: "right in tiles of 3 × 3",
    }
    for block, tip in advice.items():
        when = f" in tiles of {block} × {block}, for T = 5 and S = 7,"
        found = yours(*inputs, 0.3, *everything, block)
        _same_out(found, inputs, 0.3, *everything, when, tip)


@tiled_forward.check(weight=2)
def each_query_sees_its_own_keys(yours, rng):
    inputs, at = _inputs(rng, 5, 7), np.arange(5)
    places = "j counts from the first key of all, and a score that is hidden becomes −∞"
    rules = {
        " where last[i] = i + 2": (0 * at, at + 2, places),
        " where first[i] = i − 1 and last[i] = i + 1": (at - 1, at + 1, places),
        " where first = (0, 9, 2, 4, 1), last = (0, 9, 1, 8, 6)": (
            np.array([0, 9, 2, 4, 1]), np.array([0, 9, 1, 8, 6]),
            "queries 1 and 2 see nothing, l = 0: no division by it, and lse is −∞",
        ),
    }  # fmt: skip
    with np.errstate(all="ignore"):
        for when, (first, last, advice) in rules.items():
            found = yours(*inputs, 0.7, first, last, 3)
            _same_out(found, inputs, 0.7, first, last, when, advice)


@tiled_forward.check
def tiles_that_nobody_sees_are_skipped(yours, rng):
    inputs, (first, last) = _inputs(rng, 11, 10), _window(11)
    _, found = _tiles(yours, *inputs, 0.7, first, last, 3)
    _only_seen(found.get("scores", []), first, last, 10, 3)


@tiled_forward.check
def never_all_pairs_at_once(yours, rng):
    inputs = _inputs(rng, 1024, 1024), _inputs(rng, 8192, 8192)
    found = _in_little_memory(yours, *((*x, 0.7, *_window(len(x[0]))) for x in inputs))
    _same_out(found, inputs[0], 0.7, *_window(1024), "", "")


@task(chapter=11, difficulty=3, minutes=20, hints=(
    "The two loops are those of the forward. In a tile, begin with the weights: what does "
    "lse have to do with them?",
    "weights = e^(scores − lse), 0 where a key is hidden, and they are already divided by the "
    "row's sum. The mean that softmax takes off each row is delta = Σ dout · out over Dv, "
    "which needs no tile: take it before the loops. A query meets many tiles of keys, a key "
    "many tiles of queries, so all three gradients are added to.",
    "weights = np.exp(np.where(visible, scores - lse[rows, None], -np.inf)); dscores = weights "
    "* (dout[rows] @ value[keys].T - delta[rows, None]); then dquery[rows] += scale * dscores "
    "@ key[keys], dkey[keys] += scale * dscores.T @ query[rows], dvalue[keys] += weights.T @ "
    "dout[rows].",
))  # fmt: skip
def tiled_backward(
    query, key, value, out, lse, dout, scale, first, last, block, *, tap=lambda name, x: x
):
    """The gradients of attention of one head, tile by tile, from what the forward returned.

    query, key, value, scale, first, last, block
           as in tiled_forward
    out    (T, Dv), and lse (T,), what it returned: 0 and −∞ for a query that sees nothing
    dout   (T, Dv), the gradient of out
    tap    called as tap("weights", weights) and tap("dscores", dscores) in each tile, except where
           nobody sees anything; dscores is the gradient of the scaled scores
    Returns dquery (T, D), dkey (S, D) and dvalue (S, Dv). No array has all T · S pairs.
    """
    # BEGIN SOLUTION: return dquery, dkey, dvalue
    dquery, dkey, dvalue = np.zeros(query.shape), np.zeros(key.shape), np.zeros(value.shape)
    delta = (dout * out).sum(axis=-1)
    for i in range(0, len(query), block):
        rows = slice(i, i + block)
        for j in range(0, len(key), block):
            keys = np.arange(j, min(j + block, len(key)))
            visible = (first[rows, None] <= keys) & (keys <= last[rows, None])
            if not visible.any():
                continue
            scores = scale * query[rows] @ key[keys].T
            weights = np.exp(np.where(visible, scores - lse[rows, None], -np.inf))
            weights = tap("weights", weights)
            dweights = dout[rows] @ value[keys].T
            dscores = tap("dscores", weights * (dweights - delta[rows, None]))
            dquery[rows] += scale * dscores @ key[keys]
            dkey[keys] += scale * dscores.T @ query[rows]
            dvalue[keys] += weights.T @ dout[rows]
    return dquery, dkey, dvalue
    # END SOLUTION


@tiled_backward.check
def two_tokens_backward_as_by_hand(yours, rng):
    inputs = np.array([[np.log(3), 0.0], [1.0, 0.0], [8.0, 4.0], [7.0, 6.0]])[..., None]
    lse, dout = np.log([4.0, 2.0]), np.array([[1.0], [0.0]])
    settings = 1.0, np.array([0, 0]), np.array([1, 1]), 2
    _, right = _tiles(tiled_backward, *inputs, lse, dout, *settings)
    _, found = _tiles(yours, *inputs, lse, dout, *settings)
    advice = {
        "weights": "lse = (ln 4, ln 2), so the first weight is e^(ln 3 − ln 4) = ¾",
        "dscores": "delta = dout · out = (7, 0), and dscores = weights · (dweights − delta)",
    }
    for name, tip in advice.items():
        if name in found:
            same(found[name][0], right[name][0], name, "query key", advice=tip)
    by_hand = "by hand dQ = (¾, 0), dK = (¾ ln 3, −¾ ln 3), dV = (¾, ¼)"
    _same_gradients(yours, *inputs, lse, dout, *settings, advice=by_hand)


@tiled_backward.check(weight=2)
def the_gradients_of_attention(yours, rng):
    (query, key, value), dout = _inputs(rng, 4, 5), rng.standard_normal((4, 2))
    first, last = np.array([0, 0, 1, 0]), np.array([2, 3, 4, 0])
    mask = _visible(first, last, 5)
    _, pullback = attention.with_pullback(query, key, value, scale=0.6, mask=mask)
    expected = dict(zip(_GRADIENTS, pullback(dout, None), strict=False))
    forward = _attended(query, key, value, 0.6, first, last)
    found = yours(query, key, value, *forward, dout, 0.6, first, last, 2)
    advice = {
        "dvalue": "weights are e^(scores − lse), 0 where hidden, and need no division; a key's "
        "gradient is a sum over all tiles of its column",
        "dquery": "delta is that of the whole row; a query's gradient is a sum over all tiles of "
        "its row, and the scores were scaled",
        "dkey": "a key's gradient is a sum over all tiles of its column, and scores were scaled",
    }
    _are(_GRADIENTS, found)
    for name, tip in advice.items():
        part = found[_GRADIENTS.index(name)]
        same(part, expected[name], name, _AXES[name], tolerance=1e-11, advice=tip)
    (_, right), (_, tapped) = (
        _tiles(f, query, key, value, *forward, dout, 0.6, first, last, 5)
        for f in (tiled_backward, yours)
    )
    if "dscores" in tapped:
        tip = "the gradient of the scaled scores: the scale comes after it, in dquery and dkey"
        same(tapped["dscores"][0], right["dscores"][0], "dscores", "query key", advice=tip)


@tiled_backward.check
def what_sees_nothing_or_is_unseen_gets_zero(yours, rng):
    inputs, first, last = _inputs(rng, 5, 7), np.array([1, 3, 9, 2, 1]), np.array([2, 1, 9, 4, 1])
    with np.errstate(all="ignore"):
        forward = _attended(*inputs, 0.6, first, last)
        dout = rng.standard_normal(forward[0].shape)
        advice = "hide before exp: where lse is −∞, scores − lse is ∞, and ∞ · 0 not a number"
        _same_gradients(yours, *inputs, *forward, dout, 0.6, first, last, 3, advice=advice)


@tiled_backward.check
def no_tile_too_many_and_never_all_pairs(yours, rng):
    inputs, (first, last) = _inputs(rng, 11, 10), _window(11)
    forward, dout = _attended(*inputs, 0.7, first, last), rng.standard_normal((11, 2))
    _, found = _tiles(yours, *inputs, *forward, dout, 0.7, first, last, 3)
    for name in ("weights", "dscores"):
        _only_seen(found.get(name, []), first, last, 10, 3, name)
    small, large = (
        (*_inputs(rng, t, t), np.ones((t, 2)), np.ones(t), np.ones((t, 2)), 0.7, *_window(t))
        for t in (1024, 8192)
    )
    _in_little_memory(yours, small, large)


def _inputs(rng, t, s):
    """Query, key and value of one head, D = 3, Dv = 2."""
    return [rng.standard_normal(shape) for shape in [(t, 3), (s, 3), (s, 2)]]


def _window(t):
    """Each query sees the three keys before its own position; from the 600th on nothing."""
    at = np.arange(t)
    return at - 3, np.where(at < 600, at - 1, -1)


def _visible(first, last, s):
    """(T, S), True where query i sees key j."""
    keys = np.arange(s)
    return (first[:, None] <= keys) & (keys <= last[:, None])


def _attended(query, key, value, scale, first, last):
    """out and lse, all pairs at once."""
    scores = np.where(_visible(first, last, len(key)), scale * query @ key.T, -np.inf)
    m = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(m == -np.inf, 0, m))
    l = e.sum(axis=-1, keepdims=True)
    total = np.where(l == 0, 1, l)
    return e / total @ value, (m + np.log(total))[:, 0]


def _same_out(found, inputs, scale, first, last, when, advice):
    _same_parts(found, _attended(*inputs, scale, first, last), ("out", "lse"), when, advice)


def _same_gradients(yours, *arguments, advice=""):
    _same_parts(yours(*arguments), tiled_backward(*arguments), _GRADIENTS, advice=advice)


def _tiles(f, *arguments):
    """What f returns, and what it passed through tap, in order, by name."""
    found = {}

    def tap(name, x):
        found.setdefault(name, []).append(np.array(x))
        return x

    return f(*arguments, tap=tap), found


def _only_seen(found, first, last, s, block, name="scores"):
    """Raise unless these are the tiles in which somebody sees something, and no others."""
    if not found:
        raise AssertionError(f'tap is not called: {name} = tap("{name}", …) in each tile')
    large = next((x.shape for x in found if max(x.shape, default=0) > block or x.ndim != 2), None)
    if large is not None:
        raise AssertionError(f"{name} of shape {large} in tap, where block is {block}")
    visible = _visible(first, last, s)
    corners = np.ndindex(-(-len(first) // block), -(-s // block))
    tiles = [visible[block * i :, block * j :][:block, :block].any() for i, j in corners]
    if len(found) != sum(tiles):
        raise AssertionError(
            f'tap("{name}", …) was called for {len(found)} tiles. There are {len(tiles)} of them, '
            f"and in\n{sum(tiles)} somebody sees something: compute these, skip the others"
        )


def _in_little_memory(yours, small, large):
    """What it returns for the small arguments. Raises if it makes an array of all pairs.

    The memory of a submission is not seen from here, but it has a limit, which the large ones meet.
    """
    t, block = len(small[0]), 32
    tracemalloc.start()
    try:
        found = yours(*small, block)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if most > t * t:
        raise AssertionError(
            f"{most / 1e6:.1f} MB at once, for T = S = {t} and tiles of {block} × {block}, which "
            f"need {8 * block**2 / 1e3:.0f} kB each.\nIs there an array of all pairs (T, S), of "
            "scores or of who sees whom?"
        )
    yours(*large, 512)  # half a gigabyte of pairs
    return found
