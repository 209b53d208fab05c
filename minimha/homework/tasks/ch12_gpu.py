"""Tasks of chapter 12: kernels for a GPU, run block by block on NumPy, and the cost of a step."""

import numpy as np

from ...cost import gpt_step
from ..checks.blocks import same_in_blocks
from ..checks.comparisons import named, same
from ..checks.task import task


def _same(yours, expected, name, axes):
    """Compare, and explain NaN and 0."""
    advice = ""
    if np.isnan(yours).any():
        advice = "NaN: was the padding of a tile used, or was −∞ subtracted from −∞?"
    elif (np.asarray(yours) == 0).any():
        advice = "0: no block has stored there, or it divided by ∞"
    same(yours, expected, name, axes, tolerance=1e-11, advice=advice)


@task(chapter=12, difficulty=1, minutes=15, hints=(
    "Block (i, j) computes tile (i, j) of the result. Which tiles of x does it need, and which "
    "tiles of y? An index counts tiles, not entries.",
    "The grid has one block for each tile of the result, so round up: ct.cdiv. In the kernel, "
    "start with ct.full((m, n), 0.0, ct.float64), and go through the tiles along D. The last ones "
    "may extend beyond the arrays: load them with padding_mode=ct.PaddingMode.ZERO.",
    "The grid is ct.cdiv(T, m), ct.cdiv(M, n). For each c in range(ct.cdiv(D, k)): acc = "
    "ct.mma(left, right, acc), where left is tile (i, c) of x, of shape (m, k), and right is tile "
    "(c, j) of y, of shape (k, n). After the loop, ct.store(out, (i, j), acc).",
))  # fmt: skip
def tiled_product(x, y, m, n, k):
    """The matrix product x y in tiles: one block computes one tile of the result.

    x        (T, D)
    y        (D, M)
    m, n, k  powers of 2: tiles are (m, k) in x, (k, n) in y and (m, n) in the result. T, D and M
             need not be multiples of them
    Write the grid, the number of blocks along each axis of the result, and the kernel. A block
    knows only the tiles that it loads, and no tile is larger than these. Sums are float64.
    Returns x y, (T, M).
    """
    from minimha.kernels import numpy_tile as ct

    out = np.zeros((x.shape[0], y.shape[1]))

    def grid():
        # BEGIN SOLUTION: return the number of blocks along each axis
        return ct.cdiv(x.shape[0], m), ct.cdiv(y.shape[1], n)
        # END SOLUTION

    def kernel(x, y, out):
        # BEGIN SOLUTION: load tiles, add up their products, and store one tile of out
        i, j = ct.bid(0), ct.bid(1)
        acc = ct.full((m, n), 0.0, ct.float64)
        for c in range(ct.cdiv(x.shape[1], k)):
            left = ct.load(x, (i, c), (m, k), padding_mode=ct.PaddingMode.ZERO)
            right = ct.load(y, (c, j), (k, n), padding_mode=ct.PaddingMode.ZERO)
            acc = ct.mma(left, right, acc)
        ct.store(out, (i, j), acc)
        # END SOLUTION

    ct.launch(None, grid(), kernel, (x, y, out))
    return out


def _same_product(yours, rng, t, d, w, m, n, k):
    x, y = rng.standard_normal((t, d)), rng.standard_normal((d, w))
    name = f"x y, for T = {t}, D = {d}, M = {w} and m = {m}, n = {n}, k = {k},"
    _same(yours(x, y, m, n, k), x @ y, name, "T M")
    x, y = rng.standard_normal((t, d)), rng.standard_normal((d, w))
    axes = {"x": "T D", "y": "D M", "x y": "T M"}
    tile = {"T": m, "D": k, "M": n}
    same_in_blocks(yours, {"x": x, "y": y}, (m, n, k), {"x y": x @ y}, axes, tile)


tiled_product.case("one tile of the result", _same_product, (4, 8, 2, 4, 2, 4))
tiled_product.case("sizes that are multiples of the tiles", _same_product, (8, 12, 6, 4, 2, 4))
tiled_product.case(
    "tiles that extend beyond the arrays", _same_product,
    (7, 5, 9, 4, 2, 8), (3, 13, 1, 4, 2, 8), (9, 2, 3, 4, 2, 8), weight=2, hidden=True,
)  # fmt: skip


@task(chapter=12, difficulty=2, minutes=20, hints=(
    "A row is longer than a tile, so a block goes through its tiles twice: first for the maximum "
    "and the sum of each row, then for the result.",
    "The first loop is the online softmax of chapter 11 without values: new = the larger of the "
    "maximum so far and that of the tile; total = total · e^(peak − new) + the sum of e^(tile − "
    "new). An entry beyond the edge must not count: e^(−∞) = 0, so load the tiles with "
    "padding_mode=ct.PaddingMode.NEG_INF.",
    "peak = ct.full((m, 1), -np.inf, ct.float64), total = ct.full((m, 1), 0.0, ct.float64). The "
    "maximum of a tile is ct.max(tile, axis=1, keepdims=True). The second loop loads each tile "
    "again and stores ct.exp(tile − peak) / total as tile (i, j) of out.",
))  # fmt: skip
def softmax_rows(x, m, n):
    """Softmax over each row, in tiles: one block computes m rows, n columns at a time.

    x  (T, S), finite
    m  rows in a tile, a power of 2
    n  columns in a tile, a power of 2. T and S need not be multiples of m and n
    Write the kernel. No tile may be larger than (m, n), so a long row does not fit. Entries as
    large as 1000 must not overflow.
    Returns softmax(x), (T, S).
    """
    from minimha.kernels import numpy_tile as ct

    out = np.zeros(x.shape)

    def kernel(x, out):
        # BEGIN SOLUTION: a loop for the maximum and sum of each row, one to store
        i, tiles = ct.bid(0), ct.cdiv(x.shape[1], n)
        peak = ct.full((m, 1), -np.inf, ct.float64)
        total = ct.full((m, 1), 0.0, ct.float64)
        for j in range(tiles):
            tile = ct.load(x, (i, j), (m, n), padding_mode=ct.PaddingMode.NEG_INF)
            new = ct.maximum(peak, ct.max(tile, axis=1, keepdims=True))
            terms = ct.sum(ct.exp(tile - new), axis=1, keepdims=True)
            total = total * ct.exp(peak - new) + terms
            peak = new
        for j in range(tiles):
            tile = ct.load(x, (i, j), (m, n))
            ct.store(out, (i, j), ct.exp(tile - peak) / total)
        # END SOLUTION

    ct.launch(None, (ct.cdiv(x.shape[0], m),), kernel, (x, out))
    return out


@softmax_rows.check
def rows_that_fit_into_a_tile(yours, rng):
    _same_softmax(yours, rng, rng.standard_normal((4, 8)), 4, 8)


@softmax_rows.check(weight=2)
def rows_longer_than_a_tile(yours, rng):
    x = rng.standard_normal((4, 12))
    x[:, 8:] += [[4.0], [4.0], [-4.0], [-4.0]]  # the maximum grows late, or never
    _same_softmax(yours, rng, x, 4, 4)


@softmax_rows.check(weight=2)
def tiles_beyond_the_edge(yours, rng):
    for t, s in ((7, 10), (3, 5), (9, 17)):
        _same_softmax(yours, rng, rng.standard_normal((t, s)) - 3, 4, 4)


@softmax_rows.check(hidden=True)
def large_entries_do_not_overflow(yours, rng):
    x = np.array([[1000.0, 999.0, -1000.0], [-1000.0, -999.0, -1001.0]])
    _same_softmax(yours, rng, x, 2, 2)


def _same_softmax(yours, rng, x, m, n):
    def softmax(x):
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    name = f"softmax of an array of shape {x.shape}, in tiles of ({m}, {n}),"
    _same(yours(x, m, n), softmax(x), name, "row column")
    x = rng.standard_normal(x.shape)
    axes = {"x": "T S", "softmax": "T columns"}  # each depends on the whole row
    tile = {"T": m, "S": n, "columns": n}
    same_in_blocks(yours, {"x": x}, (m, n), {"softmax": softmax(x)}, axes, tile, largest=m * n)


@task(chapter=12, difficulty=3, minutes=30, hints=(
    "A block owns n keys and goes through all tiles of queries. Which sums does it keep, and what "
    "shape do they have?",
    "Work with tiles of (n, m), keys first, so that dkey and dvalue need no transposition: scores "
    "= scale · K Qᵀ, where Qᵀ is loaded with order=(1, 0). lse and delta belong to queries, which "
    "are the columns here: reshape them to (1, m). p = e^(scores − lse) and ds = p · (V dOᵀ − "
    "delta).",
    "dvalue = ct.mma(p, g, dvalue), where g is tile (i, 0) of dout, (m, Dv); dkey = ct.mma(ds, q, "
    "dkey), where q is tile (i, 0) of query, (m, D). Pad all loads with zeros: a query beyond the "
    "edge has dout = 0 and delta = 0, and adds nothing. After the loop, store scale · dkey and "
    "dvalue once.",
))  # fmt: skip
def key_gradients_in_blocks(query, key, value, lse, dout, delta, scale, m, n):
    """dkey and dvalue of one head: one block computes those of n keys, m queries at a time.

    query  (T, D); D and Dv are powers of 2, so that a tile can hold whole rows
    key    (S, D)
    value  (S, Dv)
    lse    (T,), the logarithm of each row's sum of e^score
    dout   (T, Dv), the gradient of out
    delta  (T,), Σ dout · out in each row
    scale  a number: scores are scale · Q Kᵀ
    m, n   queries and keys in a tile, powers of 2. T and S need not be multiples of them
    Write the kernel. It recomputes the weights of a tile from the scores and lse, and no tile holds
    more than m queries or n keys.
    Returns dkey (S, D) and dvalue (S, Dv).
    """
    from minimha.kernels import numpy_tile as ct

    (t, d), (s, dv) = query.shape, value.shape
    dkey, dvalue = np.zeros((s, d)), np.zeros((s, dv))

    def kernel(query, key, value, lse, dout, delta, dkey, dvalue):
        # BEGIN SOLUTION: load keys and values, loop over tiles of queries, store
        j, zero = ct.bid(0), ct.PaddingMode.ZERO
        k = ct.load(key, (j, 0), (n, d), padding_mode=zero)
        v = ct.load(value, (j, 0), (n, dv), padding_mode=zero)
        acc_k, acc_v = ct.full((n, d), 0.0, ct.float64), ct.full((n, dv), 0.0, ct.float64)
        for i in range(ct.cdiv(t, m)):
            none = ct.full((n, m), 0.0, ct.float64)
            q = ct.load(query, (i, 0), (m, d), padding_mode=zero)
            g = ct.load(dout, (i, 0), (m, dv), padding_mode=zero)
            columns = ct.load(query, (0, i), (d, m), order=(1, 0), padding_mode=zero)
            logs = ct.load(lse, (i,), (m,), padding_mode=zero).reshape((1, m))
            mean = ct.load(delta, (i,), (m,), padding_mode=zero).reshape((1, m))
            p = ct.exp(scale * ct.mma(k, columns, none) - logs)
            dp = ct.mma(v, ct.load(dout, (0, i), (dv, m), order=(1, 0), padding_mode=zero), none)
            ds = p * (dp - mean)
            acc_v = ct.mma(p, g, acc_v)
            acc_k = ct.mma(ds, q, acc_k)
        ct.store(dkey, (j, 0), scale * acc_k)
        ct.store(dvalue, (j, 0), acc_v)
        # END SOLUTION

    arrays = query, key, value, lse, dout, delta, dkey, dvalue
    ct.launch(None, (ct.cdiv(s, n),), kernel, arrays)
    return dkey, dvalue


def _head(rng, t, s):
    """Query, key and value of one head, D = 8, Dv = 2; the last keys match best."""
    query, key, value = (rng.standard_normal(shape) for shape in ((t, 8), (s, 8), (s, 2)))
    key[-2:] *= 3
    return query, key, value


def _attended(query, key, value, scale):
    """out, lse and the weights, all pairs at once."""
    scores = scale * query @ key.T
    lse = np.log(np.exp(scores).sum(axis=-1))
    weights = np.exp(scores - lse[:, None])
    return weights @ value, lse, weights


_AXES = {
    "query": "T D", "key": "S D", "value": "S Dv", "out": "T Dv", "lse": "T", "dout": "T Dv",
    "delta": "T", "dkey": "S D", "dvalue": "S Dv",
}  # fmt: skip


def _key_gradients(rng, t, s):
    """The inputs of the task for these lengths, and the right results."""
    query, key, value = _head(rng, t, s)
    out, lse, weights = _attended(query, key, value, 0.7)
    dout = rng.standard_normal(out.shape)
    delta = np.sum(dout * out, axis=-1)
    inputs = {
        "query": query, "key": key, "value": value, "lse": lse, "dout": dout, "delta": delta,
    }  # fmt: skip
    dscores = weights * (dout @ value.T - delta[:, None])
    return inputs, {"dkey": 0.7 * dscores.T @ query, "dvalue": weights.T @ dout}


def _same_key_gradients(yours, rng, t, s):
    inputs, expected = _key_gradients(rng, t, s)
    found = dict(zip(expected, yours(*inputs.values(), 0.7, 2, 4), strict=False))
    for name in ("dvalue", "dkey"):  # dvalue first: it needs fewer steps
        what = f"{name}, for T = {t}, S = {s} and m = 2, n = 4,"
        _same(found[name], expected[name], what, "key width")
    inputs, expected = _key_gradients(rng, t, s)
    same_in_blocks(yours, inputs, (0.7, 2, 4), expected, _AXES, {"T": 2, "S": 4})


key_gradients_in_blocks.case("one block of keys", _same_key_gradients, (6, 4))
key_gradients_in_blocks.case("all tiles of queries and keys inside", _same_key_gradients, (6, 12))
key_gradients_in_blocks.case(
    "tiles of queries and keys beyond the edge", _same_key_gradients,
    (5, 7), (2, 9), (9, 3), weight=2, hidden=True,
)  # fmt: skip


@task(chapter=12, difficulty=2, minutes=20, hints=(
    "Count one block first: its matrices, their biases, its two layer norms. A product of (B·T, a) "
    "and (a, b) takes 2·B·T·a·b flops. In which two products is there no parameter?",
    "A block has four matrices (M, M) and two with 4·M² numbers, and 13·M other numbers. "
    "Forward, each number of these matrices and of the head takes part in one multiplication and "
    "one addition for each token; the tables take part in no product. Then add Q Kᵀ and the "
    "weights times V: for all heads of a sequence together, each takes 2·T·T·M flops. The backward "
    "of y = a b has two products as large.",
    "flops = 3 * (2 * B * T * (layers * 12 * M**2 + M * vocabulary) + layers * 4 * B * T * T * M). "
    "The state is 4 arrays as large as the parameters. Adam reads all 4 and writes all but the "
    "gradients: 7 in total. The attention weights of a block are (B, H, T, T).",
))  # fmt: skip
def step_costs(vocabulary, layers, B, T, M, H):
    """What a step of training a GPT takes, in float32, with Adam.

    B, T, M, H  numbers of sequences, of tokens in each, of features, and of heads
    The model consists of
        two tables: M numbers for each token of the vocabulary, and for each of T positions
        blocks, `layers` of them, each with
            attention: W^Q, W^K, W^V and W^O, (M, M) for all heads together, and four biases (M,)
            a perceptron: matrices (M, 4·M) and (4·M, M), with biases (4·M,) and (M,)
            two layer norms, each with a factor and a shift for each of M features
        one more layer norm, and the head, a matrix (M, vocabulary) without a bias
    Returns
        parameters  the number of all learned numbers
        flops       of all matrix products, forward and backward; a multiplication and an addition
                    are two. Scores and weights are computed for all pairs of T queries and T keys,
                    hidden or not
        state       bytes of the parameters, their gradients, and Adam's two moments
        update      bytes that Adam's update moves: it reads all four arrays once, and writes
                    once those that it changes. The gradients stay as they are
        kept        bytes of the attention weights of all blocks, which the backward needs
    """
    # BEGIN SOLUTION: return parameters, flops, state, update, kept
    matrices, head = layers * 12 * M**2, M * vocabulary
    others = layers * 13 * M + 2 * M
    parameters = (vocabulary + T) * M + matrices + others + head
    attention = layers * 4 * B * T * T * M
    flops = 3 * (2 * B * T * (matrices + head) + attention)
    size = 4 * parameters
    return parameters, flops, 4 * size, 7 * size, 4 * layers * B * H * T * T
    # END SOLUTION


_MODELS = (5, 2, 3, 7, 6, 2), (65, 4, 8, 64, 96, 6)


def _same_cost(yours, rng, name):
    names = ["parameters", "flops", "state", "update", "kept"]
    vocabulary, layers, b, t, h, d = map(int, rng.integers(2, 12, size=6))
    models = *_MODELS, (vocabulary, layers, b, t, h * d, h)
    found = np.array([named(yours(*model), names)[name] for model in models])
    expected = [getattr(_right(*model), name) for model in models]
    mistakes = zip(*(_wrong(*model)[name] for model in models), strict=True)
    guess = ""
    for mistake in mistakes:  # (number, text) for each model
        numbers = [number for number, _ in mistake]
        if not guess and list(found) == numbers:
            guess = mistake[0][1]
    first, second, third = models
    what = f"{name} of step_costs{first}, {second} and {third}"
    same(found, expected, what, "model", guess=guess)


def _right(vocabulary, layers, B, T, M, H):
    return gpt_step(vocabulary, layers, B=B, T=T, M=M, H=H)


def _wrong(vocabulary, layers, B, T, M, H):
    """Wrong values of each result, and the mistakes that give them."""
    right = _right(vocabulary, layers, B, T, M, H)
    p, f, kept = right.parameters, right.flops, right.kept
    pairs, head = 12 * layers * B * T * T * M, 6 * B * T * M * vocabulary
    narrow, attention, array = layers * M, layers * (M * M + M), 4 * p
    in_bytes = "these are numbers, not bytes: a number in float32 has 4 bytes"
    return {
        "parameters": [
            (p - 9 * narrow, "the biases are missing, 4·M in attention and 5·M in a perceptron"),
            (p - 4 * narrow, "the layer norms of the blocks are missing, 4·M numbers in each"),
            (
                p - 4 * narrow - 2 * M,
                "the layer norms are missing, two in a block, one at the end",
            ),
            (p - 2 * narrow - M, "a layer norm has a factor and a shift: 2·M numbers"),
            (p - 2 * M, "the layer norm at the end is missing, 2·M numbers"),
            (
                p - 13 * narrow - 2 * M,
                "biases and layer norms are missing, 13·M numbers in a block",
            ),
            (p + 4 * (H - 1) * attention, "attention is counted H times: (M, M) is for all heads"),
            (p - narrow * (6 * M + 3), "the perceptron is too narrow: (M, 4·M) and (4·M, M)"),
            (p - attention, "one of the four matrices of attention is missing: W^O, perhaps"),
            (p - T * M, "the table of positions is missing, T·M numbers"),
            (p - M * vocabulary, "the head is missing, or the table of tokens: each is a matrix"),
        ],
        "flops": [
            (f // 3, "this is the forward alone: add two products for the backward of each"),
            (2 * f // 3, "the backward takes twice the flops of the forward: together three times"),
            (f // 2, "a multiplication and an addition are two flops"),
            (
                f - pairs,
                "the products without parameters are missing: Q Kᵀ and the weights times V",
            ),
            (f - pairs // 2, "one product of attention is missing: Q Kᵀ or the weights times V"),
            (
                f - pairs + pairs // (2 * T) * (T + 1),
                "hidden pairs are left out: count T·T of them",
            ),
            (f - pairs + pairs // T, "each query meets T keys: attention has T·T pairs, not T"),
            (f + (H - 1) * pairs, "attention is counted H times: a head is only M/H wide"),
            (f - head, "the product with the head is missing: (B·T, M) times (M, vocabulary)"),
            (6 * B * T * p, "not every parameter is in a product, and two products have none"),
            (6 * B * T * p + pairs, "not every parameter is in a product: tables are looked up"),
            (f // B, "these are the flops of one sequence: there are B"),
        ],
        "state": [
            (2 * array, "the moments are missing: Adam keeps two numbers for each parameter"),
            (3 * array, "three arrays are counted: parameters, gradients and two moments are four"),
            (4 * p, in_bytes),
        ],
        "update": [
            (4 * array, "Adam also writes: the parameters and both moments change"),
            (8 * array, "Adam does not write the gradients: it reads four arrays, writes three"),
            (5 * array, "the moments are written, too: a step changes them and the parameters"),
            (3 * array, "one direction is missing: Adam reads four arrays and writes three"),
            (7 * p, in_bytes),
        ],
        "kept": [
            (kept // layers, "these are the attention weights of one block: each keeps its own"),
            (kept // H, "each head has attention weights of its own: (B, H, T, T)"),
            (kept // B, "each sequence has attention weights of its own: (B, H, T, T)"),
            (2 * layers * B * H * T * (T + 1), "hidden pairs are left out: count T·T of them"),
            (kept // 4, in_bytes),
        ],
    }


step_costs.case("the number of parameters", _same_cost, ("parameters",))
step_costs.case("flops of the matrix products", _same_cost, ("flops",), weight=2)
step_costs.case("bytes of parameters, gradients and moments", _same_cost, ("state",))
step_costs.case("bytes that the update moves", _same_cost, ("update",))
step_costs.case("bytes of attention weights", _same_cost, ("kept",))
