"""Tasks of chapter 11: attention that never stores all scores at once."""

import tracemalloc

import numpy as np

from ...attention import scaled_dot_product_attention
from ..comparisons import named, product, same
from ..task import task


@task(chapter=11, difficulty=2, minutes=10, hints=(
    "The sums so far are relative to the old maximum. Which factor turns each term e^(x − old) "
    "into e^(x − new)?",
    "new is the larger of m and the largest score of the block. Multiply l and acc by e^(m − new). "
    "Then add the block's e^(scores − new): to l their sum, to acc their product with value. Where "
    "new is still −∞, subtract 0 instead, because −∞ − (−∞) is NaN.",
    "new = np.maximum(m, scores.max(axis=-1)); safe = np.where(new == -np.inf, 0, new); factor = "
    "np.exp(m - safe); e = np.exp(scores - safe[:, None]); then new, l * factor + e.sum(axis=-1), "
    "and acc * factor[:, None] + e @ value.",
))  # fmt: skip
def online_softmax(m, l, acc, scores, value):
    """Update the softmax sums of each row with one more block of keys.

    m       (T,), the largest score so far; −∞ if no key was visible
    l       (T,), the sum of e^(score − m) over the scores so far; 0 if no key was visible
    acc     (T, Dv), the sum of e^(score − m) times the value of the key; 0 if no key was visible
    scores  (T, N), the scores of the next N keys; −∞ where a key is hidden
    value   (N, Dv), the values of these keys
    Returns the updated m, l, acc. Rows without a visible key so far stay −∞, 0, 0. Scores as large
    as 1000 must not overflow. After the last block, acc / l is the output.
    """
    # BEGIN SOLUTION: return m, l, acc
    new = np.maximum(m, scores.max(axis=-1))
    safe = np.where(new == -np.inf, 0, new)
    factor = np.exp(m - safe)
    e = np.exp(scores - safe[:, None])
    return new, l * factor + e.sum(axis=-1), acc * factor[:, None] + e @ value
    # END SOLUTION


@online_softmax.check
def two_tokens_worked_by_hand(yours, rng):
    state = np.array([0.0]), np.array([1.0]), np.array([[4.0]])
    state = yours(*state, np.array([[np.log(3)]]), np.array([[8.0]]))
    advice = "value 4 had the weight e^(0 − 0) = 1; relative to the new maximum ln 3 it has ⅓"
    expected = [np.log(3)], [4 / 3], [[28 / 3]]
    _same_parts(state, expected, _STATE, " after value 4, then value 8", advice)


@online_softmax.check(weight=2)
def blocks_give_the_same_as_all_keys_at_once(yours, rng):
    scores, value = rng.standard_normal((4, 9)), rng.standard_normal((9, 3))
    scores[:, 5:] += [[3.0], [-3.0], [0.0], [0.0]]  # the maximum grows late, or never
    _feed(yours, scores, value, [2, 3, 4], "each row is relative to its own new maximum")


@online_softmax.check
def hidden_keys_add_nothing(yours, rng):
    scores, value = rng.standard_normal((3, 6)), rng.standard_normal((6, 2))
    scores[0] = -np.inf  # sees nothing
    scores[1, :2] = scores[1, 4:] = -np.inf  # nothing in the first block, nor in the last
    with np.errstate(all="ignore"):
        advice = "e^(−∞) is 0, but −∞ − (−∞) is NaN: subtract 0 where the new maximum is −∞"
        _feed(yours, scores, value, [2, 2, 2], advice)


@online_softmax.check(hidden=True)
def large_scores_do_not_overflow(yours, rng):
    scores = np.array([[-1000.0, 1000.0, 999.0], [1000.0, -1000.0, -1000.0]])
    advice = "subtract the new maximum from m and from the scores before exp"
    with np.errstate(all="ignore"):
        _feed(yours, scores, rng.standard_normal((3, 2)), [1, 1, 1], advice)


def _feed(yours, scores, value, sizes, advice):
    """Pass in blocks of these sizes, and compare the state after each."""
    t, dv = len(scores), value.shape[-1]
    state = expected = np.full(t, -np.inf), np.zeros(t), np.zeros((t, dv))
    for k, end in enumerate(np.cumsum(sizes)):
        block = slice(end - sizes[k], end)
        state = yours(*state, scores[:, block].copy(), value[block].copy())
        expected = online_softmax(*expected, scores[:, block], value[block])
        _same_parts(state, expected, _STATE, f" after block {k + 1}", advice)


def _same_parts(yours, expected, names, when="", advice=""):
    """Compare the arrays of a tuple, one after the other."""
    for (name, part), right in zip(named(yours, names).items(), expected, strict=True):
        same(part, right, f"{name}{when}", _AXES.get(name), tolerance=1e-11, advice=advice)


_STATE, _GRADIENTS = ("m", "l", "acc"), ("dquery", "dkey", "dvalue")
_AXES = {
    **dict.fromkeys(["m", "l", "lse"], "query"),
    **dict.fromkeys(["acc", "out", "dquery"], "query width"),
    **dict.fromkeys(["dkey", "dvalue"], "key width"),
}


@task(chapter=11, difficulty=3, minutes=20, given=(online_softmax.solution,), hints=(
    "Write two loops, over the first query of a tile and over its first key. m, l and acc start "
    "anew for each tile of queries, and each tile of keys updates them.",
    "keys = np.arange(j, min(j + block, S)) are the positions of a tile's keys, and (first[rows, "
    "None] <= keys) & (keys <= last[rows, None]) is the mask of the tile; continue if no entry is "
    "True. Hide scores with np.where(…, scores, -np.inf), then call online_softmax.",
    "After the inner loop: total = np.where(l > 0, l, 1); out[rows] = acc / total[:, None]; "
    "lse[rows] = m + np.log(total). Before it: m = np.full(n, -np.inf), l = np.zeros(n), "
    "acc = np.zeros((n, Dv)), with n = len(query[rows]).",
))  # fmt: skip
def tiled_forward(query, key, value, scale, first, last, block, *, tap=lambda name, x: x):
    """Attention of one head, tile by tile: no array holds all T · S pairs, and no Python loop runs
    over the pairs of a tile.

    query  (T, D)
    key    (S, D)
    value  (S, Dv)
    scale  a number
    first  (T,), integers: query i sees the keys j with first[i] ≤ j ≤ last[i]
    last   (T,), integers; causal attention has first 0 and last[i] = i + offset
    block  the largest number of queries and of keys in a tile; T and S need not be multiples of it
    tap    call it with the scaled scores of each tile, scores = tap("scores", scores), except for
           tiles without a visible pair
    Returns out (T, Dv), softmax(scale · Q Kᵀ) V over the visible keys, and lse (T,), the logarithm
    of each row's sum of e^score. A query that sees nothing has out 0 and lse −∞.
    """
    # BEGIN SOLUTION: return out, lse
    out, lse = np.zeros((len(query), value.shape[1])), np.zeros(len(query))
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
    advice = {  # 1 first: no tile is smaller than the others
        1: "start each query with −∞, 0, 0; after its last key return acc / l and m + ln l",
        8: "tiles of 1 × 1 are right, but not one tile that is smaller than block",
        3: "one tile is right: do you keep m, l and acc for the next? The last tile may be smaller",
    }
    for block, tip in advice.items():
        when = f" in tiles of {block} × {block}, for T = 5 and S = 7,"
        found = yours(*inputs, 0.3, *everything, block)
        _same_out(found, inputs, 0.3, *everything, when, tip)


@tiled_forward.check(weight=2)
def each_query_sees_its_own_keys(yours, rng):
    inputs, at = _inputs(rng, 5, 7), np.arange(5)
    places = "j is the position among all keys, and a hidden score becomes −∞"
    rules = {
        " where first[i] = i − 1 and last[i] = i + 1": (at - 1, at + 1, places),
        " where last[i] = i + 2": (0 * at, at + 2, places),
        " where first = (0, 9, 2, 4, 1), last = (0, 9, 1, 8, 6)": (
            np.array([0, 9, 2, 4, 1]), np.array([0, 9, 1, 8, 6]),
            "queries 1 and 2 see nothing, so l = 0: do not divide by it; lse is −∞",
        ),
    }  # fmt: skip
    with np.errstate(all="ignore"):
        for when, (first, last, advice) in rules.items():
            found = yours(*inputs, 0.7, first, last, 3)
            _same_out(found, inputs, 0.7, first, last, when, advice)


@tiled_forward.check
def tiles_without_a_visible_pair_are_skipped(yours, rng):
    inputs, (first, last) = _inputs(rng, 11, 10), _window(11)
    _, found = _tiles(yours, *inputs, 0.7, first, last, 3)
    _only_seen(found.get("scores", []), first, last, 10, 3)


@tiled_forward.check(hidden=True)
def no_array_holds_all_pairs(yours, rng):
    inputs = _inputs(rng, 1024, 1024), _inputs(rng, 8192, 8192)
    found = _in_little_memory(yours, *((*x, 0.7, *_window(len(x[0]))) for x in inputs))
    _same_out(found, inputs[0], 0.7, *_window(1024), "", "")


@task(chapter=11, difficulty=3, minutes=20, hints=(
    "The two loops are the same as in the forward. In a tile, compute the weights first: how do "
    "they follow from lse?",
    "weights = e^(scores − lse), 0 where a key is hidden; this includes the division by the row's "
    "sum. The sum that the pullback of softmax subtracts in each row is delta = Σ dout · out over "
    "Dv, which needs no tile: compute it before the loops. A query is in many tiles of keys, and a "
    "key in many tiles of queries, so all three gradients are sums: use +=.",
    "weights = np.exp(np.where(visible, scores - lse[rows, None], -np.inf)); dscores = weights "
    "* (dout[rows] @ value[keys].T - delta[rows, None]); then dquery[rows] += scale * dscores "
    "@ key[keys], dkey[keys] += scale * dscores.T @ query[rows], dvalue[keys] += weights.T @ "
    "dout[rows].",
))  # fmt: skip
def tiled_backward(
    query, key, value, out, lse, dout, scale, first, last, block, *, tap=lambda name, x: x
):
    """The gradients of attention of one head, tile by tile, from the results of the forward.

    query, key, value, scale, first, last, block
           as in tiled_forward
    out    (T, Dv), and lse (T,), as tiled_forward returns them: 0 and −∞ for a query that sees
           nothing
    dout   (T, Dv), the gradient of out
    tap    call it with the weights and with dscores, the gradient of the scaled scores, of each
           tile: weights = tap("weights", weights); not for tiles without a visible pair
    Returns dquery (T, D), dkey (S, D) and dvalue (S, Dv). No array holds all T · S pairs.
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
def one_tile(yours, rng):
    inputs, dout = _inputs(rng, 4, 5), rng.standard_normal((4, 2))
    settings = 0.6, np.zeros(4, int), np.full(4, 4), 8  # larger than T and S
    arguments = *inputs, *_attended(*inputs, *settings[:3]), dout, *settings
    found, tapped = _tiles(yours, *arguments)
    right, steps = _tiles(tiled_backward, *arguments)
    advice = {
        "weights": "weights are e^(scores − lse), without a division",
        "dscores": "dscores = weights · (dweights − delta), with delta = Σ dout · out of each row",
    }
    for name, tip in advice.items():
        if name in tapped:
            same(tapped[name][0], steps[name][0], name, "query key", advice=tip)
    arrays = dict(zip(("query", "key", "value", "out"), arguments, strict=False), dout=dout)
    arrays |= {name: x for name, (x,) in steps.items()} | {"dweights": dout @ inputs[2].T}
    for (name, part), expected in zip(named(found, _GRADIENTS).items(), right, strict=True):
        guess = product(name, part, expected, arrays)
        same(part, expected, name, _AXES[name], tolerance=1e-11, guess=guess)
    _same_for_many_keys(yours, rng, np.zeros(8, int), np.full(8, 7999), 8000)


@tiled_backward.check(weight=2)
def the_gradients_of_attention(yours, rng):
    (query, key, value), dout = _inputs(rng, 4, 5), rng.standard_normal((4, 2))
    first, last = np.array([0, 0, 1, 0]), np.array([2, 3, 4, 0])
    mask = _visible(first, last, 5)
    attend = scaled_dot_product_attention.with_pullback
    _, pullback = attend(query, key, value, mask, scale=0.6)
    expected = dict(zip(_GRADIENTS, pullback(dout), strict=False))
    forward = _attended(query, key, value, 0.6, first, last)
    found = named(yours(query, key, value, *forward, dout, 0.6, first, last, 2), _GRADIENTS)
    advice = {
        "dvalue": "weights are e^(scores − lse), 0 where hidden, without a division; dvalue is a "
        "sum over all tiles of queries",
        "dquery": "delta belongs to the whole row; dquery is a sum over all tiles of keys, and the "
        "scores are scaled",
        "dkey": "dkey is a sum over all tiles of queries, and the scores are scaled",
    }
    for name, tip in advice.items():
        same(found[name], expected[name], name, _AXES[name], tolerance=1e-11, advice=tip)
    _same_for_many_keys(yours, rng, np.arange(8), 1000 * np.arange(8), 500)


@tiled_backward.check
def queries_and_keys_without_a_visible_pair_get_zero(yours, rng):
    inputs, first, last = _inputs(rng, 5, 7), np.array([1, 3, 9, 2, 1]), np.array([2, 1, 9, 4, 1])
    with np.errstate(all="ignore"):
        forward = _attended(*inputs, 0.6, first, last)
        dout = rng.standard_normal(forward[0].shape)
        advice = "hide before exp: where lse is −∞, scores − lse is ∞, and ∞ · 0 is NaN"
        _same_gradients(yours, *inputs, *forward, dout, 0.6, first, last, 3, advice=advice)
        _same_for_many_keys(yours, rng, np.arange(8)[::-1], 2000 * np.arange(8), 500)


@tiled_backward.check(hidden=True)
def no_needless_tile_and_no_array_of_all_pairs(yours, rng):
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
    """Each query sees the three keys before its position; queries from 600 on see none."""
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


def _same_for_many_keys(yours, rng, first, last, block):
    """Compare gradients with so many entries that numeric ones take minutes."""
    inputs, dout = _inputs(rng, 8, 8000), rng.standard_normal((8, 2))
    forward = _attended(*inputs, 0.6, first, last)
    _same_gradients(yours, *inputs, *forward, dout, 0.6, first, last, block)


def _tiles(f, *arguments):
    """The result of f, and the arrays that it passes through tap, by name."""
    found = {}

    def tap(name, x):
        found.setdefault(name, []).append(np.array(x))
        return x

    return f(*arguments, tap=tap), found


def _only_seen(found, first, last, s, block, name="scores"):
    """Raise unless these are exactly the tiles with a visible pair."""
    if not found:
        raise AssertionError(f'tap is not called: {name} = tap("{name}", …) in each tile')
    large = next((x.shape for x in found if max(x.shape, default=0) > block or x.ndim != 2), None)
    if large is not None:
        raise AssertionError(
            f"tap gets {name} of shape {large}, but a tile is at most {block} × {block}:\n"
            "compute one tile at a time, never all pairs at once"
        )
    visible = _visible(first, last, s)
    corners = np.ndindex(-(-len(first) // block), -(-s // block))
    tiles = [visible[block * i :, block * j :][:block, :block].any() for i, j in corners]
    if len(found) != sum(tiles):
        raise AssertionError(
            f'tap("{name}", …) was called for {len(found)} tiles. Of all {len(tiles)} tiles, '
            f"{sum(tiles)} have a\nvisible pair: compute these, and skip the others"
        )


def _in_little_memory(yours, small, large):
    """The result for the small arguments. Raises if an array of all pairs is made.

    The memory of a submission cannot be measured here, but it is limited: the large arguments
    exceed the limit.
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
            f"need {8 * block**2 / 1e3:.0f} kB each.\nIs there an array of all pairs (T, S), such "
            "as the scores or the mask?"
        )
    yours(*large, 128)  # all pairs would need half a gigabyte
    return found
