"""Tasks of chapter 08: positions as a table, as rotations and as a bias, and after a cache."""

import numpy as np

from ..checks.comparisons import named, same, same_operation, value_of
from ..checks.task import task


@task(chapter=8, difficulty=1, minutes=10, hints=(
    "The angle of pair i at position t is t · θᵢ. Make all angles first, as an array (T, M/2), "
    "with a column of positions and a row of θᵢ.",
    "np.arange(0, width, 2) holds 2i for every pair i. The sines are the columns 0, 2, 4, … of the "
    "table and the cosines the columns 1, 3, 5, …: write them with table[:, 0::2] = … and "
    "table[:, 1::2] = ….",
    "theta = base ** (-np.arange(0, width, 2) / width), angles = np.arange(count)[:, None] * "
    "theta; then fill np.empty((count, width)) with np.sin(angles) and np.cos(angles).",
))  # fmt: skip
def sinusoidal(count, width, base=10000.0):
    """The table of sinusoidal positions.

    count  T, the number of positions: t = 0, …, T − 1
    width  M, which is even; pair i = 0, …, M/2 − 1 is columns 2i and 2i + 1
    Returns an array (T, M): columns 2i and 2i + 1 of row t are sin(t θᵢ) and cos(t θᵢ), where
    θᵢ = base^(−2i/M).
    """
    # BEGIN SOLUTION: return the table
    t = np.arange(count)[:, None]
    theta = base ** (-np.arange(0, width, 2) / width)  # (M/2,)
    table = np.empty((count, width))
    table[:, 0::2] = np.sin(t * theta)
    table[:, 1::2] = np.cos(t * theta)
    return table
    # END SOLUTION


@sinusoidal.check
def one_pair_is_the_sine_and_cosine_of_the_position(yours, rng):
    count = int(rng.integers(4, 9))
    same(yours(count, 2), sinusoidal(count, 2), f"sinusoidal({count}, 2)", "position column")


@sinusoidal.check
def each_pair_has_its_own_frequency(yours, rng):
    count, width = int(rng.integers(5, 9)), 2 * int(rng.integers(5, 9))
    name = f"sinusoidal({count}, {width})"
    same(yours(count, width), sinusoidal(count, width), name, "position column")


@sinusoidal.check(hidden=True)
def the_base_may_change(yours, rng):
    base = float(rng.integers(2, 100))
    name = f"sinusoidal(5, 8, base={base})"
    same(yours(5, 8, base=base), sinusoidal(5, 8, base=base), name, "position column")


@task(chapter=8, difficulty=2, minutes=20, hints=(
    "Take the first and the second entries of all pairs, a = x[..., 0::2] and b = x[..., 1::2]. "
    "What is the transpose of a rotation?",
    "The rotated pair is (a cos − b sin, b cos + a sin). Put the two results back into columns "
    "0, 2, … and 1, 3, …. The pullback is the same function with −angles, applied to dy.",
    "np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape) is the value. In "
    "the pullback, a and b come from dy, and −sin replaces sin.",
))  # fmt: skip
def rotate_pairs(x, angles):
    """Rotate pairs of neighbouring columns, and return the pullback.

    x       (…, T, D), where D is even; pair i is columns 2i and 2i + 1
    angles  (T, D/2): the angle of each pair at each position, in radians
    Returns y (…, T, D), in which each pair (a, b) has become (a cos − b sin, b cos + a sin), and a
    function that takes dy (…, T, D) and returns a tuple with one gradient, (dx,).
    """
    # BEGIN SOLUTION: return y, pullback
    cos, sin = np.cos(angles), np.sin(angles)

    def rotated(x, sin):
        a, b = x[..., 0::2], x[..., 1::2]
        y = np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)  # (…, T, D/2, 2)
        return y.reshape(x.shape)

    def pullback(dy):
        return (rotated(dy, -sin),)

    return rotated(x, sin), pullback
    # END SOLUTION


@rotate_pairs.check
def one_pair_is_rotated_by_its_angle(yours, rng):
    x, angles = rng.standard_normal((3, 2)), rng.uniform(0.3, 1.2, (3, 1))
    expected, _ = rotate_pairs(x, angles)
    same(value_of(yours(x, angles), "rotate_pairs"), expected, "y", "position column")


@rotate_pairs.check
def each_pair_has_its_own_angle(yours, rng):
    for lead in ((), (2, 3)):
        x, angles = rng.standard_normal((*lead, 5, 6)), rng.uniform(-3, 3, (5, 3))
        expected, _ = rotate_pairs(x, angles)
        y = value_of(yours(x, angles), "rotate_pairs")
        axes = "batch head position column" if lead else "position column"
        same(y, expected, f"y, for x of shape {x.shape},", axes)


@rotate_pairs.check(weight=2)
def the_gradient_is_rotated_back(yours, rng):
    def with_list(f):
        def rotate_pairs(x, angles):
            return f(x, np.array(angles))  # of an array, gradcheck would expect the gradient

        return rotate_pairs

    small, large = (
        (rng.standard_normal((n, t, 2 * pairs)), rng.uniform(-3, 3, (t, pairs)).tolist())
        for n, t, pairs in [(2, 5, 3), (5, 150, 50)]
    )
    axes = ["head position column", None]
    same_operation(with_list(yours), with_list(rotate_pairs), *small, large=large, axes=axes)


@task(chapter=8, difficulty=2, minutes=10, hints=(
    "This is a permutation of the columns within each head. Write down, for D = 6, which old "
    "column goes to each new place.",
    "Split the columns into heads, (M, H, D). In each head the new order of the old columns is "
    "0, 2, 4, …, then 1, 3, 5, ….",
    "heads = w.reshape(len(w), num_heads, -1), then np.concatenate([heads[..., 0::2], "
    "heads[..., 1::2]], axis=-1), and reshape back.",
))  # fmt: skip
def to_halves(w, num_heads):
    """Reorder W^Q or W^K, made for rotation by neighbours, for rotation by halves.

    w          (M, H·D): head h is the columns h·D to (h + 1)·D − 1, and D is even
    num_heads  H
    Returns an array (M, H·D). In each head, pair i was columns 2i and 2i + 1, and is now columns
    i and i + D/2.
    """
    # BEGIN SOLUTION: return the array
    width = w.shape[-1] // num_heads
    heads = w.reshape(-1, num_heads, width)
    order = np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2)])
    return heads[..., order].reshape(w.shape)
    # END SOLUTION


@to_halves.check
def the_columns_of_one_head(yours, rng):
    w = rng.standard_normal((3, 6))
    expected = to_halves(w, 1)
    same(yours(w, 1), expected, "the result for one head", "row column")


@to_halves.check
def each_head_keeps_its_own_columns(yours, rng):
    for num_heads, width in ((3, 8), (4, 6), (5, 2)):
        w = rng.standard_normal((7, num_heads * width))
        expected = to_halves(w, num_heads)
        name = f"the result for H = {num_heads} and D = {width}"
        same(yours(w, num_heads), expected, name, "row column")


@task(chapter=8, difficulty=1, minutes=10, hints=(
    "The bias of a head is a constant times the distance between two positions. At which position "
    "is the first query, if the last query is at the position of the last key?",
    "The queries are at the positions S − T, …, S − 1. A column of query positions minus a row of "
    "key positions is (T, S); slopes[:, None, None] is (H, 1, 1).",
    "-slopes[:, None, None] * abs(np.arange(s - t, s)[:, None] - np.arange(s))",
))  # fmt: skip
def alibi_bias(slopes, t, s):
    """The bias of ALiBi, to be added to the scores before softmax.

    slopes  (H,): the slope of each head
    t, s    the numbers of query and of key positions, t ≤ s: the queries are the last t of the s
            positions, as with a cache of s − t keys
    Returns an array (H, T, S): minus the slope of the head, times the distance between the
    positions of query and key. Later keys count as well: a causal mask is separate.
    """
    # BEGIN SOLUTION: return the bias
    i = np.arange(s - t, s)[:, None]
    j = np.arange(s)[None, :]
    return -slopes[:, None, None] * abs(i - j)
    # END SOLUTION


@alibi_bias.check
def the_bias_falls_with_the_distance(yours, rng):
    n, slopes = int(rng.integers(4, 7)), rng.uniform(0.1, 1, 1)
    expected = alibi_bias(slopes, n, n)
    same(yours(slopes, n, n), expected, "the bias of one head", "head query key")


@alibi_bias.check
def each_head_has_its_own_slope(yours, rng):
    slopes = rng.permutation([0.5, 0.25, 0.125])
    expected = alibi_bias(slopes, 4, 4)
    same(yours(slopes, 4, 4), expected, "the bias", "head query key")


@alibi_bias.check(hidden=True)
def the_queries_are_the_last_positions(yours, rng):
    slopes = rng.uniform(0.1, 1, 3)
    for t, s in ((2, 6), (1, 5)):
        expected = alibi_bias(slopes, t, s)
        name = f"the bias for t = {t} and s = {s}"
        same(yours(slopes, t, s), expected, name, "head query key")


def rotate(x, positions):
    """Rotary positions, by halves: row i of x (…, T, D) is rotated for position positions[i]."""
    half = x.shape[-1] // 2
    turn = np.exp(1j * positions[:, None] * 10000.0 ** (-np.arange(half) / half))  # (T, D/2)
    pairs = (x[..., :half] + 1j * x[..., half:]) * turn
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def masked_attention(query, key, value, mask):
    """Attention; mask (T, S) is True where a query may attend. Returns (…, T, Dv)."""
    products = np.where(mask, query @ key.mT / np.sqrt(query.shape[-1]), -np.inf)
    e = np.exp(products - products.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) @ value


@task(chapter=8, difficulty=2, minutes=15, given=(rotate, masked_attention), hints=(
    "If N keys are in the cache, at which position is the first new token, and which keys may it "
    "see?",
    "The new tokens are at the positions N, …, N + T − 1: rotate their queries and keys by these, "
    "and append keys and values to the cache along axis -2. A query sees the keys whose positions "
    "are not larger than its own.",
    "positions = np.arange(n, n + t) for n, t = cached_key.shape[-2], query.shape[-2], and the "
    "mask is np.arange(n + t) <= positions[:, None].",
))  # fmt: skip
def attend_with_cache(query, key, value, cached_key, cached_value):
    """Causal attention of new tokens, with rotary positions and a cache.

    query, key    (H, T, D): of the T new tokens, not yet rotated; rotate rotates them
    value         (H, T, Dv)
    cached_key    (H, N, D): the keys of the N earlier tokens, already rotated; N may be 0
    cached_value  (H, N, Dv)
    Returns out (H, T, Dv) for the new tokens, then cached_key (H, N + T, D) and cached_value
    (H, N + T, Dv) for the next call. A text that comes in pieces, one call for each, must get the
    same out as in a single call.
    """
    # BEGIN SOLUTION: return out and the new cache; call rotate and masked_attention
    n, t = cached_key.shape[-2], query.shape[-2]
    positions = np.arange(n, n + t)
    query, key = rotate(query, positions), rotate(key, positions)
    keys = np.concatenate([cached_key, key], axis=-2)
    values = np.concatenate([cached_value, value], axis=-2)
    mask = np.arange(n + t) <= positions[:, None]
    return masked_attention(query, keys, values, mask), keys, values
    # END SOLUTION


def _tokens(rng, count):
    """The query, the key and the value of random tokens, for H = 2, D = 6 and Dv = 4."""
    return [rng.standard_normal((2, count, width)) for width in (6, 6, 4)]


def _part(arrays, first, end):
    return [x[:, first:end] for x in arrays]


def _same_parts(returned, expected, when):
    """Compare out, the keys and the values with those of the solution."""
    for (name, part), right in zip(_named(returned).items(), expected, strict=True):
        same(part, right, f"{name} {when}", "head position column")


def _named(returned):
    names = ["out", "the new cached_key", "the new cached_value"]
    if isinstance(returned, np.ndarray):
        raise AssertionError(f"it should return {', '.join(names)}, not one array")
    return named(returned, names)


@attend_with_cache.check
def a_text_starts_with_an_empty_cache(yours, rng):
    text = _tokens(rng, 5)
    empty = _part(text[1:], 0, 0)
    expected = attend_with_cache(*text, *empty)
    _same_parts(yours(*text, *empty), expected, "with an empty cache")


@attend_with_cache.check
def a_new_token_comes_after_those_in_the_cache(yours, rng):
    text = _tokens(rng, 8)
    _, *cache = attend_with_cache(*_part(text, 0, 7), *_part(text[1:], 0, 0))
    expected = attend_with_cache(*_part(text, 7, 8), *cache)
    _same_parts(yours(*_part(text, 7, 8), *cache), expected, "for one token after 7 others")


@attend_with_cache.check(weight=2)
def the_pieces_of_a_text_make_up_the_whole(yours, rng):
    text = _tokens(rng, 12)
    whole, *_ = attend_with_cache(*text, *_part(text[1:], 0, 0))
    cache = _part(text[1:], 0, 0)
    for first, end in ((0, 5), (5, 8), (8, 9), (9, 12)):
        out, *cache = _named(yours(*_part(text, first, end), *cache)).values()
        when = f"for {end - first} tokens after {first} others"
        same(out, whole[:, first:end], f"out {when}", "head position column")
