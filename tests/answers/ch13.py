"""Chapter 13: many machines."""

# fmt: off
from . import right, wrong

START = '''
def sum_over_ranks(xs):
    from minimha.parallel import run

    def on_rank(comm):
        x = xs[comm.rank]
'''
END = '''
    return run(on_rank, len(xs), timeout=1)
'''
everyone = right("sum_over_ranks", START + '''
        for other in range(comm.size):
            if other != comm.rank:
                comm.send(x, other)
        received = [x if r == comm.rank else comm.recv(r) for r in range(comm.size)]
        return sum(received)
''' + END)
right("sum_over_ranks", START + '''
        # a chain to the last rank and back
        total = x.copy()
        if comm.rank > 0:
            total += comm.recv(comm.rank - 1)
        if comm.rank < comm.size - 1:
            comm.send(total, comm.rank + 1)
            total = comm.recv(comm.rank + 1)
        if comm.rank > 0:
            comm.send(total, comm.rank - 1)
        return total
''' + END)
circle = right("sum_over_ranks", START + '''
        acc, moving = x.copy(), x
        for step in range(1, comm.size):
            comm.send(moving, (comm.rank + 1) % comm.size)
            moving = comm.recv((comm.rank + comm.size - 1) % comm.size)
            acc += moving
        return acc
''' + END)
right("sum_over_ranks", START + '''
        if comm.rank == 0:
            y = x + sum(comm.recv(r) for r in range(1, comm.size))
            for r in range(1, comm.size):
                comm.send(y, r)
            return y
        comm.send(x, 0)
        return comm.recv(0)
''' + END)
wrong("sum_over_ranks", "own array missing", "own", everyone, "x if r == comm.rank else comm.recv(r)", "comm.recv(r) if r != comm.rank else 0 * x")
wrong("sum_over_ranks", "one step too many", "one step too many", circle, "range(1, comm.size)", "range(comm.size)")
wrong("sum_over_ranks", "one step too few", "one step too few", circle, "range(1, comm.size)", "range(1, comm.size - 1)")
wrong("sum_over_ranks", "the sum travels", "sums travel", circle, "comm.send(moving", "comm.send(acc")
wrong("sum_over_ranks", "the own array in every step", "own array in every step", circle, "comm.send(moving", "comm.send(x")
wrong("sum_over_ranks", "the mean", "mean", everyone, "sum(received)", "sum(received) / comm.size")
wrong("sum_over_ranks", "waits for the wrong neighbour", r"waits for rank \d", circle, "comm.rank + comm.size - 1", "comm.rank + 1")
wrong("sum_over_ranks", "a message too many", "never received", circle, "        return acc", "        comm.send(x, (comm.rank + 1) % comm.size)\n        return acc")
wrong("sum_over_ranks", "only rank 0 has the sum", "return missing|None", START + '''
        if comm.rank == 0:
            return x + sum(comm.recv(r) for r in range(1, comm.size))
        comm.send(x, 0)
''' + END)

SQUARES = '''
def squares_over_ranks(*xs):
    from minimha.parallel import run

    def forward(comm):
        x = xs[comm.rank]
        return comm.all_reduce(x * x)

    def pullback(*dys):
        def backward(comm):
            x, dy = xs[comm.rank], dys[comm.rank]
            return GRADIENT

        return tuple(run(backward, len(xs), timeout=1))

    return tuple(run(forward, len(xs), timeout=1)), pullback
'''
right("squares_over_ranks", SQUARES.replace("GRADIENT", "comm.all_reduce(dy) * x * 2"))
right("squares_over_ranks", SQUARES.replace("GRADIENT", "2 * x * sum(dys)"))
for mistake, words, gradient in (
    ("no all-reduce", "all-reduce was forgotten", "2 * dy * x"),
    ("counted once per rank", "once per rank", "comm.size * 2 * x * comm.all_reduce(dy)"),
    ("x inside the sum", "inside the sum", "2 * comm.all_reduce(x * dy)"),
    ("the mean", "average", "2 * x * comm.all_reduce(dy) / comm.size"),
    ("no derivative of the square", "derivative of x · x", "comm.all_reduce(dy)"),
    ("x summed", "x is summed", "2 * comm.all_reduce(x) * comm.all_reduce(dy)"),
):
    wrong("squares_over_ranks", mistake, words, SQUARES, "GRADIENT", gradient)

HEADS = '''
def head_parallel(x, w_q, w_k, w_v, w_o, b_o, num_heads, ranks):
    from minimha.parallel import parts, run

    def on_rank(comm):
        own = parts(num_heads, comm.size)[comm.rank]
        D = len(w_o) // num_heads
        a, b = own.start * D, own.stop * D
        y = attention_of_heads(x, w_q[:, a:b], w_k[:, a:b], w_v[:, a:b], w_o[a:b], (b - a) // D)
        y = comm.all_reduce(y)
        return y + b_o

    return run(on_rank, ranks, timeout=1)
'''
right("head_parallel", HEADS)
right("head_parallel", '''
def head_parallel(x, w_q, w_k, w_v, w_o, b_o, num_heads, ranks):
    from minimha.parallel import parts, run

    def on_rank(comm):
        own = parts(num_heads, comm.size)[comm.rank]
        per_head = [np.split(w, num_heads, axis=1) for w in (w_q, w_k, w_v)]
        rows = np.split(w_o, num_heads)
        out = 0
        for h in range(num_heads)[own]:
            out = out + attention_of_heads(x, *(w[h] for w in per_head), rows[h], 1)
        if comm.rank == 0:
            out = out + b_o
        return comm.all_reduce(out)

    return run(on_rank, ranks, timeout=1)
''')
wrong("head_parallel", "no all-reduce", "all-reduce was forgotten", HEADS, "        y = comm.all_reduce(y)\n", "")
wrong("head_parallel", "the bias on every rank", "once per rank", HEADS, "comm.all_reduce(y)\n        return y + b_o", "comm.all_reduce(y + b_o)\n        return y")
wrong("head_parallel", "no bias", "bias b_o is missing", HEADS, "y + b_o", "y")
wrong("head_parallel", "heads for columns", "each head has D columns", HEADS, "own.start * D, own.stop * D", "own.start, own.stop", "(b - a) // D", "b - a")
wrong("head_parallel", "the mean of the ranks", "averaged", HEADS, "comm.all_reduce(y)", "comm.all_reduce(y) / comm.size")
wrong("head_parallel", "columns of w_o", "w_o is divided by columns", HEADS, "w_o[a:b]", "w_o[:, a:b]")
wrong("head_parallel", "all heads on every rank", "all heads", HEADS, "a, b = own.start * D, own.stop * D", "a, b = 0, num_heads * D")
wrong("head_parallel", "everything on every rank", "all heads", HEADS, "a, b = own.start * D, own.stop * D", "a, b = 0, num_heads * D", "(b - a) // D", "num_heads")
wrong("head_parallel", "one head for each rank", "different numbers of heads", HEADS, "own.start * D, own.stop * D", "comm.rank * D, (comm.rank + 1) * D")

RING = '''
def ring_of_ranks(queries, keys, values):
    from minimha.parallel import run

    def on_rank(comm):
        query, key, value = queries[comm.rank], keys[comm.rank], values[comm.rank]
        n = len(query)
        outs, lses = [], []
        for hop in range(comm.size):
            source = (comm.rank - hop) % comm.size
            out, lse = attend(query, key, value, n * (comm.rank - source))
            outs.append(out)
            lses.append(lse)
            if hop < comm.size - 1:
                comm.send(key, (comm.rank + 1) % comm.size)
                comm.send(value, (comm.rank + 1) % comm.size)
                key = comm.recv((comm.rank - 1) % comm.size)
                value = comm.recv((comm.rank - 1) % comm.size)
        total = np.logaddexp.reduce(lses)
        return sum(np.exp(lse - total)[:, None] * out for out, lse in zip(outs, lses))

    return run(on_rank, len(queries), timeout=1)
'''
right("ring_of_ranks", RING)
right("ring_of_ranks", '''
def ring_of_ranks(queries, keys, values):
    from minimha.parallel import run

    def on_rank(comm):
        query, key, value = queries[comm.rank], keys[comm.rank], values[comm.rank]
        n, source = len(query), comm.rank
        out, lse = attend(query, key, value, 0)
        for _ in range(comm.size - 1):
            comm.send(np.concatenate([key, value], axis=1), (comm.rank + 1) % comm.size)
            both = comm.recv((comm.rank - 1) % comm.size)
            key, value = both[:, : key.shape[1]], both[:, key.shape[1] :]
            source = (source - 1) % comm.size
            o, l = attend(query, key, value, (comm.rank - source) * n)
            m = np.maximum(lse, l)
            a, b = np.exp(lse - m)[:, None], np.exp(l - m)[:, None]
            out = (a * out + b * o) / (a + b)
            lse = m + np.log(a + b)[:, 0]
        return out

    return run(on_rank, len(queries), timeout=1)
''')
wrong("ring_of_ranks", "parts added", "without weights", RING, "np.exp(lse - total)[:, None] * out", "out")
wrong("ring_of_ranks", "weights exchanged", "weights are swapped", """
def ring_of_ranks(queries, keys, values):
    from minimha.parallel import run

    def on_rank(comm):
        q, k, v = queries[comm.rank], keys[comm.rank], values[comm.rank]
        out, lse = attend(q, k, v, 0)
        for hop in range(1, comm.size):
            comm.send(k, (comm.rank + 1) % comm.size)
            comm.send(v, (comm.rank + 1) % comm.size)
            k, v = (comm.recv((comm.rank - 1) % comm.size) for _ in range(2))
            o, l = attend(q, k, v, (comm.rank - (comm.rank - hop) % comm.size) * len(q))
            e, f = np.exp(lse)[:, None], np.exp(l)[:, None]
            out, lse = (f * out + e * o) / (e + f), np.logaddexp(lse, l)
        return out

    return run(on_rank, len(queries), timeout=1)
""")
wrong("ring_of_ranks", "mask not shifted", "not shifted", RING, "n * (comm.rank - source)", "0")
wrong("ring_of_ranks", "offset in ranks", "counts ranks", RING, "n * (comm.rank - source)", "comm.rank - source")
wrong("ring_of_ranks", "offset with the wrong sign", "wrong sign", RING, "comm.rank - source)", "source - comm.rank)")
wrong("ring_of_ranks", "the wrong source", "another rank", RING, "(comm.rank - hop)", "(comm.rank + hop)")
wrong("ring_of_ranks", "one hop too few", "one hop too few", RING, "for hop in range(comm.size)", "for hop in range(comm.size - 1)")
wrong("ring_of_ranks", "weights that do not sum to one", "not divided|sum to one", RING, "np.exp(lse - total)[:, None]", "np.exp(lse)[:, None]")
wrong("ring_of_ranks", "keys alone travel", r"waits for rank \d", RING, "                comm.send(value, (comm.rank + 1) % comm.size)\n", "")

wrong("sum_over_ranks", "receives before it sends", r"waits for rank", circle, "comm.send(moving, (comm.rank + 1) % comm.size)\n            moving = comm", "old = moving\n            moving = comm", "acc += moving", "comm.send(old, (comm.rank + 1) % comm.size)\n            acc += moving")
wrong("sum_over_ranks", "the sum and the message are one array", r"in place|copy|same array", circle, "acc, moving = x.copy(), x", "acc = moving = x")
wrong("sum_over_ranks", "sends to the next rank alone", r"waits for rank", everyone, "if other != comm.rank:", "if other == comm.rank + 1:")
for mistake, words, gradient in (
    ("no x", r"x is missing|times x|derivative|factor", "2 * comm.all_reduce(dy)"),
    ("no 2", r"\b2\b|1/2|half|derivative", "x * comm.all_reduce(dy)"),
    ("gathered", r"sum|gather", "2 * x * comm.all_gather(dy, 0)"),
):
    wrong("squares_over_ranks", mistake, words, SQUARES, "GRADIENT", gradient)
wrong("head_parallel", "all heads in the columns of some", r"num_heads|number of heads|own|D columns", HEADS, "(b - a) // D", "num_heads")
wrong("head_parallel", "all keys", r"w_k|columns|all (the )?heads|own|num_heads", HEADS, "w_k[:, a:b]", "w_k")
wrong("head_parallel", "the last head forgotten", r"last head|stop|missing|off by one", HEADS, "own.stop * D", "(own.stop - 1) * D")
wrong("ring_of_ranks", "the ring turns the other way", r"direction|another rank|left|source|other way|right neighbour", RING, "(comm.rank + 1)", "(comm.rank TO 1)", "comm.recv((comm.rank - 1)", "comm.recv((comm.rank + 1)", "(comm.rank TO 1)", "(comm.rank - 1)")
wrong("ring_of_ranks", "the mean of the outputs", r"mean|average|without weights|weights", RING, "np.exp(lse - total)[:, None] * out", "out / comm.size")
wrong("ring_of_ranks", "nothing is hidden", r"causal|later|mask|future|shift|offset", RING, "n * (comm.rank - source)", "n * comm.size")
wrong("sum_over_ranks", "nothing sent", r"waits for rank", circle, "comm.send(moving, (comm.rank + 1) % comm.size)", "pass")
wrong("sum_over_ranks", "no neighbour after the last rank", r"there is no rank 2", circle, "(comm.rank + 1) % comm.size", "comm.rank + 1")
wrong("sum_over_ranks", "at least one step", r"single|one rank|too many|\[0\]|itself|twice|factor", circle, "range(1, comm.size)", "range(max(1, comm.size - 1))")
wrong("sum_over_ranks", "one array", r"a list with the results of 2 ranks", circle, "timeout=1)", "timeout=1)[0]")
wrong("squares_over_ranks", "right for two ranks", r"once per rank|factor|comm\.size|times the right", SQUARES, "GRADIENT", "comm.size * x * comm.all_reduce(dy)")
wrong("head_parallel", "gathered, not summed", r"wrong shape|gather", HEADS, "comm.all_reduce(y)", "comm.all_gather(y, 0)")
wrong("ring_of_ranks", "right for two ranks", r"another rank|source|shifted|offset", RING, "(comm.rank - hop) % comm.size", "(comm.rank + hop) % comm.size")
