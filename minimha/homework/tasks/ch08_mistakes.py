"""Common mistakes in the tasks of chapter 08, as edits of their solutions."""

from ..checks.mistakes import patches
from .ch08_positions import alibi_bias, attend_with_cache, rotate_pairs, sinusoidal, to_halves

sinusoidal.mistakes += patches(r"""
- table[:, 0::2] = np.sin(t * theta)
-     table[:, 1::2] = np.cos(t * theta)
+ table[:, 0::2] = np.cos(t * theta)
+     table[:, 1::2] = np.sin(t * theta)
sine and cosine are swapped: columns 2i hold the sines, columns 2i + 1 the cosines
+ table[:, : width // 2] = np.sin(t * theta)
+     table[:, width // 2 :] = np.cos(t * theta)
sines fill one half of the columns and cosines the other half. Here a pair is two neighbours:
sines go to table[:, 0::2], cosines to table[:, 1::2]
+ every = base ** (-np.arange(width) / width)
+     table[:, 0::2] = np.sin(t * every[0::2])
+     table[:, 1::2] = np.cos(t * every[1::2])
sine and cosine of a pair have different frequencies: both columns of pair i have θᵢ, with the
exponent −2i/M
+ every = base ** (-2 * np.arange(width) / width)
+     table[:, 0::2] = np.sin(t * every[0::2])
+     table[:, 1::2] = np.cos(t * every[1::2])
i counts columns here, but must count pairs: both columns of pair i have the exponent −2i/M, for i =
0, …, M/2 − 1
- np.cos(t
+ np.sin(t
both columns of a pair hold the same function: column 2i is the sine of the angle, column 2i + 1
its cosine
- t = np.arange(count)[:, None]
+ t = np.arange(1, count + 1)[:, None]
positions are counted from 1: the first position is t = 0, and its row is 0, 1, 0, 1, …
+ t = np.arange(count)[:, None] * np.pi / 180
the angles are converted from degrees: t · θᵢ is already in radians
+ t = np.arange(count)[:, None] * 2 * np.pi
the angles are multiplied by 2π: t · θᵢ is already in radians
- base ** (-np.arange(0, width, 2) / width)
+ base ** (-np.arange(width // 2) / width)
the exponent is −i/M, where i is the number of the pair; the factor 2 of −2i/M is missing
+ base ** (-2 * np.arange(0, width, 2) / width)
the exponent is −4i/M, twice too large: np.arange(0, width, 2) is already 2i
+ base ** (np.arange(0, width, 2) / width)
the sign of the exponent is missing: θᵢ = base^(−2i/M) falls from 1 towards 1/base
+ 10000.0 ** (-np.arange(0, width, 2) / width)
base is not used: θᵢ = base^(−2i/M)
+ np.exp(-np.arange(0, width, 2) / width)
θᵢ is a power of e here, but must be a power of base: with np.exp, multiply the exponent by
np.log(base)
+ base ** (-np.arange(0, width, 2) / max(width - 2, 1))
- base ** (-np.arange(0, width, 2) / width)
+ base ** (-np.arange(width // 2) / (width // 2 - 1))
- base ** (-np.arange(0, width, 2) / width)
+ base ** np.array([-i / (width // 2 - 1) for i in range(width // 2)])
i is divided by M/2 − 1, which is 0 for one pair and makes the last of several θ 1/base: the
exponent −2i/M divides i by M/2
+ base ** -(2.0 * np.arange(width // 2) // width)
- base ** (-np.arange(0, width, 2) / width)
+ base ** (-2.0 * np.arange(width // 2) // width)
// drops the fraction of 2i/M: divide with /
+ base ** (-np.arange(2, width + 2, 2) / width)
the exponents do not start at 0: i is 0 for the first pair, and θ₀ = 1
""")

rotate_pairs.mistakes += patches(r"""
- np.cos(angles), np.sin(angles)
+ np.cos(angles), -np.sin(angles)
the rotation has the wrong direction: the first entry is a cos − b sin, the second b cos + a sin
+ np.sin(angles), np.cos(angles)
sine and cosine are swapped: an angle of 0 must leave the pair unchanged, and cos 0 = 1
+ np.cos(np.deg2rad(angles)), np.sin(np.deg2rad(angles))
the angles are converted from degrees: they are in radians already
+ np.cos(angles[:, :1]), np.sin(angles[:, :1])
every pair is rotated by the angle of the first; pair i has the angle angles[:, i]
+ np.cos(angles[:1]), np.sin(angles[:1])
every position is rotated by the angles of the first; position t has angles[t]
+ (f(angles * np.arange(len(angles))[:, None]) for f in (np.cos, np.sin))
the angles are multiplied by the position: angles[t] is already the whole angle at position t
- np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
+ np.stack([a * cos + b * sin, b * cos + a * sin], axis=-1)
both sines have the same sign, so this is no rotation: the pair becomes (a cos − b sin, b cos + a
sin)
+ np.stack([a * cos - b * sin, a * cos + b * sin], axis=-1)
the second entry of the pair is wrong: it is b cos + a sin
+ np.stack([a * cos - b * sin, b * cos + (a * cos - b * sin) * sin], axis=-1)
the second entry uses the first one after its change: compute both from the old a and b
+ np.stack([a * cos, b * cos], axis=-1)
the terms with the sine are missing: the pair becomes (a cos − b sin, b cos + a sin)
+ np.stack([a + 0 * cos, b + 0 * cos], axis=-1)
the pairs are not rotated: (a, b) becomes (a cos − b sin, b cos + a sin)
+ np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
the rotated pairs are returned as halves: write them back to columns 2i and 2i + 1, for example
with np.stack(…, axis=-1) and a reshape
- a, b = x[..., 0::2], x[..., 1::2]
-         y = np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
+ a, b = np.split(x, 2, axis=-1)
+         y = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
pair i is columns i and i + D/2, the halves; here it is the neighbours 2i and 2i + 1, x[..., 0::2]
and x[..., 1::2]
+ first, second = np.split(x, 2, axis=-1)
+         y = x * np.repeat(cos, 2, axis=-1)
+         y = y + np.concatenate([-second, first], axis=-1) * np.repeat(sin, 2, axis=-1)
the angles are repeated for pairs of neighbours, but the columns are exchanged between the halves:
the partner of column 2i is column 2i + 1
+ neighbours = np.stack([-x[..., 1::2], x[..., 0::2]], axis=-1).reshape(x.shape)
+         y = x * np.tile(cos, 2) + neighbours * np.tile(sin, 2)
np.tile repeats the whole row of angles, but the two columns of a pair have the same angle: use
np.repeat
- a, b = x[..., 0::2], x[..., 1::2]
+ a, b = np.split(x, 2, axis=-1)
the pairs are read as halves: pair i is the columns 2i and 2i + 1, x[..., 0::2] and x[..., 1::2]
- return (rotated(dy, -sin),)
+ return (dy,)
dy is returned unchanged: rotate it by −angles
+ return (dy * np.repeat(cos, 2, axis=-1),)
the terms with the sine are missing in the pullback: a enters both entries of its pair, and so does
b
+ a, b = dy[..., 0::2], dy[..., 1::2]
+         return (np.stack([-a * sin - b * cos, a * cos - b * sin], axis=-1).reshape(x.shape),)
this is the derivative with respect to the angle: the gradient of x is dy, rotated by −angles
+ return (rotated(rotated(dy, -sin), -sin),)
the gradient is rotated back twice: dx is dy rotated once, by −angles
+ a, b = dy[..., 0::2], dy[..., 1::2]
+         p, q, r, s = a * cos, b * sin, b * cos, a * sin
+         return (np.stack([p + q, r + s], axis=-1).reshape(x.shape),)
both sines have the same sign in the pullback: the gradients of the pair (a, b) are dy₀ cos + dy₁
sin and dy₁ cos − dy₀ sin
+ a, b = dy[..., 0::2], dy[..., 1::2]
+         return (np.concatenate([a * cos + b * sin, b * cos - a * sin], axis=-1),)
the gradient is returned as halves: write the gradients of pair i to columns 2i and 2i + 1
""")

to_halves.mistakes += patches(r"""
- heads[..., order].reshape(w.shape)
+ heads[..., np.argsort(order)].reshape(w.shape)
this is the inverse, from halves to neighbours: new column i is the old column 2i, and new column
i + D/2 the old column 2i + 1
+ w.copy()
the columns are not reordered: the columns 0, 2, 4, … of a head come first
+ w[:, np.concatenate([np.arange(0, w.shape[1], 2), np.arange(1, w.shape[1], 2)])]
the columns of different heads are mixed: split the columns into heads, (M, H, D), and reorder
within each head
+ w[np.argsort(np.arange(len(w)) % 2, kind='stable')]
rows are reordered: a row belongs to an input, and the columns are the D entries of the heads
- np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2)])
+ np.concatenate([np.arange(1, width, 2), np.arange(0, width, 2)])
the second entries of the pairs come first: the even columns 0, 2, 4, … are the first half
- w.reshape(-1, num_heads, width)
+ w.reshape(-1, width, num_heads).swapaxes(1, 2)
the columns are split as (M, D, H): head h is D neighbouring columns, so reshape to (M, H, D)
""")

alibi_bias.mistakes += patches(r"""
- -slopes[:, None, None] * abs(i - j)
+ -slopes[:, None, None] * (i - j)
the distance of later keys is negative: the distance is |i − j|, so use abs
+ -slopes[:, None, None] * (j - i)
the bias rises with the distance of earlier keys: it is minus slope · |i − j|
+ -slopes[:, None, None] * np.maximum(i - j, 0)
later keys have no bias: the bias is symmetric, minus slope · |i − j|
+ np.where(j <= i, -slopes[:, None, None] * abs(i - j), -np.inf)
a causal mask is included: the bias is symmetric, and the mask is separate
+ -slopes[:, None, None] * (i - j) ** 2
the distance is squared: the bias is linear in the distance, minus slope · |i − j|
+ -slopes[:, None, None] * (abs(i - j) + 1)
the distance is one too large: the distance of a position to itself is 0
+ np.exp(-slopes[:, None, None] * abs(i - j))
this is the exponential of the bias: softmax applies exp, so return minus slope · |i − j|
+ -np.ones(len(slopes))[:, None, None] * abs(i - j)
the slopes are not used: the bias is minus slope · |i − j|
+ -slopes[0] * abs(i - j) * np.ones((len(slopes), 1, 1))
every head has the slope of the first: head h has slopes[h] of its own
+ -slopes * abs(i - j)
the axis of the heads is missing: slopes[:, None, None] broadcasts to (H, T, S)
+ -abs(i - j) / slopes[:, None, None]
the distance is divided by the slope: multiply them
+ -(2.0 ** (-8 * np.arange(1, len(slopes) + 1) / len(slopes)))[:, None, None] * abs(i - j)
these are the slopes of the paper: use those that are given
+ slopes[:, None, None] * j * np.ones((t, 1))
this is m s alone, which softmax cannot distinguish from −m |t − s| under a causal mask; here the
bias itself is asked for
- i = np.arange(s - t, s)[:, None]
+ i = np.arange(t)[:, None]
the first query is at position 0, but the queries are the last ones: their positions are S − T, …,
S − 1
+ i = np.arange(s - t + 1, s + 1)[:, None]
the positions of the queries are off by one: the last query is at the position of the last key, S
− 1
+ i = np.arange(s, s + t)[:, None]
the first query is at position S, after all keys, but the queries are the last ones: their positions
are S − T, …, S − 1
+ i = np.arange(t - s, 2 * t - s)[:, None]
the offset has the wrong sign: the first query is at position S − T, after the cached keys
""")

attend_with_cache.mistakes += patches(r"""
- np.arange(n + t) <= positions[:, None]
+ np.arange(n + t) <= np.arange(t)[:, None]
the mask has offset 0, so the new tokens see only the first keys in the cache: the query of row i is
at position N + i and sees the keys 0 to N + i
+ np.ones((t, n + t), bool)
nothing is hidden: when several tokens are new, a query must not see the keys after its own position
+ (np.arange(n + t) <= positions[:, None]) | (n > 0)
a new token sees the tokens after it if the cache is not empty: the mask is causal then too
+ np.arange(n + t) < positions[:, None]
- np.arange(n + t) <= positions[:, None]
+ (np.arange(n + t) < positions[:, None]) | (positions[:, None] == 0)
a query must also see the key at its own position: ≤ in place of <
+ (np.arange(n + t) >= n) & (np.arange(n + t) <= positions[:, None])
the cached keys are hidden: a query sees all earlier keys
+ np.tri(t, dtype=bool)
the mask is (T, T), but the queries see the N cached keys as well: (T, N + T)
+ np.arange(n + t) > positions[:, None]
the mask is inverted: True, or any number except 0, lets a query see a key
+ np.arange(n + t) >= positions[:, None]
the mask is reversed: a query sees the keys whose positions are not larger than its own
+ np.arange(n + t) <= positions[:, None] + 1
the mask shows each query the key after its own position: row i sees the keys 0 to N + i
- query, key = rotate(query, positions), rotate(key, positions)
+ query, key = rotate(query, np.arange(t)), rotate(key, np.arange(t))
the rotation starts at position 0 in every call: the first new token is at position N
+ query, key = rotate(query, np.arange(t)), rotate(key, positions)
the query is rotated as if the first new token were at position 0: it is at position N, as its key
is
+ query, key = rotate(query, positions), rotate(key, np.arange(t))
the new keys are rotated as if the first of them were at position 0: it is at position N
+ query, key = rotate(query, positions), key
the new keys are not rotated: rotate them by their positions, N to N + T − 1
+ query, key = query, rotate(key, positions)
the queries are not rotated: rotate them by their positions, N to N + T − 1
+ query, key = query, key
- query, key = rotate(query, positions), rotate(key, positions)
+ query, key = (rotate(x, np.full(t, n)) for x in (query, key))
the T new tokens have T positions, N to N + T − 1: rotate queries and new keys by these
+ query, key = (rotate(x, np.full(t, n + t - 1)) for x in (query, key))
all new tokens are rotated as if they were at the last position: they are at N, …, N + T − 1
+ query, key = rotate(query, positions + 1), rotate(key, positions + 1)
the rotation is off by one: with N tokens in the cache, the first new one is at position N
+ query, key = rotate(query, positions + t), rotate(key, positions + t)
the rotation starts at position S = N + T: the first new token is at position N
+ query, key, value = (rotate(x, positions) for x in (query, key, value))
the values are rotated too: only queries and keys are
- n, t = cached_key.shape[-2], query.shape[-2]
+ n, t = len(cached_key), query.shape[-2]
- n, t = cached_key.shape[-2], query.shape[-2]
+ n, t = len(cached_key), len(query)
len counts the heads: the positions are the second axis from the end, shape[-2]
+ n, t = query.shape[-2], cached_key.shape[-2]
N and T are exchanged: N is the number of cached keys, T that of new queries
- positions = np.arange(n, n + t)
+ positions = np.arange(t)
rotation and mask start at position 0 in every call: the first new token is at position N, the
number of keys in the cache
- keys = np.concatenate([cached_key, key], axis=-2)
+ keys = np.concatenate([rotate(cached_key, np.arange(n)), key], axis=-2)
the cached keys are rotated again, but they were rotated when they were new: rotate only the new
keys
+ keys = np.concatenate([key, cached_key], axis=-2)
the new keys come before the cached ones: append them at the end
+ keys = np.concatenate([cached_key, key])
np.concatenate joins along axis 0, the heads: with axis=-2 it joins along the positions
- values = np.concatenate([cached_value, value], axis=-2)
+ values = value
the values of the cached tokens are missing: join cached_value and value
- keys = np.concatenate([cached_key, key], axis=-2)
-     values = np.concatenate([cached_value, value], axis=-2)
-     mask = np.arange(n + t) <= positions[:, None]
+ keys, values, mask = key, value, np.tri(t, dtype=bool)
the cached keys and values are not used: append the new ones to them
- return masked_attention(query, keys, values, mask), keys, values
+ return masked_attention(query, keys, values, mask), values, keys
keys and values are returned in the wrong order: return out, then keys, then values
+ return masked_attention(query, keys, values, mask), key, value
only the new keys and values are returned: the next call needs the cached ones too
+ return masked_attention(query, keys, values, mask), cached_key, cached_value
the cache is returned unchanged: append the new keys and values
+ unrotated = np.concatenate([cached_key, rotate(key, -positions)], axis=-2)
+     return masked_attention(query, keys, values, mask), unrotated, values
the new keys are in the cache as they were before the rotation: append the rotated ones
""")
