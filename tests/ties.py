"""Functions at their kinks, with right and with wrong gradients there.

Away from kinks all of these gradients are right. RIGHT and WRONG hold functions `make(rng, dtype)`
by name; each returns a function of arrays, and its inputs.
"""

import numpy as np

RIGHT, WRONG = {}, {}


def _case(cases, name, f, *inputs):
    """Register f at these inputs; each is a list of numbers, or a function of a generator."""

    def make(rng, dtype):
        arrays = (x(rng) if callable(x) else x for x in inputs)
        return f, *(np.array(x, dtype=dtype) for x in arrays)

    cases[name] = make


def right(name, f, *inputs):
    _case(RIGHT, name, f, *inputs)


def wrong(name, f, *inputs):
    _case(WRONG, name, f, *inputs)


def normal(*shape):
    return lambda rng: rng.standard_normal(shape)


# Functions of each entry: the slope at the kink is the choice.


def elementwise(value, slope, at_kink, kink=0.0):
    def f(x):
        def pullback(dy):
            chosen = np.where(x == kink, np.asarray(at_kink, x.dtype), slope(x))
            return ((dy * chosen).astype(x.dtype),)

        return value(x).astype(x.dtype), pullback

    return f


def relu(at_zero):
    return elementwise(lambda x: np.maximum(x, 0), lambda x: x > 0, at_zero)


def absolute(at_zero):
    return elementwise(np.abs, np.sign, at_zero)


def leaky(at_zero):
    def slope(x):
        return np.where(x > 0, 1, 0.1)

    return elementwise(lambda x: np.where(x > 0, x, x.dtype.type(0.1) * x), slope, at_zero)


def relu6(at_six):
    def inside(x):
        return (x > 0) & (x < 6)

    return elementwise(lambda x: np.clip(x, 0, 6), inside, at_six, kink=6.0)


def softshrink(at_one):
    def value(x):
        return np.sign(x) * np.maximum(np.abs(x) - 1, 0)

    return elementwise(value, lambda x: np.abs(x) > 1, at_one, kink=1.0)


def hard_sigmoid(at_three):
    def inside(x):
        return np.where(np.abs(x) < 3, 1 / 6, 0)

    return elementwise(lambda x: np.clip(x / 6 + 0.5, 0, 1), inside, at_three, kink=3.0)


def huber(at_one):
    def value(x):
        return np.where(np.abs(x) < 1, x * x / 2, np.abs(x) - 0.5)

    return elementwise(value, lambda x: np.clip(x, -1, 1), at_one, kink=1.0)


ZEROS = [0.0, 1.0, 0.0, -2.0, 0.0]
for a in (0, 0.5, 1):
    right(f"relu with {a}", relu(a), ZEROS)
for a in (-1, 2, 1.01, -0.001):
    wrong(f"relu with {a}", relu(a), ZEROS)
right("relu, another choice at each zero", relu([0, 0, 0.5, 0, 1]), ZEROS)
wrong("relu, one zero of three", relu([0, 0, 0.5, 0, 1.1]), ZEROS)
right("relu at nothing but zeros", relu(0.5), np.zeros((2, 3)))
wrong("relu at nothing but zeros", relu(-1), np.zeros((2, 3)))
right("relu at one number", relu(0), 0.0)
wrong("relu at one number", relu(-0.5), 0.0)
right("relu at 300 zeros", relu(0), np.zeros(300))
wrong(
    "relu at 300 zeros, one of them wrong",
    relu(np.where(np.arange(300) == 17, 3, 0)),
    np.zeros(300),
)
for a in (0, 1, -1, 0.3):
    right(f"abs with {a}, all zeros", absolute(a), [0.0, 0.0, 0.0])
    right(f"abs with {a}", absolute(a), [0.0, 0.7, 0.0, -1.0])
for a in (2, -1.5):
    wrong(f"abs with {a}, all zeros", absolute(a), [0.0, 0.0, 0.0])
    wrong(f"abs with {a}", absolute(a), [0.0, 0.7, 0.0, -1.0])
for a in (0.1, 1, 0.4):
    right(f"leaky relu with {a}", leaky(a), ZEROS)
for a in (0, 2):
    wrong(f"leaky relu with {a}", leaky(a), ZEROS)
right("relu6 with 1 at 6", relu6(1), [6.0, 3.0, 7.0, 6.0])
wrong("relu6 with 2 at 6", relu6(2), [6.0, 3.0, 7.0, 6.0])
right("softshrink", softshrink(0), [1.0, 0.4, -2.0])
wrong("softshrink", softshrink(-1), [1.0, 0.4, -2.0])
right("hard sigmoid", hard_sigmoid(0), [3.0, 0.4, -7.0])
wrong("hard sigmoid", hard_sigmoid(1), [3.0, 0.4, -7.0])
right("huber", huber(1), [1.0, 0.4, -2.0])


# One of several: the choice is how ties share the gradient.


def shares(top):
    return top / top.sum(axis=-1, keepdims=True)


def first(top):
    return np.arange(top.shape[-1]) == top.argmax(axis=-1)[..., None]


def last(top):
    return first(top[..., ::-1])[..., ::-1]


def every(top):
    return 1.0 * top


def half(top):
    return top * np.where(top.sum(axis=-1, keepdims=True) > 1, 0.5, 1.0)


def none(top):
    return top * (top.sum(axis=-1, keepdims=True) == 1)


def uneven(top):
    """The first of several gets 1.5, the second −0.5."""
    w = 1.0 * first(top)
    return np.where(top.sum(axis=-1, keepdims=True) > 1, 1.5 * w - 0.5 * last(top), w)


def reduced(value, share):
    """A reduction of the last axis to one of its entries."""

    def f(x):
        y = value(x, axis=-1, keepdims=True)
        return y, lambda dy: ((dy * share(x == y)).astype(x.dtype),)

    return f


TIED = [1.0, 1.0, 1.0, 0.2]
ROWS = [[2.0, 2.0, 0.0, 1.0], [1.0, 3.0, 3.0, 3.0], [0.0, 1.0, 2.0, 3.0]]
for op in (np.max, np.min):
    flip = 1 if op is np.max else -1
    for share in (shares, first, last):
        right(f"{op.__name__}, {share.__name__}", reduced(op, share), flip * np.array(TIED))
        right(f"{op.__name__} of rows, {share.__name__}", reduced(op, share), flip * np.array(ROWS))
    for share in (every, none, uneven):
        wrong(f"{op.__name__}, {share.__name__}", reduced(op, share), flip * np.array(TIED))
        wrong(f"{op.__name__} of rows, {share.__name__}", reduced(op, share), flip * np.array(ROWS))
wrong("max of three with ½ each", reduced(np.max, half), TIED)
right("max of 40 zeros, shared", reduced(np.max, shares), np.zeros(40))
right("max of 40 zeros, first", reduced(np.max, first), np.zeros(40))
wrong("max of 40 zeros, every", reduced(np.max, every), np.zeros(40))


def integers(*shape):
    return lambda rng: rng.integers(0, 3, shape)


right("max of rows of small integers, first", reduced(np.max, first), integers(6, 7))
right("max of rows of small integers, shared", reduced(np.max, shares), integers(6, 7))


def tied_rows(rng):
    x = rng.integers(0, 3, (6, 7))
    x[2, :3] = 5
    return x


wrong("max of rows of small integers, every", reduced(np.max, every), tied_rows)


def pair(value, to_a):
    """maximum or minimum of two arrays; where they are equal, a gets this share, and b the rest or
    what a second number says."""
    share_a, share_b = to_a if isinstance(to_a, tuple) else (to_a, 1 - to_a)

    def f(a, b):
        y = value(a, b)

        def pullback(dy):
            tie = a == b
            da, db = np.where(tie, share_a, y == a), np.where(tie, share_b, y == b)
            return (dy * da).astype(a.dtype), (dy * db).astype(a.dtype)

        return y, pullback

    return f


A, B = [1.0, 0.5, -2.0, 4.0], [1.0, 2.0, -2.0, 3.0]
for op in (np.maximum, np.minimum):
    for a in (0, 0.5, 1):
        right(f"{op.__name__}, {a} to a", pair(op, a), A, B)
    wrong(f"{op.__name__}, both", pair(op, (1, 1)), A, B)
    wrong(f"{op.__name__}, neither", pair(op, (0, 0)), A, B)
    wrong(f"{op.__name__}, 2 and −1", pair(op, (2, -1)), A, B)
right("maximum, all equal", pair(np.maximum, 0.5), A, A)
wrong("maximum, all equal, both", pair(np.maximum, (1, 1)), A, A)
wrong("maximum, 0.3 and 0.3", pair(np.maximum, (0.3, 0.3)), A, A)


def sort(weights):
    """Sorting; weights(x) is a matrix whose entry (i, j) is the share of x[j] in y[i]."""

    def f(x):
        y = np.sort(x, axis=-1)
        return y, lambda dy: (np.einsum("...ij,...i->...j", weights(x), dy).astype(x.dtype),)

    return f


def stable(x):
    return np.eye(x.shape[-1])[np.argsort(x, axis=-1, kind="stable")]


def backwards(x):
    return stable(x[..., ::-1])[..., ::-1]


def equal_shares(x):
    same = np.sort(x, axis=-1)[..., :, None] == x[..., None, :]
    return same / same.sum(axis=-2, keepdims=True)


def to_every(x):
    return 1.0 * (np.sort(x, axis=-1)[..., :, None] == x[..., None, :])


def to_first(x):
    """By searching for each value: equal ones are all found at the first place."""
    return first(to_every(x) > 0) * 1.0


REPEATED = [2.0, 1.0, 2.0, 0.0, 1.0, 2.0]
for order in (stable, backwards, equal_shares):
    right(f"sort, {order.__name__}", sort(order), REPEATED)
    right(f"sort of rows, {order.__name__}", sort(order), ROWS)
for order in (to_every, to_first):
    wrong(f"sort, {order.__name__}", sort(order), REPEATED)
    wrong(f"sort of rows, {order.__name__}", sort(order), ROWS)


def picked(weights, row):
    """One entry of the sorted array: a median or a quantile."""

    def f(x):
        y = np.sort(x)[row]
        return np.asarray(y), lambda dy: ((dy * weights(x)[row]).astype(x.dtype),)

    return f


for order in (stable, equal_shares):
    right(f"median of equal ones, {order.__name__}", picked(order, 2), [1.0, 1.0, 1.0, 5.0, -3.0])
    right(f"third of ten, {order.__name__}", picked(order, 2), [3.0] * 4 + [1.0] + [7.0] * 5)
wrong("median of equal ones, every", picked(to_every, 2), [1.0, 1.0, 1.0, 5.0, -3.0])
wrong(
    "median of equal ones, none",
    picked(lambda x: stable(x) * (x != 1), 2),
    [1.0, 1.0, 1.0, 5.0, -3.0],
)
wrong(
    "median of nothing but equal ones, none",
    picked(lambda x: 0 * stable(x) if np.ptp(x) == 0 else stable(x), 1),
    [1.0, 1.0, 1.0],
)
wrong("third of ten, every", picked(to_every, 2), [3.0] * 4 + [1.0] + [7.0] * 5)


def top_k(weights, k):
    def f(x):
        return np.sort(x)[-k:], lambda dy: ((weights(x)[-k:].T @ dy).astype(x.dtype),)

    return f


right("top 2 with three for two places", top_k(stable, 2), [3.0, 3.0, 1.0, 3.0])
wrong("top 2 with three for two places, every", top_k(to_every, 2), [3.0, 3.0, 1.0, 3.0])


def clip(share):
    """Clip to bounds that are inputs: at a bound, share goes to x, and the rest, or what the second
    number says, to the bound."""
    to_x, to_bound = share if isinstance(share, tuple) else (share, 1 - share)

    def f(x, low, high):
        y = np.clip(x, low, high)

        def pullback(dy):
            def part(inside, edge):
                return dy * np.where(edge, 0, inside)

            at_low, at_high = x == low, x == high
            edge = at_low | at_high
            dx = part((x > low) & (x < high), edge) + to_x * dy * edge
            dlow = np.sum(part(x < low, edge) + to_bound * dy * at_low)
            dhigh = np.sum(part(x > high, edge) + to_bound * dy * at_high)
            return tuple(np.asarray(d, x.dtype) for d in (dx, dlow, dhigh))

        return y, pullback

    return f


CLIPPED = [-1.0, 0.3, 2.0, 5.0, -4.0]
for a in (0, 0.5, 1):
    right(f"clip with {a}", clip(a), CLIPPED, -1.0, 2.0)
for both in ((1, 1), (0, 0), (2, -1), (-0.5, 1.5)):
    wrong(f"clip with {both}", clip(both), CLIPPED, -1.0, 2.0)


# Kinks of sums, of norms and of layers.


def of_sum(d1, d2):
    """|x₁ + x₂|; at 0 the gradient is (d1, d2)."""

    def f(x):
        s = x.sum()
        slope = np.array([d1, d2], x.dtype) if s == 0 else np.full(2, np.sign(s), x.dtype)
        return np.abs(s)[None], lambda dy: ((dy * slope).astype(x.dtype),)

    return f


for d in ((0, 0), (1, 1), (-1, -1), (0.3, 0.3)):
    right(f"|x1 + x2| with {d}", of_sum(*d), [0.5, -0.5])
for d in ((0.9, -0.9), (1, 0), (0, 0.5), (2, 2)):
    wrong(f"|x1 + x2| with {d}", of_sum(*d), [0.5, -0.5])


def layer(at_zero):
    """v · relu(W x + b)"""

    def f(w, x, b, v):
        z = w @ x + b
        h = np.maximum(z, 0)

        def pullback(dy):
            dz = (dy * v * np.where(z == 0, at_zero, z > 0)).astype(x.dtype)
            return np.outer(dz, x), w.T @ dz, dz, dy * h

        return np.asarray(v @ h), pullback

    return f


W = [[1.0, 2.0, -1.0], [0.5, 1.0, 1.0], [2.0, 0.0, 1.0], [-1.0, 1.0, 0.25]]
X, BIAS = [1.0, -1.0, 2.0], [3.0, -1.5, 0.5, 1.5]  # two of the four units are at 0
for a in (0, 0.5, 1):
    right(f"a layer with {a}", layer(a), W, X, BIAS, normal(4))
    right(f"a layer with {a}, all units at 0", layer(a), W, X, -np.array(W) @ X, normal(4))
for a in (-1, 2):
    wrong(f"a layer with {a}", layer(a), W, X, BIAS, normal(4))
    wrong(f"a layer with {a}, all units at 0", layer(a), W, X, -np.array(W) @ X, normal(4))


def hinge(at_margin):
    """The mean of max(0, 1 − yᵢ s·xᵢ), with labels y."""
    labels = np.array([1.0, -1.0, 1.0])

    def f(x, s):
        y = labels.astype(x.dtype)
        margin = 1 - y * (x @ s)

        def pullback(dy):
            slope = np.where(margin == 0, at_margin, margin > 0)
            d = (-dy * y * slope / 3).astype(x.dtype)
            return np.outer(d, s), x.T @ d

        return np.asarray(np.maximum(margin, 0).sum() / 3, x.dtype), pullback

    return f


POINTS = [[1.0, 0.0], [1.0, 3.0], [0.5, 2.0]]  # the first is on its margin
for a in (0, 1):
    right(f"hinge loss with {a}", hinge(a), POINTS, [1.0, -0.5])
wrong("hinge loss with −1", hinge(-1), POINTS, [1.0, -0.5])


def pooled(share):
    """Maxima of windows of 2 × 2 at distance 1, which overlap."""

    def windows(x):
        return np.stack([x[:-1, :-1], x[:-1, 1:], x[1:, :-1], x[1:, 1:]], axis=-1)

    def f(x):
        w = windows(x)
        y = w.max(axis=-1)

        def pullback(dy):
            parts = dy[..., None] * share(w == y[..., None])
            dx = np.zeros_like(x)
            dx[:-1, :-1] += parts[..., 0]
            dx[:-1, 1:] += parts[..., 1]
            dx[1:, :-1] += parts[..., 2]
            dx[1:, 1:] += parts[..., 3]
            return (dx,)

        return y, pullback

    return f


IMAGE = [[1.0, 1.0, 0.0, 2.0], [0.0, 1.0, 1.0, 2.0], [3.0, 0.0, 0.0, 0.0]]
for share in (first, last, shares):
    right(f"max pooling, {share.__name__}", pooled(share), IMAGE)
    right(f"max pooling of zeros, {share.__name__}", pooled(share), np.zeros((3, 3)))
for share in (every, none):
    wrong(f"max pooling, {share.__name__}", pooled(share), IMAGE)
    wrong(f"max pooling of zeros, {share.__name__}", pooled(share), np.zeros((3, 3)))


def norm(at_zero):
    def f(x):
        n = np.sqrt(np.sum(x * x))
        slope = np.full(x.shape, at_zero, x.dtype) if n == 0 else x / n
        return np.asarray(n), lambda dy: ((dy * slope).astype(x.dtype),)

    return f


right("a norm at 0 with 0", norm(0), np.zeros(3))
right("a norm at 0, on the edge", norm(3**-0.5 - 1e-7), np.zeros(3))
wrong("a norm at 0 with ones", norm(1), np.zeros(3))
wrong("a norm at 0 with NaN", norm(np.nan), np.zeros(3))


def cummax(share):
    """Running maxima; share(same) of the entries up to here that are equal to the maximum."""

    def f(x):
        y = np.maximum.accumulate(x)

        def pullback(dy):
            dx = np.zeros_like(x)
            for i in range(len(x)):
                dx[: i + 1] += dy[i] * share(x[: i + 1] == y[i])
            return (dx,)

        return y, pullback

    return f


for share in (first, last, shares):
    right(f"cummax, {share.__name__}", cummax(share), [1.0, 2.0, 2.0, 0.0, 2.0, 3.0])
wrong("cummax, every", cummax(every), [1.0, 2.0, 2.0, 0.0, 2.0, 3.0])


def triplet(at_zero):
    """max(0, |a − p|² − |a − n|² + 1)"""

    def f(a, p, n):
        z = np.sum((a - p) ** 2) - np.sum((a - n) ** 2) + 1

        def pullback(dy):
            s = np.asarray(dy * (at_zero if z == 0 else z > 0), a.dtype)
            return 2 * s * (n - p), -2 * s * (a - p), 2 * s * (a - n)

        return np.asarray(np.maximum(z, 0)), pullback

    return f


for a in (0, 0.5, 1):
    right(f"triplet loss with {a}", triplet(a), [1.0, 0.0], [1.0, 2.0], [0.0, 2.0])
for a in (-1, 3):
    wrong(f"triplet loss with {a}", triplet(a), [1.0, 0.0], [1.0, 2.0], [0.0, 2.0])


def relu_by_abs(at_zero):
    """(x + |x|) / 2, whose central difference at 0 is ½ along every line."""
    return elementwise(lambda x: (x + np.abs(x)) / 2, lambda x: x > 0, at_zero)


for a in (0, 0.5, 1):
    right(f"(x + |x|)/2 at nothing but zeros with {a}", relu_by_abs(a), np.zeros(3))
wrong("(x + |x|)/2 at nothing but zeros with 2", relu_by_abs(2), np.zeros(3))


def difference(d1, d2):
    """relu(x₁) − relu(x₂), at 0 with slopes of either."""

    def f(x):
        def pullback(dy):
            at = np.array([d1, d2])
            slope = np.array([1, -1]) * np.where(x == 0, at, x > 0)
            return ((dy * slope).astype(x.dtype),)

        return (np.maximum(x[0], 0) - np.maximum(x[1], 0))[None], pullback

    return f


right("relu(x1) − relu(x2)", difference(0, 0), [0.0, 0.0])
right("relu(x1) − relu(x2), 0 and 1", difference(0, 1), [0.0, 0.0])
wrong("relu(x1) − relu(x2), −1", difference(0, -1), [0.0, 0.0])


def argmax_gate(share):
    """max(x) · w: the weight's gradient is the maximum."""

    def f(x, w):
        y = x.max()

        def pullback(dy):
            return (np.sum(dy * w) * share(x == y)).astype(x.dtype), dy * y

        return y * w, pullback

    return f


right("maximum times weights", argmax_gate(first), TIED, normal(3))
wrong("maximum times weights, every", argmax_gate(every), TIED, normal(3))


def smooth_beside(at_zero):
    """exp(x₁) |x₂| + sin(x₁ x₂): curved on both sides of the kink."""

    def f(x):
        e, s, c = np.exp(x[0]), np.abs(x[1]), np.cos(x[0] * x[1])

        def pullback(dy):
            sign = at_zero if x[1] == 0 else np.sign(x[1])
            dx = np.array([e * s + x[1] * c, e * sign + x[0] * c])
            return ((dy * dx).astype(x.dtype),)

        return (e * s + np.sin(x[0] * x[1]))[None], pullback

    return f


for a in (-1, 0, 0.5, 1):
    right(f"a curved kink with {a}", smooth_beside(a), [0.7, 0.0])
for a in (1.001, -2):
    wrong(f"a curved kink with {a}", smooth_beside(a), [0.7, 0.0])


# Many entries that depend on one another.

TWELVE = [1.0] * 7 + [2.0] * 5
for order in (stable, backwards, equal_shares):
    right(f"sort of 12, {order.__name__}", sort(order), TWELVE)
    right(f"top 5 of 12, {order.__name__}", top_k(order, 5), TWELVE)
wrong("sort of 12, to every", sort(to_every), TWELVE)
wrong("sort of 12, to the first", sort(to_first), TWELVE)
wrong("top 5 of 12 equal ones, every", top_k(to_every, 5), np.ones(12))
TWENTY, EIGHTS = np.ones(20), np.zeros((4, 8))
for share in (first, last, shares):
    right(f"max of 20, {share.__name__}", reduced(np.max, share), TWENTY)
    right(f"min of four rows of 8, {share.__name__}", reduced(np.min, share), EIGHTS)
for share in (every, half, none, uneven):
    wrong(f"max of 20, {share.__name__}", reduced(np.max, share), TWENTY)
    wrong(f"min of four rows of 8, {share.__name__}", reduced(np.min, share), EIGHTS)


def in_order_unless_tied(x):
    """The shares of sorting, but none where two entries are equal."""
    return stable(x) * (len(np.unique(x)) == x.size)


for order in (stable, backwards, equal_shares):
    right(f"sort of 20, {order.__name__}", sort(order), TWENTY)
    right(f"median of 20, {order.__name__}", picked(order, 10), TWENTY)
for order in (to_every, to_first, in_order_unless_tied):
    wrong(f"sort of 20, {order.__name__}", sort(order), TWENTY)
for order in (to_every, in_order_unless_tied):
    wrong(f"median of 20, {order.__name__}", picked(order, 10), TWENTY)
BITS = np.random.default_rng(7).integers(0, 2, (6, 6))
for share in (first, last, shares):
    right(f"max pooling of bits, {share.__name__}", pooled(share), BITS)
    right(f"cummax of ones, {share.__name__}", cummax(share), np.ones(12))
wrong("max pooling of bits, every", pooled(every), BITS)
wrong("max pooling of bits, none", pooled(none), BITS)
wrong("cummax of ones, every", cummax(every), np.ones(12))
right("maximum of ones, half", pair(np.maximum, 0.5), np.ones((4, 5)), np.ones((4, 5)))
for both in ((1, 1), (0, 0)):
    wrong(f"maximum of ones, {both}", pair(np.maximum, both), np.ones((4, 5)), np.ones((4, 5)))
WIDE = np.tile(W, (3, 1))
for a in (0, 0.5, 1):
    right(
        f"a layer of 12 units at 0 with {a}", layer(a), WIDE, np.zeros(3), np.zeros(12), normal(12)
    )
wrong("a layer of 12 units at 0 with 2", layer(2), WIDE, np.zeros(3), np.zeros(12), normal(12))


# Differences, ranges, several inputs, and other units.


def l1(at_zero):
    """Σ |a − b|"""

    def f(a, b):
        d = a - b

        def pullback(dy):
            s = (dy * np.where(d == 0, at_zero, np.sign(d))).astype(a.dtype)
            return s, -s

        return np.asarray(np.abs(d).sum()), pullback

    return f


for a in (0, 1, -1, 0.5):
    right(f"|a − b| with {a}", l1(a), [1.0, 2.0, 3.0], [1.0, 2.0, 2.5])
for a in (2, -1.2):
    wrong(f"|a − b| with {a}", l1(a), [1.0, 2.0, 3.0], [1.0, 2.0, 2.5])


def extent(share):
    """max(x) − min(x)"""

    def f(x):
        def pullback(dy):
            d = 1.0 * share(x == x.max()) - 1.0 * share(x == x.min())
            return ((dy * d).astype(x.dtype),)

        return np.asarray(x.max() - x.min()), pullback

    return f


for share in (first, last, shares):
    right(f"range, {share.__name__}", extent(share), [1.0, 1.0, 0.0, 0.0, 0.5])
    right(f"range of equal ones, {share.__name__}", extent(share), [1.0, 1.0, 1.0])
wrong("range, every", extent(every), [1.0, 1.0, 0.0, 0.0, 0.5])


def of_three(share):
    def f(a, b, c):
        z = np.stack([a, b, c], axis=-1)
        y = z.max(axis=-1)
        to = share(z == y[..., None])
        return y, lambda dy: tuple((dy * to[..., k]).astype(a.dtype) for k in range(3))

    return f


THREE = [1.0, 2.0], [1.0, 0.0], [1.0, 2.0]
for share in (first, last, shares):
    right(f"maximum of three inputs, {share.__name__}", of_three(share), *THREE)
for share in (every, none, half):
    wrong(f"maximum of three inputs, {share.__name__}", of_three(share), *THREE)


def total_variation(at_zero):
    def f(x):
        d = np.diff(x)
        s = np.where(d == 0, at_zero, np.sign(d))

        def pullback(dy):
            dx = np.zeros_like(x)
            dx[1:] += dy * s
            dx[:-1] -= dy * s
            return (dx,)

        return np.asarray(np.abs(d).sum()), pullback

    return f


for a in (0, 1, -1):
    right(f"total variation with {a}", total_variation(a), [1.0, 1.0, 1.0, 2.0, 2.0, 0.0])
for a in (2, -1.3):
    wrong(f"total variation with {a}", total_variation(a), [1.0, 1.0, 1.0, 2.0, 2.0, 0.0])

for unit in (1e-6, 1e6):
    scaled = unit * np.array(TIED)
    right(f"max, shares, in units of {unit}", reduced(np.max, shares), scaled)
    wrong(f"max, every, in units of {unit}", reduced(np.max, every), scaled)
    right(f"|x1 + x2| in units of {unit}", of_sum(0.3, 0.3), [unit, -unit])
    wrong(f"|x1 + x2| in units of {unit}, (0.9, −0.9)", of_sum(0.9, -0.9), [unit, -unit])
