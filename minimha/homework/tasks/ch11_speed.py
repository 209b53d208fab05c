"""Tasks of chapter 11: attention that never stores all scores at once."""

import tracemalloc

import numpy as np

from ...attention import attention
from ..comparisons import same
from ..inferred import product
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


@online_softmax.check
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
    _are(names, yours)
    for name, part, right in zip(names, yours, expected, strict=True):
        same(part, right, f"{name}{when}", _AXES.get(name), tolerance=1e-11, advice=advice)


def _are(names, yours):
    """Raise unless one array is returned for each name."""
    several = isinstance(yours, tuple | list)
    if not several or len(yours) != len(names):
        count = f"{len(yours)} values" if several else type(yours).__name__
        raise AssertionError(f"it should return {', '.join(names)}, not {count}")


_EXP = "e = np.exp(scores - safe[:, None])"
_UPDATE = "return new, l * factor + e.sum(axis=-1), acc * factor[:, None] + e @ value"
for _new in (
    "return new, l + e.sum(axis=-1), acc + e @ value",
    "return new, l * factor + e.sum(axis=-1), acc + e @ value",
    "return new, l + e.sum(axis=-1), acc * factor[:, None] + e @ value",
):
    online_softmax.mistake(
        _UPDATE,
        _new,
        "the old sums are not rescaled: l and acc are relative to the old maximum m, so multiply "
        "both by e^(m − new)",
    )
online_softmax.mistake(
    "np.exp(m - safe)",
    "np.exp(safe - m)",
    "the factor is e^(new − m); to turn e^(x − m) into e^(x − new), multiply by e^(m − new)",
)
online_softmax.mistake(
    "np.maximum(m, scores.max(axis=-1))",
    "scores.max(axis=-1)",
    "the new maximum is that of the block alone: take the larger of m and the largest score of the "
    "block",
)
online_softmax.mistake(
    _EXP,
    "e = np.exp(scores - m[:, None])",
    "the block is relative to the old maximum m: subtract the new one from its scores",
)
online_softmax.mistake(
    _EXP,
    "e = np.exp(scores - scores.max(axis=-1, keepdims=True))",
    "the block is relative to its own largest score: subtract the new maximum of the row",
)
online_softmax.mistake(
    "safe[:, None])",
    "safe.max())",
    "the maximum of all rows is subtracted: each row has its own, safe[:, None]",
)
online_softmax.mistake(
    "return new,",
    "return m,",
    "the old maximum m is returned; l and acc are relative to the new one",
)
online_softmax.mistake(
    "acc * factor[:, None] + e @ value",
    "(acc * factor[:, None] + e @ value) / (l * factor + e.sum(axis=-1))[:, None]",
    "acc is divided by l in each block: keep the plain sum, and divide once after the last block",
)
online_softmax.mistake(
    "np.where(new == -np.inf, 0, new)",
    "new",
    "where no key was visible yet, m − new is −∞ − (−∞), which is NaN: subtract 0 there",
)
online_softmax.mistake(
    f"""factor = np.exp(m - safe)
    {_EXP}
    {_UPDATE}""",
    """e = np.exp(scores)
    return new, l + e.sum(axis=-1), acc + e @ value""",
    "no maximum is subtracted before exp, so large scores overflow: subtract the new one",
)


_ALONG = (
    "the maximum or the sum runs along the queries; each row has its own, along the keys: axis=-1"
)
for _new, _text in (
    ("return new, e.sum(axis=-1), e @ value",
     "the old sums are forgotten: l and acc are sums over all blocks so far"),
    ("return new, l * factor + e.sum(axis=-1), e @ value",
     "the old acc is forgotten: l and acc are sums over all blocks so far"),
    ("return new, (l + e.sum(axis=-1)) * factor, (acc + e @ value) * factor[:, None]",
     "the new block is multiplied by e^(m − new) as well; it is relative to new already"),
    ("return new, l * factor + e.sum(axis=-1), acc * (l * factor)[:, None] + e @ value",
     "acc is multiplied by l; it is a plain sum, so e^(m − new) is its only factor"),
    ("return new, l * factor + e.mean(axis=-1), acc * factor[:, None] + e @ value",
     "l gets the mean of e; it is the sum"),
    ("return new, l * factor + e.sum(), acc * factor[:, None] + e @ value",
     "l gets the sum over all rows; each row has its own, axis=-1"),
    ("return new, l * factor + e.sum(axis=0), acc * factor[:, None] + e @ value",
     _ALONG),
    ("return new, l * factor + 1, acc * factor[:, None] + e / e.sum(-1)[:, None] @ value",
     "e is normalised in each block: keep plain sums, and divide once after the last block"),
    ("return new, l * factor + e.sum(axis=-1), acc * factor[:, None] + scores @ value",
     "acc gets scores @ value; it is the sum of e^(score − new) times the value, e @ value"),
    ("return new, l * factor + e.sum(axis=-1), acc * factor[:, None] + value.sum(axis=0)",
     "acc gets the plain sum of the values; each is weighted by e^(score − new), e @ value"),
    ("return new, l * factor + e.sum(axis=-1), acc * factor[:, None] + e.T @ value",
     "e is transposed: it is (T, N) and value (N, Dv), so e @ value"),
    ("return new, l * factor + e.sum(axis=-1), acc * factor + e @ value",
     "factor is (T,) and acc is (T, Dv): make it a column, factor[:, None]"),
    ("return safe, l * factor + e.sum(axis=-1), acc * factor[:, None] + e @ value",
     "m of a row that saw nothing is 0; it stays −∞, so return the maximum itself"),
    ("return l * factor + e.sum(axis=-1), new, acc * factor[:, None] + e @ value",
     "the results are in the wrong order: m, l, acc"),
    ("return new, np.log(l * factor + e.sum(axis=-1)), acc * factor[:, None] + e @ value",
     "the logarithm of l is returned; l is the sum itself"),
):  # fmt: skip
    online_softmax.mistake(_UPDATE, _new, _text)
for _new, _text in (
    ("m", "the maximum is not updated: it is the larger of m and the largest score of the block"),
    ("np.maximum(m, scores.max())",
     "the maximum is taken over all rows; each has its own, axis=-1"),
    ("np.maximum(m, scores.max(axis=0))",
     _ALONG),
    ("np.maximum(m.max(), scores.max(axis=-1))",
     "the maximum is taken over all rows; each has its own, m"),
    ("m + scores.max(axis=-1)",
     "the maxima are added: new is the larger of the two, np.maximum"),
):  # fmt: skip
    online_softmax.mistake("np.maximum(m, scores.max(axis=-1))", _new, _text)
for _new in ("np.exp(m - scores.max(axis=-1))", "np.exp(-safe)"):
    online_softmax.mistake(
        "np.exp(m - safe)",
        _new,
        "the factor of the old sums is e^(m − new): it turns e^(x − m) into e^(x − new)",
    )


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


@tiled_forward.check
def no_array_holds_all_pairs(yours, rng):
    inputs = _inputs(rng, 1024, 1024), _inputs(rng, 8192, 8192)
    found = _in_little_memory(yours, *((*x, 0.7, *_window(len(x[0]))) for x in inputs))
    _same_out(found, inputs[0], 0.7, *_window(1024), "", "")


_TILE = "scores = np.where(visible, scores, -np.inf)"
_RETURNED = "out[rows], lse[rows] = acc / total[:, None], m + np.log(total)"
tiled_forward.mistake(
    "acc / total[:, None]",
    "acc",
    "out is not divided by l: after the last tile of keys, out = acc / l",
)
for _new, _what in (
    ("m", "ln l is missing"),
    ("np.log(total)", "m is missing"),
    ("total", "this is l"),
    ("m + total", "l is added in place of ln l"),
):
    tiled_forward.mistake(
        "m + np.log(total)",
        _new,
        f"{_what}: lse = m + ln l, the logarithm of Σ e^score, because l is Σ e^(score − m)",
    )
tiled_forward.mistake(
    "scale * query[rows] @ key[keys].T",
    "query[rows] @ key[keys].T",
    "the factor scale is missing: scores = scale · Q Kᵀ",
)
tiled_forward.mistake(
    "scale * query[rows] @ key[keys].T",
    "query[rows] @ key[keys].T / query.shape[-1] ** 0.5",
    "the scores are divided by √D; here scale is an argument: multiply by it",
)
tiled_forward.mistake(
    "        m, l, acc = np.full(n, -np.inf), np.zeros(n), np.zeros((n, value.shape[1]))\n"
    "        for j in range(0, len(key), block):\n",
    "        for j in range(0, len(key), block):\n"
    "            m, l, acc = np.full(n, -np.inf), np.zeros(n), np.zeros((n, value.shape[1]))\n",
    "m, l and acc start anew for each tile of keys: start them once for each tile of queries, "
    "before the inner loop",
)
tiled_forward.mistake(
    _TILE, "pass", "nothing is hidden: put −∞ into the scores where first[i] ≤ j ≤ last[i] is False"
)
tiled_forward.mistake(
    _TILE,
    _TILE.replace("-np.inf", "0.0"),
    "hidden scores become 0, and e⁰ = 1 is a weight like any other: put −∞ there",
)
for _old, _name in (
    ("(first[rows, None] <= keys) & ", "first"),
    (" & (keys <= last[rows, None])", "last"),
):
    tiled_forward.mistake(
        _old, "", f"{_name} is ignored: query i sees only the keys with first[i] ≤ j ≤ last[i]"
    )
for _new, _text in (
    ("scores = np.where(visible, -np.inf, scores)",
     "the visible scores are hidden and the others kept: put −∞ where visible is False"),
    ("scores = np.where(visible, scores, -1e9)",
     "a large negative number is not −∞: a query that sees nothing gets an output"),
    ("scores = np.where(visible, scores, -1e30)",
     "a large negative number is not −∞: a query that sees nothing gets an output"),
):  # fmt: skip
    tiled_forward.mistake(_TILE, _new, _text)
for _new, _what in (
    ("query[rows] @ key[keys].T / scale", "divided by scale; multiply by it"),
    ("scale**2 * query[rows] @ key[keys].T", "multiplied by scale twice; once is enough"),
    ("scale * query[rows] @ key[keys].T / query.shape[-1] ** 0.5",
     "divided by √D as well; scale is the only factor"),
):  # fmt: skip
    tiled_forward.mistake(
        "scale * query[rows] @ key[keys].T", _new, f"the scores are {_what}: scale · Q Kᵀ"
    )
for _new, _text in (
    ("(first[rows, None] <= keys) | (keys <= last[rows, None])",
     "one condition is enough here (or); both must hold: first[i] ≤ j and j ≤ last[i]"),
    ("(first[:n, None] <= keys) & (keys <= last[:n, None])",
     "first and last are those of the first queries: take those of the tile, first[rows]"),
    ("keys <= np.arange(i, i + n)[:, None]",
     "this is causal: which keys a query sees is given by first and last"),
):  # fmt: skip
    tiled_forward.mistake("(first[rows, None] <= keys) & (keys <= last[rows, None])", _new, _text)
for _new, _text in (
    (
        "if not visible.all()",
        "tiles are skipped unless all pairs are visible: skip only those without any",
    ),
):
    tiled_forward.mistake("if not visible.any()", _new, _text)
tiled_forward.mistake(
    "continue",
    "break",
    "break leaves the loop at the first tile without a visible pair; later tiles may have one, so "
    "continue",
)
for _new in ("value[keys - j]", "value[: len(keys)]", "value[rows]", "value[keys[::-1]]"):
    tiled_forward.mistake(
        "value[keys]", _new, "these are not the values of this tile's keys: value[keys]"
    )
for _old in ("range(0, len(key), block)", "range(0, len(query), block)"):
    for _new in ("range(0, {} // block * block, block)", "range(0, {} - block + 1, block)"):
        tiled_forward.mistake(
            _old,
            _new.format(_old[9:-8]),
            "the last tile is left out if it is smaller than block: range(0, n, block) includes it",
        )
tiled_forward.mistake(
    "for j in range(0, len(key), block)",
    "for j in range(0, len(query), block)",
    "the loop over keys runs to T; there are S keys",
)
for _new, _text in (
    ("m * np.log(total)", "m · ln l"),
    ("m - np.log(total)", "m − ln l"),
    ("m + np.log2(total)", "m + log₂ l"),
    ("m + np.log10(total)", "m + log₁₀ l"),
    ("np.exp(m) * total", "Σ e^score, without the logarithm"),
    ("m / total", "m / l"),
):
    tiled_forward.mistake(
        "m + np.log(total)", _new, f"this is {_text}: lse = m + ln l, because l is Σ e^(score − m)"
    )
for _new in ("np.where(l > 0, m + np.log(total), 0)", "np.log(total) + np.where(l > 0, m, 0)"):
    tiled_forward.mistake(
        "m + np.log(total)", _new, "lse of a query that sees nothing is −∞, the logarithm of 0"
    )
for _new, _text in (
    ("_, l, acc", "m is not updated: l and acc are relative to the new m"),
    ("m, _, acc", "l is not updated: it is a sum over all tiles of keys"),
    ("m, l, _", "acc is not updated: it is a sum over all tiles of keys"),
):
    tiled_forward.mistake("            m, l, acc = online", f"            {_new} = online", _text)
tiled_forward.mistake(
    "acc / total[:, None]",
    "acc / total",
    "l is (n,) and acc is (n, Dv): make it a column, l[:, None]",
)
tiled_forward.mistake("return out, lse", "return lse, out", "the order is out, lse")
tiled_forward.mistake("return out, lse", "return out", "lse is missing: return out, lse")
tiled_forward.mistake(
    "keys <= last[rows, None]",
    "keys < last[rows, None]",
    "the key at last[i] is hidden: query i sees first[i] ≤ j ≤ last[i], with both ends",
)
tiled_forward.mistake(
    "(first[rows, None] <= keys)",
    "(first[rows, None] < keys)",
    "the key at first[i] is hidden: query i sees first[i] ≤ j ≤ last[i], with both ends",
)
tiled_forward.mistake(
    "(first[rows, None] <= keys) & (keys <= last[rows, None])",
    "(first[rows, None] <= keys - j) & (keys - j <= last[rows, None])",
    "the keys are counted from the start of the tile: first and last are positions among all keys, "
    "so add j",
)
tiled_forward.mistake(
    "np.where(l > 0, l, 1)",
    "l",
    "a query that sees nothing has l = 0, and 0 / 0 is NaN: divide by 1 there",
)


@task(chapter=11, difficulty=3, minutes=20, hints=(
    "The two loops are the same as in the forward. In a tile, compute the weights first: how do "
    "they follow from lse?",
    "weights = e^(scores − lse), 0 where a key is hidden; this includes the division by the row's "
    "sum. The sum that softmax subtracts in each row is delta = Σ dout · out over Dv, which needs "
    "no tile: compute it before the loops. A query is in many tiles of keys, and a key in many "
    "tiles of queries, so all three gradients are sums: use +=.",
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
    _are(_GRADIENTS, found)
    for name, part, expected in zip(_GRADIENTS, found, right, strict=True):
        guess = product(name, part, expected, arrays)
        same(part, expected, name, _AXES[name], tolerance=1e-11, guess=guess)


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
        "dvalue": "weights are e^(scores − lse), 0 where hidden, without a division; dvalue is a "
        "sum over all tiles of queries",
        "dquery": "delta belongs to the whole row; dquery is a sum over all tiles of keys, and the "
        "scores are scaled",
        "dkey": "dkey is a sum over all tiles of queries, and the scores are scaled",
    }
    _are(_GRADIENTS, found)
    for name, tip in advice.items():
        part = found[_GRADIENTS.index(name)]
        same(part, expected[name], name, _AXES[name], tolerance=1e-11, advice=tip)


@tiled_backward.check
def queries_and_keys_without_a_visible_pair_get_zero(yours, rng):
    inputs, first, last = _inputs(rng, 5, 7), np.array([1, 3, 9, 2, 1]), np.array([2, 1, 9, 4, 1])
    with np.errstate(all="ignore"):
        forward = _attended(*inputs, 0.6, first, last)
        dout = rng.standard_normal(forward[0].shape)
        advice = "hide before exp: where lse is −∞, scores − lse is ∞, and ∞ · 0 is NaN"
        _same_gradients(yours, *inputs, *forward, dout, 0.6, first, last, 3, advice=advice)


@tiled_backward.check
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


_DSCORES = "weights * (dweights - delta[rows, None])"
tiled_backward.mistake(
    _DSCORES,
    "weights * dweights",
    "delta is missing: dscores = weights · (dweights − delta), with delta = Σ dout · out for each "
    "row",
)
tiled_backward.mistake(
    _DSCORES,
    "dweights - delta[rows, None]",
    "the factor weights is missing: dscores = weights · (dweights − delta)",
)
tiled_backward.mistake(
    _DSCORES,
    "weights * (dweights - (weights * dweights).sum(axis=-1, keepdims=True))",
    "the sum Σ weights · dweights runs over the keys of one tile; it belongs to the whole row, "
    "where it equals delta = Σ dout · out",
)
tiled_backward.mistake(
    "(dout * out).sum(axis=-1)",
    "(dout * out).mean(axis=-1)",
    "delta is a mean over the columns; it is the sum Σ dout · out in each row",
)
_ROW = "delta or lse is a row here, so it applies to keys: make it a column, as in lse[rows, None]"
for _old in ("delta[rows, None]", "lse[rows, None]"):
    tiled_backward.mistake(_old, _old.replace(", None", ""), _ROW)
_PRODUCTS = (
    "a product has the wrong arrays or a wrong transpose: dweights = dout Vᵀ, dvalue = weightsᵀ "
    "dout, dquery = scale · dscores K, dkey = scale · dscoresᵀ Q"
)
for _new, _text in (
    ("weights * (dweights + delta[rows, None])", "delta is added; it is subtracted"),
    ("weights * (delta[rows, None] - dweights)", "the sign is flipped"),
    ("weights * (dweights - weights * delta[rows, None])",
     "delta is multiplied by the weights twice"),
    ("weights * dweights - delta[rows, None]", "the factor weights of delta is missing"),
    ("weights * (1 - weights) * dweights", "this is only the diagonal of the Jacobian"),
    ("weights * (dweights - dweights.mean(axis=-1, keepdims=True))",
     "the plain mean of dweights is subtracted instead of delta"),
    ("weights * (dweights - dweights.sum(axis=-1, keepdims=True))",
     "the plain sum of dweights is subtracted instead of delta"),
    ("weights * (dweights - delta[: len(weights), None])",
     "delta is that of the first queries, not of this tile, delta[rows]"),
    ("weights * (dweights - lse[rows, None])", "lse is subtracted instead of delta"),
    ("weights * (dweights - np.resize(delta, dweights.shape[1]))",
     _ROW),
    ("scale * weights * (dweights - delta[rows, None])",
     "dscores contains the scale already; it is the gradient of the scaled scores, so the scale "
     "comes after it, once, in dquery and dkey"),
):  # fmt: skip
    tiled_backward.mistake(_DSCORES, _new, f"{_text}: dscores = weights · (dweights − delta)")
tiled_backward.mistake(
    """weights * (dweights - delta[rows, None]))
            dquery[rows] += scale * dscores @ key[keys]
            dkey[keys] += scale * dscores.T""",
    """scale * weights * (dweights - delta[rows, None]))
            dquery[rows] += dscores @ key[keys]
            dkey[keys] += dscores.T""",
    "dscores contains the scale already; it is the gradient of the scaled scores, so the scale "
    "comes after it, in dquery and dkey",
)
for _new in (
    "(dout * dout).sum(axis=-1)", "(out * out).sum(axis=-1)", "dout.sum(axis=-1)",
    "out.sum(axis=-1)", "(dout * query[:, : dout.shape[1]]).sum(axis=-1)", "(dout + out).sum(-1)",
    "np.full(len(out), (dout * out).sum())", "np.resize((dout * out).sum(axis=0), len(out))",
):  # fmt: skip
    tiled_backward.mistake(
        "(dout * out).sum(axis=-1)", _new, "delta is the sum Σ dout · out of each row, over Dv"
    )
for _new, _text in (
    ("scores / lse[rows, None]", "the scores are divided by lse"),
    ("lse[rows, None] - scores", "the sign is flipped"),
    ("scores + lse[rows, None]", "lse is added"),
    ("scores - np.exp(lse[rows, None])", "lse is a logarithm already"),
    ("scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))",
     "softmax is computed anew in each tile; its sum belongs to the whole row, and lse holds it"),
    ("np.log(np.exp(scores) / lse[rows, None])", "e^scores is divided by lse, the logarithm"),
):  # fmt: skip
    tiled_backward.mistake("scores - lse[rows, None]", _new, f"{_text}: weights = e^(scores − lse)")
tiled_backward.mistake(
    "np.where(visible, scores - lse[rows, None], -np.inf)",
    "np.where(visible, scores - lse[rows, None], 0.0)",
    "hidden entries become 0 before exp, and e⁰ = 1 is a weight: put −∞ there",
)
for _new, _text in (
    ("(first[rows, None] <= keys) & (keys < last[rows, None])", "the key at last[i] is hidden"),
    ("(first[rows, None] < keys) & (keys <= last[rows, None])", "the key at first[i] is hidden"),
    ("keys <= last[rows, None]", "first is ignored"),
    ("first[rows, None] <= keys", "last is ignored"),
    ("(first[rows, None] <= keys - j) & (keys - j <= last[rows, None])",
     "the keys are counted from the start of the tile; j is the position among all keys"),
    ("(first[rows, None] <= keys) | (keys <= last[rows, None])", "one condition is enough (or)"),
):  # fmt: skip
    tiled_backward.mistake(
        "(first[rows, None] <= keys) & (keys <= last[rows, None])",
        _new,
        f"{_text}: query i sees first[i] ≤ j ≤ last[i], with both ends",
    )
_LOOPS = """    for i in range(0, len(query), block):
        rows = slice(i, i + block)
        for j in range(0, len(key), block):
            keys = np.arange(j, min(j + block, len(key)))
"""
_EXCHANGED = """    for j in range(0, len(key), block):
        keys = np.arange(j, min(j + block, len(key)))
        for i in range(0, len(query), block):
            rows = slice(i, i + block)
"""
_SKIPPED = """            visible = (first[rows, None] <= keys) & (keys <= last[rows, None])
            if not visible.any():
                continue
"""
for _order in (_LOOPS, _EXCHANGED):
    tiled_backward.mistake(
        _LOOPS + _SKIPPED,
        _order + _SKIPPED.replace("continue", "break"),
        "break leaves the loop at the first tile without a visible pair; later tiles may have one, "
        "so continue",
    )
for _old in ("range(0, len(key), block)", "range(0, len(query), block)"):
    for _new in ("range(0, {} // block * block, block)", "range(0, {} - block + 1, block)"):
        tiled_backward.mistake(
            _old,
            _new.format(_old[9:-8]),
            "the last tile is left out if it is smaller than block: range(0, n, block) includes it",
        )
tiled_backward.mistake(
    "if not visible.any()",
    "if not visible.all()",
    "tiles are skipped unless all pairs are visible: skip only those without any",
)
for _new in ("dout[rows] @ value[keys]", "dout[rows].T @ value[keys]", "out[rows] @ value[keys].T",
             "dout[rows] @ key[keys].T", "query[rows] @ value[keys].T"):  # fmt: skip
    tiled_backward.mistake("dout[rows] @ value[keys].T", _new, _PRODUCTS)
for _old, _news in (
    ("dscores @ key[keys]", ("dscores.T @ key[keys]", "dscores @ query[rows]")),
    ("dscores.T @ query[rows]", ("dscores @ query[rows]", "dscores.T @ key[keys]")),
    ("weights.T @ dout[rows]", ("weights @ dout[rows]",)),
):
    for _new in _news:
        tiled_backward.mistake(
            _old,
            _new,
            _PRODUCTS,
        )
tiled_backward.mistake(
    "weights.T @ dout[rows]",
    "scale * weights.T @ dout[rows]",
    "dvalue has the factor scale; out = weights V has none",
)
for _name in ("dquery[rows]", "dkey[keys]", "dvalue[keys]"):
    tiled_backward.mistake(
        f"{_name} +=", f"{_name} -=", f"{_name[:-6]} has the wrong sign: add up with +="
    )
for _order in ("dkey, dquery, dvalue", "dvalue, dkey, dquery", "dquery, dvalue, dkey"):
    tiled_backward.mistake(
        "return dquery, dkey, dvalue",
        f"return {_order}",
        "the gradients are in the wrong order: dquery, dkey, dvalue",
    )
tiled_backward.mistake(
    "scores - lse[rows, None]",
    "scores",
    "the weights are not normalised: they are e^(scores − lse)",
)
tiled_backward.mistake(
    "scores = scale * query[rows] @ key[keys].T",
    "scores = query[rows] @ key[keys].T",
    "the factor scale is missing in the scores: scale · Q Kᵀ, as in the forward",
)
_ADDED = """dquery[rows] += scale * dscores @ key[keys]
            dkey[keys] += scale * dscores.T @ query[rows]
            dvalue[keys] += weights.T @ dout[rows]"""
_BOTH = _ADDED[_ADDED.index("dkey") :]
for _old in ("dquery[rows] +=", "dkey[keys] +=", "dvalue[keys] +=", _BOTH, _ADDED):
    tiled_backward.mistake(
        _old,
        _old.replace("+=", "="),
        "a gradient is overwritten in each tile (=): a query is in many tiles of keys and a key in "
        "many tiles of queries, so add them up (+=)",
    )
for _old in ("scale * dscores @", "scale * dscores.T @", _ADDED):
    tiled_backward.mistake(
        _old,
        _old.replace("scale * ", ""),
        "the factor scale is missing: the scores are scale · Q Kᵀ, so dquery = scale · dscores K "
        "and dkey = scale · dscoresᵀ Q",
    )
tiled_backward.mistake(
    "weights.T @ dout[rows]",
    "dscores.T @ dout[rows]",
    "dvalue is computed from the weights: dvalue = weightsᵀ dout",
)
tiled_backward.mistake(
    "np.exp(np.where(visible, scores - lse[rows, None], -np.inf))",
    "np.exp(scores - lse[rows, None])",
    "hidden keys get a weight: put −∞ where first[i] ≤ j ≤ last[i] is False, before exp",
)
tiled_backward.mistake(
    "np.exp(np.where(visible, scores - lse[rows, None], -np.inf))",
    "np.exp(scores - lse[rows, None]) * visible",
    "hidden weights are removed after exp: where lse is −∞, that is ∞ · 0 = NaN. Put −∞ there "
    "before exp",
)


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
