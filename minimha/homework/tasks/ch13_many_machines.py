"""Tasks of chapter 13: several ranks, which run as threads of one process."""

import numpy as np

from ..checks.comparisons import same
from ..checks.ranks import WORLDS, of_rank, same_on_ranks
from ..checks.task import task


@task(chapter=13, difficulty=1, minutes=15, hints=(
    "Imagine the ranks in a circle. Each passes an array on to its right neighbour and gets one "
    "from its left neighbour. How often must they do so until every array has reached every rank?",
    "Start with this rank's array: total = x, received = x. In each of size − 1 steps, send the "
    "array received to the right, receive the next one from the left, and add it to total.",
    "The neighbours are right = (comm.rank + 1) % comm.size and left = (comm.rank - 1) % "
    "comm.size. A step is comm.send(received, right); received = comm.recv(left); total = total "
    "+ received.",
))  # fmt: skip
def sum_over_ranks(xs):
    """all_reduce, made from send and recv: every rank gets the sum of the arrays of all ranks.

    xs  a list with the array of each rank, all of one shape. Rank r may use only xs[r]; it
        receives the others as messages
    Write what one rank does. comm.rank is its number and comm.size the number of ranks. Each rank
    sends arrays to others by comm.send(x, to), which returns at once, and comm.recv(source) waits
    for the next array from a rank. Use neither comm.all_reduce nor any other collective.
    Returns a list with the result of each rank: the sum of all xs.
    """
    from minimha.parallel import run

    def on_rank(comm):
        x = xs[comm.rank]
        # BEGIN SOLUTION: return the sum over all ranks
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        total = received = x
        for _ in range(comm.size - 1):
            comm.send(received, right)
            received = comm.recv(left)
            total = total + received
        return total
        # END SOLUTION

    return run(on_rank, len(xs))


def _of_each_rank(results, ranks):
    if not isinstance(results, list | tuple) or len(results) != ranks:
        raise AssertionError(f"it should return a list with the results of {ranks} ranks")
    return results


def _same_sum(yours, rng, ranks):
    xs = [rng.standard_normal((2, 3)) for _ in range(ranks)]
    for rank, y in enumerate(_of_each_rank(yours(xs), ranks)):
        same(y, sum(xs), f"the result of rank {rank} of {ranks}", "row column")
    worlds = [[rng.standard_normal((2, 3)) for _ in range(ranks)] for _ in range(WORLDS)]
    expected = [[sum(xs)] * ranks for xs in worlds]
    messages = same_on_ranks(yours, lambda f, xs: f(xs), worlds, of_rank, expected, rng, "xs")
    _require_no_collectives(messages)


def _require_no_collectives(messages):
    for _, _, text in messages:
        if text != "send and recv":
            collective = text.split(": ")[-1].split()[0]  # without its axes, dtype and shape
            raise AssertionError(f"use only comm.send and comm.recv, not {collective}")


sum_over_ranks.case("two ranks", _same_sum, (2,))
sum_over_ranks.case("three and more ranks", _same_sum, (3,), (4,), (5,), weight=2)
sum_over_ranks.case("one rank, and two", _same_sum, (1,), (2,), hidden=True)


@task(chapter=13, difficulty=2, minutes=15, hints=(
    "Ranks differentiate the sum of their losses. x of rank r is part of the y of every rank, so "
    "its gradient has a contribution from the dy of every rank.",
    "For one rank, y = x · x has the gradient dx = 2 · x · dy. Now the sum of the dy of all ranks "
    "takes the place of dy. comm.all_reduce sums over ranks.",
    "return 2 * x * comm.all_reduce(dy)",
))  # fmt: skip
def squares_over_ranks(*xs):
    """The sum over ranks of x · x, entry by entry, on every rank; and its pullback.

    xs  the array of each rank, all of one shape
    Returns (ys, pullback): ys has the result of each rank, y = Σ xᵣ · xᵣ, the same on all of them.
    The pullback takes the dy of each rank, which differ, and returns the dx of each rank.
    Write what one rank does in the pullback. Rank r may use only xs[r] and dys[r]. dx is the
    gradient of the sum of the losses of all ranks.
    """
    from minimha.parallel import run

    def forward(comm):
        x = xs[comm.rank]
        return comm.all_reduce(x * x)

    def pullback(*dys):
        def backward(comm):
            x, dy = xs[comm.rank], dys[comm.rank]
            # BEGIN SOLUTION: return dx
            return 2 * x * comm.all_reduce(dy)
            # END SOLUTION

        return tuple(run(backward, len(xs)))

    return tuple(run(forward, len(xs))), pullback


@squares_over_ranks.check
def two_ranks_worked_by_hand(yours, rng):
    ys, pullback = yours(np.array([3.0]), np.array([5.0]))
    same(np.stack(ys), np.array([[34.0], [34.0]]), "y of both ranks")
    found = _of_each_rank(pullback(np.array([1.0]), np.array([10.0])), 2)
    for rank, expected in enumerate(([66.0], [110.0])):
        name = f"dx of rank {rank}, for dy = 1 on rank 0 and dy = 10 on rank 1,"
        same(found[rank], np.array(expected), name)
    _same_gradient_on_ranks(yours, rng, 2)


@squares_over_ranks.check(weight=2)
def the_gradient_on_three_ranks(yours, rng):
    xs, dys = ([rng.standard_normal((2, 3)) for _ in range(3)] for _ in range(2))
    ys, pullback = yours(*xs)
    dxs = _of_each_rank(pullback(*dys), 3)
    for rank, (x, y, dx) in enumerate(zip(xs, ys, dxs, strict=True)):
        same(y, sum(x * x for x in xs), f"y of rank {rank} of 3", "row column")
        same(dx, 2 * x * sum(dys), f"dx of rank {rank} of 3", "row column")
    _same_gradient_on_ranks(yours, rng, 3)


def _same_gradient_on_ranks(yours, rng, ranks):
    xs = rng.standard_normal((ranks, 2, 3))  # one y for all, so that it does not tell worlds apart
    worlds = [(xs, rng.standard_normal(xs.shape)) for _ in range(WORLDS)]

    def gradients(f, world):
        xs, dys = world
        return f(*xs)[1](*dys)

    expected = [2 * xs * sum(dys) for xs, dys in worlds]
    same_on_ranks(yours, gradients, worlds, _each_of_rank, expected, rng, "xs or dys")


def _each_of_rank(rank, world):
    return [of_rank(rank, xs) for xs in world]


def attention_of_heads(x, w_q, w_k, w_v, w_o, num_heads):
    """Multi-head self-attention without biases: x (T, M) -> (T, M).

    w_q, w_k and w_v are (M, num_heads · D) and w_o (num_heads · D, M), for any number of heads.
    """

    def split(y):
        return y.reshape(len(y), num_heads, -1).swapaxes(0, 1)

    q, k, v = (split(x @ w) for w in (w_q, w_k, w_v))
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    heads = (weights @ v).swapaxes(0, 1)
    return heads.reshape(len(x), -1) @ w_o


@task(chapter=13, difficulty=2, minutes=20, given=(attention_of_heads,), hints=(
    "Heads do not need each other. The output is the sum over heads of headₕ W^Oₕ, so each rank "
    "can compute some of the heads, and the ranks add up their results.",
    "If rank r has the heads from first up to last, it needs the columns from first · D up to "
    "last · D of w_q, w_k and w_v, and the same rows of w_o. comm.all_reduce adds up the outputs. "
    "The bias belongs to the output, not to a head: it is added once.",
    "d = w_q.shape[1] // num_heads; columns = slice(own.start * d, own.stop * d); out = "
    "attention_of_heads(x, w_q[:, columns], w_k[:, columns], w_v[:, columns], w_o[columns], "
    "own.stop - own.start); return comm.all_reduce(out) + b_o",
))  # fmt: skip
def head_parallel(x, w_q, w_k, w_v, w_o, b_o, num_heads, ranks):
    """Multi-head self-attention whose heads are divided among ranks.

    x              (T, M), the same on every rank
    w_q, w_k, w_v  (M, H·D), with the columns of the heads side by side
    w_o            (H·D, M)
    b_o            (M,), added to the output
    num_heads      H, at least the number of ranks, and not always a multiple of it
    Write what one rank does: `own` is the slice of its heads, such as slice(2, 4). Use only the
    weights of these heads. attention_of_heads computes attention for any number of heads, and
    comm.all_reduce sums over ranks.
    Returns a list with the result of each rank: the whole output, (T, M).
    """
    from minimha.parallel import parts, run

    def on_rank(comm):
        own = parts(num_heads, comm.size)[comm.rank]
        # BEGIN SOLUTION: return the whole output
        d = w_q.shape[1] // num_heads
        columns = slice(own.start * d, own.stop * d)
        out = attention_of_heads(
            x, w_q[:, columns], w_k[:, columns], w_v[:, columns], w_o[columns],
            own.stop - own.start,
        )  # fmt: skip
        return comm.all_reduce(out) + b_o
        # END SOLUTION

    return run(on_rank, ranks)


def _same_output(yours, rng, num_heads, ranks):
    d, m = 3, 5
    shapes = (4, m), *[(m, num_heads * d)] * 3, (num_heads * d, m)
    x, *weights = (rng.standard_normal(shape) for shape in shapes)
    b_o = rng.standard_normal(m)
    expected = attention_of_heads(x, *weights, num_heads) + b_o
    results = yours(x, *weights, b_o, num_heads, ranks)
    for rank, y in enumerate(_of_each_rank(results, ranks)):
        name = f"the output on rank {rank} of {ranks}, for {num_heads} heads,"
        same(y, expected, name, "T M")
    worlds = [[rng.standard_normal(shape) for shape in shapes[1:]] for _ in range(WORLDS)]

    def own_heads(rank, weights):
        from minimha.parallel import parts

        own = np.zeros(num_heads * d)
        heads = parts(num_heads, ranks)[rank]
        own[heads.start * d : heads.stop * d] = 1
        *w, w_o = weights
        return *(own * x for x in w), own[:, None] * w_o

    same_on_ranks(
        yours, lambda f, weights: f(x, *weights, b_o, num_heads, ranks), worlds, own_heads,
        [[attention_of_heads(x, *weights, num_heads) + b_o] * ranks for weights in worlds],
        rng, "the weights of heads",
    )  # fmt: skip


head_parallel.case("one head for each of two ranks", _same_output, (2, 2))
head_parallel.case(
    "heads that ranks cannot divide evenly", _same_output, (4, 2), (3, 2), (5, 3), weight=2
)


def attend(query, key, value, offset):
    """Causal attention to some of the keys: out (T, Dv) and lse (T,), the logarithm of the sum of
    exponentials. offset is the position of the first query minus that of the first key; a query
    that sees none of the keys has out 0 and lse −∞.
    """
    scores = query @ key.T / np.sqrt(query.shape[-1])
    t, s = np.indices(scores.shape)
    scores = np.where(s <= t + offset, scores, -np.inf)
    largest = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isinf(largest), 0, largest))
    total = e.sum(axis=-1, keepdims=True)
    seen = np.where(total == 0, 1, total)
    return e / seen @ value, np.where(total == 0, -np.inf, largest + np.log(seen))[:, 0]


@task(chapter=13, difficulty=3, minutes=30, given=(attend,), hints=(
    "Keys and values go round the circle of ranks, as the arrays did in sum_over_ranks. After hop "
    "steps, a rank holds the keys of the rank that is hop places to its left.",
    "Each rank starts with attend on its own queries, keys and values, with offset 0. Each block "
    "received gives more_out and more_lse; its offset is (comm.rank − source) · n for n positions "
    "on each rank. Both parts have their own denominators, e^lse and e^more_lse: the parts count "
    "in this ratio.",
    "source = (comm.rank - hop) % comm.size. The merged lse is new = np.logaddexp(lse, more_lse), "
    "and the merged output is np.exp(lse - new)[:, None] * out + np.exp(more_lse - new)[:, None] "
    "* more_out.",
))  # fmt: skip
def ring_of_ranks(queries, keys, values):
    """Ring attention: causal attention of a sequence whose positions are divided among ranks.

    queries  a list with the queries (n, D) of each rank: rank r has the positions from r · n on
    keys     a list with its keys (n, D)
    values   a list with its values (n, Dv)
    Write what one rank does. It has its own query, key and value. The keys and values of other
    ranks come from its left neighbour, one rank's at a time: use comm.send and comm.recv. attend
    computes attention to some of the keys.
    Returns a list with the output of each rank, (n, Dv): for rank r, the rows from r · n on of
    causal attention of the whole sequence.
    """
    from minimha.parallel import run

    def on_rank(comm):
        query, key, value = queries[comm.rank], keys[comm.rank], values[comm.rank]
        right, left, n = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, len(query)
        # BEGIN SOLUTION: return the output of this rank's queries
        out, lse = attend(query, key, value, 0)
        for hop in range(1, comm.size):
            comm.send(key, right)
            comm.send(value, right)
            key, value = comm.recv(left), comm.recv(left)
            source = (comm.rank - hop) % comm.size
            more_out, more_lse = attend(query, key, value, (comm.rank - source) * n)
            new = np.logaddexp(lse, more_lse)
            out = np.exp(lse - new)[:, None] * out + np.exp(more_lse - new)[:, None] * more_out
            lse = new
        return out
        # END SOLUTION

    return run(on_rank, len(queries))


def _same_sequence(yours, rng, ranks, n):
    q, k, v = (rng.standard_normal((ranks * n, width)) for width in (3, 3, 2))
    expected, _ = attend(q, k, v, 0)
    results = yours(*(np.split(x, ranks) for x in (q, k, v)))
    for rank, out in enumerate(_of_each_rank(results, ranks)):
        name = f"the output of rank {rank} of {ranks}, with {n} positions each,"
        same(out, expected[rank * n : (rank + 1) * n], name, "query column")
    worlds = [
        [rng.standard_normal((ranks, n, width)) for width in (3, 3, 2)] for _ in range(WORLDS)
    ]
    messages = same_on_ranks(
        yours, lambda f, world: f(*world), worlds, _each_of_rank,
        [np.split(attend(*map(np.concatenate, world), 0)[0], ranks) for world in worlds],
        rng, "queries, keys or values",
    )  # fmt: skip
    _require_no_collectives(messages)
    for source, to, _ in messages:
        if (to - source) % ranks not in (1, ranks - 1):
            raise AssertionError(
                f"rank {source} of {ranks} sent to rank {to}: keys and values go to a neighbour, "
                "and from there to the next"
            )


ring_of_ranks.case("a ring of two", _same_sequence, (2, 2))
ring_of_ranks.case("rings of three and four", _same_sequence, (3, 2), (4, 3), weight=2)
