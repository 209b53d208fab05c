"""Tasks of chapter 11: attention that never stores all scores at once."""

import tracemalloc

import numpy as np

from ...attention import scaled_dot_product_attention
from ..checks.comparisons import named, same
from ..checks.task import task


@task(chapter=11, difficulty=2, minutes=15, hints=(
    "The sums so far are relative to the old maximum. Which factor turns each term e^(x − old) "
    "into e^(x − new)?",
    "new is the larger of peak and the largest score of the block, and shrink is e^(peak − new). "
    "Multiply total and acc by shrink. Then add the block's e^(scores − new): to total their sum, "
    "to acc their product with value. Where new is still −∞, subtract 0 instead, because −∞ − (−∞) "
    "is NaN.",
    "new = np.maximum(peak, scores.max(axis=-1)); safe = np.where(new == -np.inf, 0, new); shrink "
    "= np.exp(peak - safe); e = np.exp(scores - safe[:, None]); then new, total * shrink + "
    "e.sum(axis=-1), and acc * shrink[:, None] + e @ value.",
))  # fmt: skip
def online_softmax(peak, total, acc, scores, value):
    """Update the softmax sums of each row with one more block of keys.

    peak    (T,), the largest score so far; −∞ if no key was visible
    total   (T,), the sum of e^(score − peak) over the scores so far; 0 if no key was visible
    acc     (T, Dv), the sum of e^(score − peak) times the value of the key; 0 if no key was visible
    scores  (T, N), the scores of the next N keys; −∞ where a key is hidden
    value   (N, Dv), the values of these keys
    Returns the updated peak, total, acc. Rows without a visible key so far stay −∞, 0, 0. Scores as
    large as 1000 must not overflow. After the last block, acc / total is the output.
    """
    # BEGIN SOLUTION: return peak, total, acc
    new = np.maximum(peak, scores.max(axis=-1))
    safe = np.where(new == -np.inf, 0, new)
    shrink = np.exp(peak - safe)
    e = np.exp(scores - safe[:, None])
    return new, total * shrink + e.sum(axis=-1), acc * shrink[:, None] + e @ value
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
    advice = "subtract the new maximum from peak and from the scores before exp"
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


def _same_parts(yours, expected, names, when="", advice="", guess=""):
    """Compare the arrays of a tuple, one after the other."""
    for (name, part), right in zip(named(yours, names).items(), expected, strict=True):
        what, axes = f"{name}{when}", _AXES.get(name)
        same(part, right, what, axes, tolerance=1e-11, guess=guess, advice=advice)


_STATE, _GRADIENTS = ("peak", "total", "acc"), ("dquery", "dkey", "dvalue")
_AXES = {
    **dict.fromkeys(["peak", "total", "lse"], "query"),
    **dict.fromkeys(["acc", "out", "dquery"], "query width"),
    **dict.fromkeys(["dkey", "dvalue"], "key width"),
}


@task(chapter=11, difficulty=2, minutes=15, hints=(
    "An m × k matrix times a k × n matrix takes m · n sums of k products. Which sizes are m, n and "
    "k in Q Kᵀ, and which in weights · V? Everything happens once for each head.",
    "Each of the five backward products has a T, an S and one width: D in three of them. Without "
    "tiles, count how often all H · T · S scores are read or written: once in Q Kᵀ, twice in scale "
    "and so on. Then add Q, K, V and the output. In tiles there are T / block blocks of queries, "
    "and keys and values are read once for each.",
    "scores = H * T * S; flops = 2 * scores * (D + Dv); flops_backward = 2 * scores * (3 * D + 2 * "
    "Dv); moved = 4 * (12 * scores + H * (T + S) * (D + Dv)); moved_in_tiles = 4 * H * (T + T // "
    "block * S) * (D + Dv); kept = 4 * scores; kept_in_tiles = 4 * H * T",
))  # fmt: skip
def attention_costs(H, T, S, D, Dv, block):
    """Predict what attention costs, with all scores in memory and in tiles.

    H, T, S, D, Dv  integers: Q is (H, T, D), K (H, S, D), V (H, S, Dv). All numbers are float32, 4
                    bytes each, and no key is hidden
    block           the number of queries in a tile; T is a multiple of it
    Returns six numbers:
    flops           of the two matrix products in the forward pass; a multiplication and an addition
                    are two flops
    flops_backward  of the five matrix products in a backward pass in tiles: Q Kᵀ again, weightsᵀ
                    dout, dout Vᵀ, dscores K, dscoresᵀ Q
    moved           bytes that the forward pass moves if all scores are in memory. Each of its eight
                    steps reads its arrays from memory and writes its result there: Q Kᵀ, scale,
                    maximum, subtract, exp, sum, divide, weights · V. Leave out arrays with one
                    number per row, such as the maxima
    moved_in_tiles  bytes that the forward pass moves in tiles, which never leave the cache. Each
                    block of queries is read once, and for each block all keys and values are read
                    once. Each entry of the output is written once
    kept            bytes that the forward pass keeps for the backward pass, besides Q, K, V and the
                    output, if it keeps the weights
    kept_in_tiles   the same, if it keeps lse instead, one number per row
    """
    # BEGIN SOLUTION: return the six numbers, in this order
    scores = H * T * S
    flops = 2 * scores * (D + Dv)
    flops_backward = 2 * scores * (3 * D + 2 * Dv)
    moved = 4 * (12 * scores + H * (T + S) * (D + Dv))
    moved_in_tiles = 4 * H * (T + T // block * S) * (D + Dv)
    return flops, flops_backward, moved, moved_in_tiles, 4 * scores, 4 * H * T
    # END SOLUTION


_COSTS = "flops", "flops_backward", "moved", "moved_in_tiles", "kept", "kept_in_tiles"
_SLIPS = {
    "flops": {
        "H * T * S * (D + Dv)": "these are the multiplications; add the additions",
        "4 * H * T * S * D": "these are two products of width D; values have the width Dv",
        "2 * H * T * S * D": "this is Q Kᵀ alone; weights · V is the second product",
    },
    "flops_backward": {
        "H * T * S * (3 * D + 2 * Dv)": "these are the multiplications; add the additions",
        "4 * H * T * S * (D + Dv)": "this is twice the forward pass: it lacks the scores, which a "
        "backward pass in tiles computes again",
        "5 * H * T * S * (D + Dv)": "this is 2.5 times the forward pass, which is right if D = Dv",
        "6 * H * T * S * (D + Dv)": "this is three times the forward pass: count the five products",
        "2 * H * T * S * (4 * D + 3 * Dv)": "this includes the forward pass",
        "2 * H * T * S * (2 * D + 3 * Dv)": "three products have the width D, and two have Dv",
    },
    "moved": {
        "48 * H * T * S": "these are the scores alone; Q, K, V and the output move too",
        "4 * (12 * H * T * S + H * (T * D + S * (D + Dv)))": "the output is missing",
    },
    "moved_in_tiles": {
        "4 * H * (T + S) * (D + Dv)": "keys and values are read only once here; each block of "
        "queries reads them once",
        "4 * H * (T + T * S) * (D + Dv)": "keys and values are read once for each query here, not "
        "for each block of queries",
        "4 * H * T // block * S * (D + Dv)": "queries and output are missing",
        "4 * H * (T * D + T // block * S * (D + Dv))": "the output is missing",
        "4 * H * (T + -(-S // block) * S) * (D + Dv)": "these are S / block blocks; there are T / "
        "block blocks of queries",
    },
    "kept": {"8 * H * T * S": "this is twice the weights, which are enough"},
    "kept_in_tiles": {
        "8 * H * T": "this is two numbers per row, such as peak and total; lse is enough",
        "4 * H * T * S": "these are all weights; tiles compute them again from lse",
        "4 * (H * T + block * block)": "this includes a tile, which is not kept",
    },
}
"""Usual mistakes in each number, so that a message names one even if several numbers are wrong."""


def _same_cost(yours, rng, name):
    h, s, d, dv, block, blocks = map(int, rng.integers(2, 99, size=6))
    for sizes in ((3, 33, 13, 7, 5, 11), (h, block * blocks, s, d, dv, block)):
        letters = dict(zip(("H", "T", "S", "D", "Dv", "block"), sizes, strict=True))
        when = ", ".join(f"{letter} = {size}" for letter, size in letters.items())
        found, right = (named(f(*sizes), _COSTS)[name] for f in (yours, attention_costs))
        guess = _slip(name, found, right, letters) if isinstance(found, int | float) else ""
        same(found, right, f"{name} for {when}", guess=guess)


def _slip(name, yours, right, letters):
    """What a wrong number is, if that is known."""
    for formula, text in _SLIPS[name].items():
        if yours == eval(formula, dict(letters)):
            return text
    h, scores = letters["H"], letters["H"] * letters["T"] * letters["S"]
    if name not in ("flops", "flops_backward") and yours in (right / 4, 2 * right):
        return f"this has {4 * yours // right} bytes for each number; float32 has 4"
    if h * yours == right:
        return "this is one head; there are H"
    times, rest = divmod(yours - right, 4 * scores)
    if name != "moved" or rest:
        return ""
    return f"all scores are read or written {times + 12:.0f} times here: go through the eight steps"


attention_costs.case("flops of the forward pass", _same_cost, ("flops",))
attention_costs.case("flops of the backward pass in tiles", _same_cost, ("flops_backward",))
attention_costs.case("bytes moved with all scores in memory", _same_cost, ("moved",))
attention_costs.case("bytes moved in tiles", _same_cost, ("moved_in_tiles",))
attention_costs.case("bytes kept for the backward pass", _same_cost, ("kept",), ("kept_in_tiles",))


@task(chapter=11, difficulty=3, minutes=30, given=(online_softmax.solution,), hints=(
    "Write two loops, over the first query of a tile and over its first key. peak, total and acc "
    "start anew for each block of queries, and each block of keys updates them.",
    "keys = np.arange(j, min(j + block, S)) are the positions of a tile's keys, and (first[rows, "
    "None] <= keys) & (keys <= last[rows, None]) is the mask of the tile; continue if no entry is "
    "True. Hide scores with np.where(…, scores, -np.inf), then call online_softmax.",
    "Before the inner loop: peak = np.full(n, -np.inf), total = np.zeros(n), acc = np.zeros((n, "
    "Dv)), with n = len(query[rows]). After it: total = np.where(total > 0, total, 1); out[rows] = "
    "acc / total[:, None]; lse[rows] = peak + np.log(total).",
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
        peak, total, acc = np.full(n, -np.inf), np.zeros(n), np.zeros((n, value.shape[1]))
        for j in range(0, len(key), block):
            keys = np.arange(j, min(j + block, len(key)))
            visible = (first[rows, None] <= keys) & (keys <= last[rows, None])
            if not visible.any():
                continue
            scores = tap("scores", scale * query[rows] @ key[keys].T)
            scores = np.where(visible, scores, -np.inf)
            peak, total, acc = online_softmax(peak, total, acc, scores, value[keys])
        total = np.where(total > 0, total, 1)
        out[rows], lse[rows] = acc / total[:, None], peak + np.log(total)
    return out, lse
    # END SOLUTION


@tiled_forward.check
def tiles_of_any_size(yours, rng):
    inputs, everything = _inputs(rng, 5, 7), (np.zeros(5, int), np.full(5, 6))
    advice = {  # 1 first: no tile is smaller than the others
        1: "start each query with −∞, 0, 0; after its last key, acc / total and peak + ln total",
        8: "tiles of 1 × 1 are right, but not one tile that is smaller than block",
        3: "one tile is right: are peak, total and acc kept for the next? The last may be smaller",
    }
    for block, tip in advice.items():
        when = f" in tiles of {block} × {block}, for T = 5 and S = 7,"
        found = yours(*inputs, 0.3, *everything, block)
        value, out = inputs[2], named(found, ("out", "lse"))["out"]
        alone = [value.mean(axis=0), value.sum(axis=0), value[-1]] if block == 1 else []
        guess = "each tile has a softmax of its own: keep peak, total and acc from tile to tile"
        is_alone = any(np.shape(out) == (5, 2) and np.allclose(out, row) for row in alone)
        _same_out(found, inputs, 0.3, *everything, when, tip, guess if is_alone else "")


@tiled_forward.check(weight=2)
def each_query_sees_its_own_keys(yours, rng):
    inputs, at = _inputs(rng, 5, 7), np.arange(5)
    places = "j is the position among all keys, and a hidden score becomes −∞"
    nothing = "queries 1 and 2 see nothing, so total is 0: do not divide by it; lse is −∞"
    others = "queries of one tile see different keys: skip it only if none sees any"
    rules = {
        " where first[i] = i − 1 and last[i] = i + 1": (at - 1, at + 1, places),
        " where last[i] = i + 2": (0 * at, at + 2, places),
        " where first = (0, 9, 2, 4, 1), last = (0, 9, 1, 8, 6)": (
            np.array([0, 9, 2, 4, 1]), np.array([0, 9, 1, 8, 6]), nothing,
        ),
    }  # fmt: skip
    with np.errstate(all="ignore"):
        for when, (first, last, tip) in rules.items():
            found = yours(*inputs, 0.7, first, last, 3)
            out = named(found, ("out", "lse"))["out"]
            is_zero = np.shape(out) == (5, 2) and not np.any(out[1:3])
            advice = others if tip == nothing and is_zero else tip
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


@task(chapter=11, difficulty=3, minutes=30, hints=(
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
    for (name, part), expected in zip(named(found, _GRADIENTS).items(), right, strict=True):
        same(part, expected, name, _AXES[name], tolerance=1e-11)
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
    peak = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(peak == -np.inf, 0, peak))
    total = e.sum(axis=-1, keepdims=True)
    total = np.where(total == 0, 1, total)
    return e / total @ value, (peak + np.log(total))[:, 0]


def _same_out(found, inputs, scale, first, last, when, advice, guess=""):
    expected = _attended(*inputs, scale, first, last)
    _same_parts(found, expected, ("out", "lse"), when, advice, guess)


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
