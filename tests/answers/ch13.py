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
    return run(on_rank, len(xs))
'''

everyone, circle, *_ = right("sum_over_ranks", START + '''
        for other in range(comm.size):
            if other != comm.rank:
                comm.send(x, other)
        received = [x if r == comm.rank else comm.recv(r) for r in range(comm.size)]
        return sum(received)
''' + END, START + '''
        acc, moving = x.copy(), x
        for step in range(1, comm.size):
            comm.send(moving, (comm.rank + 1) % comm.size)
            moving = comm.recv((comm.rank + comm.size - 1) % comm.size)
            acc += moving
        return acc
''' + END, START + '''
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
''' + END, START + '''
        if comm.rank == 0:
            y = x + sum(comm.recv(r) for r in range(1, comm.size))
            for r in range(1, comm.size):
                comm.send(y, r)
            return y
        comm.send(x, 0)
        return comm.recv(0)
''' + END)
everyone.wrong("own array missing", "own", "x if r == comm.rank else comm.recv(r)", "comm.recv(r) if r != comm.rank else 0 * x")
circle.wrong("one step too many", "one step too many", "range(1, comm.size)", "range(comm.size)")
circle.wrong("one step too few", "one step too few", "range(1, comm.size)", "range(1, comm.size - 1)")
circle.wrong("the sum travels", "sums travel", "comm.send(moving", "comm.send(acc")
circle.wrong("the own array in every step", "own array in every step", "comm.send(moving", "comm.send(x")
everyone.wrong("the mean", "mean", "sum(received)", "sum(received) / comm.size")
circle.wrong("waits for the wrong neighbour", r"waits for rank \d", "comm.rank + comm.size - 1", "comm.rank + 1")
circle.wrong("a message too many", "never received", "        return acc", "        comm.send(x, (comm.rank + 1) % comm.size)\n        return acc")
wrong("sum_over_ranks", "only rank 0 has the sum", "return missing|None", START + '''
        if comm.rank == 0:
            return x + sum(comm.recv(r) for r in range(1, comm.size))
        comm.send(x, 0)
''' + END)

circle.wrong("receives before it sends", r"waits for rank", "comm.send(moving, (comm.rank + 1) % comm.size)\n            moving = comm", "old = moving\n            moving = comm", "acc += moving", "comm.send(old, (comm.rank + 1) % comm.size)\n            acc += moving")
circle.wrong("the sum and the message are one array", r"in place|copy|same array", "acc, moving = x.copy(), x", "acc = moving = x")
everyone.wrong("sends to the next rank alone", r"waits for rank", "if other != comm.rank:", "if other == comm.rank + 1:")
circle.wrong("nothing sent", r"waits for rank", "comm.send(moving, (comm.rank + 1) % comm.size)", "pass")
circle.wrong("no neighbour after the last rank", r"there is no rank 2", "(comm.rank + 1) % comm.size", "comm.rank + 1")
circle.wrong("at least one step", r"single|one rank|too many|\[0\]|itself|twice|factor", "range(1, comm.size)", "range(max(1, comm.size - 1))")
circle.wrong("one array", r"a list with the results of 2 ranks", "run(on_rank, len(xs))", "run(on_rank, len(xs))[0]")

right("sum_over_ranks", START + '''
        # a tree to rank 0: partners at the distances 1, 2, 4 …; then the same way back
        total, distance, children = x, 1, []
        while distance < comm.size:
            if comm.rank % (2 * distance):
                comm.send(total, comm.rank - distance)
                total = comm.recv(comm.rank - distance)
                break
            if comm.rank + distance < comm.size:
                total = total + comm.recv(comm.rank + distance)
                children.append(comm.rank + distance)
            distance *= 2
        for child in reversed(children):
            comm.send(total, child)
        return total
''' + END, START + '''
        # reduce-scatter, then all-gather: each rank adds up its own slice of the entries
        slices = np.array_split(x.ravel(), comm.size)
        others = [r for r in range(comm.size) if r != comm.rank]
        for r in others:
            comm.send(slices[r], r)
        mine = slices[comm.rank] + sum(comm.recv(r) for r in others)
        for r in others:
            comm.send(mine, r)
        whole = [mine if r == comm.rank else comm.recv(r) for r in range(comm.size)]
        return np.concatenate(whole).reshape(x.shape)
''' + END, '''
from minimha.parallel import run

def sum_over_ranks(xs):
    shape, count = np.shape(xs[0]), len(xs)
    box = np.zeros((count, *shape))

    def on_rank(comm, scale):
        # the number of the rank travels with the array; a rank keeps what arrives
        seen = {comm.rank: xs[comm.rank]}
        newest = comm.rank
        while len(seen) < count:
            comm.send(np.array([float(newest), *seen[newest].ravel()]), (comm.rank - 1) % count)
            message = comm.recv((comm.rank + 1) % count)
            newest = int(message[0])
            seen[newest] = message[1:].reshape(shape)
        return scale * sum(seen[r] for r in sorted(seen)) + box[comm.rank]

    return [0.5 * y for y in run(on_rank, count, 2)]
''')

wrong("sum_over_ranks", "the list is added up", r"reads xs of other ranks.*received nothing", '''
def sum_over_ranks(xs):
    return [sum(xs)] * len(xs)
''')
wrong("sum_over_ranks", "a collective", r"only comm.send and comm.recv, not all_reduce", START + '''
        return comm.all_reduce(x)
''' + END)

only_rank_0 = wrong("sum_over_ranks", "only rank 0 has the sum, the others their own arrays", "only rank 0 has the sum", START + '''
        if comm.rank == 0:
            return x + sum(comm.recv(r) for r in range(1, comm.size))
        comm.send(x, 0)
        return x
''' + END)
only_rank_0.wrong("only rank 0 has the sum, the others zeros", "only rank 0 has the sum", "        return x\n", "        return np.zeros_like(x)\n")
wrong("sum_over_ranks", "a chain without a way back", r"chain|back to the others", START + '''
        total = x.copy()
        if comm.rank > 0:
            total += comm.recv(comm.rank - 1)
        if comm.rank < comm.size - 1:
            comm.send(total, comm.rank + 1)
        return total
''' + END)
wrong("sum_over_ranks", "arrays of others read from the list", "reads xs of other ranks", START + '''
        total = x
        for hop in range(1, comm.size):
            total = total + xs[(comm.rank - hop) % comm.size]
        return total
''' + END)
everyone.wrong("one array after the other, not their sum", "wrong shape", "sum(received)", "np.concatenate(received)")
everyone.wrong("the sum of all entries", "wrong shape", "sum(received)", "sum(received).sum()")
circle.wrong("the last array received is returned", "an array is missing from the sum", "return acc", "return moving")
everyone.wrong("waits for itself", r"waits for rank 0", "x if r == comm.rank else comm.recv(r)", "comm.recv(r)")
circle.wrong("doubled in each step", "counted (several times|twice)", "for step in range(1, comm.size):", "for step in [2**k for k in range(comm.size.bit_length()) if 2**k < comm.size]:", "comm.send(moving, (comm.rank + 1)", "comm.send(acc.copy(), (comm.rank + step)", "comm.rank + comm.size - 1", "comm.rank - step")
circle.wrong("send without a receiver", "missing 1 required positional argument: 'to'", "comm.send(moving, (comm.rank + 1) % comm.size)", "comm.send(moving)")
wrong("sum_over_ranks", "gathered, then summed", r"only comm.send and comm.recv, not all_gather", START + '''
        return comm.all_gather(x[None]).sum(axis=0)
''' + END)

GRADIENT = "2 * x * comm.all_reduce(dy)"
SQUARES = '''
def squares_over_ranks(*xs):
    from minimha.parallel import run

    def forward(comm):
        x = xs[comm.rank]
        return comm.all_reduce(x * x)

    def pullback(*dys):
        def backward(comm):
            x, dy = xs[comm.rank], dys[comm.rank]
            return 2 * x * comm.all_reduce(dy)

        return tuple(run(backward, len(xs)))

    return tuple(run(forward, len(xs))), pullback
'''
squares, *_ = right("squares_over_ranks", SQUARES)
squares.wrong("the dy of other ranks are read", r"zeros|knows", GRADIENT, "2 * x * sum(dys)")
squares.wrong("no all-reduce", "all-reduce was forgotten", GRADIENT, "2 * dy * x")
squares.wrong("counted once per rank", "once per rank", GRADIENT, "comm.size * 2 * x * comm.all_reduce(dy)")
squares.wrong("x inside the sum", "inside the sum", GRADIENT, "2 * comm.all_reduce(x * dy)")
squares.wrong("the mean", "average", GRADIENT, "2 * x * comm.all_reduce(dy) / comm.size")
squares.wrong("no derivative of the square", "derivative of x · x", GRADIENT, "comm.all_reduce(dy)")
squares.wrong("x summed", "x is summed", GRADIENT, "2 * comm.all_reduce(x) * comm.all_reduce(dy)")
squares.wrong("no x", r"x is missing|times x|derivative|factor", GRADIENT, "2 * comm.all_reduce(dy)")
squares.wrong("no 2", r"\b2\b|1/2|half|derivative", GRADIENT, "x * comm.all_reduce(dy)")
squares.wrong("gathered", r"sum|gather", GRADIENT, "2 * x * comm.all_gather(dy, 0)")
squares.wrong("right for two ranks", r"once per rank|factor|comm\.size|times the right", GRADIENT, "comm.size * x * comm.all_reduce(dy)")

right("squares_over_ranks", SQUARES.replace(GRADIENT, "2 * x * comm.all_gather(dy[None]).sum(axis=0)"),
    SQUARES.replace(GRADIENT, "x * sum(2 * comm.broadcast(dy, root=r) for r in range(comm.size))"))

squares.wrong("the square in place of its derivative", "derivative of x · x", GRADIENT, "x * x * comm.all_reduce(dy)")
squares.wrong("x summed, dy not", "belongs to dy, not to x", GRADIENT, "2 * comm.all_reduce(x) * dy")

whole, *_ = right("head_parallel", '''
def head_parallel(x, w_q, w_k, w_v, w_o, b_o, num_heads, ranks):
    from minimha.parallel import parts, run

    def on_rank(comm):
        own = parts(num_heads, comm.size)[comm.rank]
        D = len(w_o) // num_heads
        a, b = own.start * D, own.stop * D
        y = attention_of_heads(x, w_q[:, a:b], w_k[:, a:b], w_v[:, a:b], w_o[a:b], (b - a) // D)
        y = comm.all_reduce(y)
        return y + b_o

    return run(on_rank, ranks)
''', '''
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

    return run(on_rank, ranks)
''')
whole.wrong("no all-reduce", "all-reduce was forgotten", "        y = comm.all_reduce(y)\n", "")
whole.wrong("the bias on every rank", "once per rank", "comm.all_reduce(y)\n        return y + b_o", "comm.all_reduce(y + b_o)\n        return y")
whole.wrong("no bias", "bias b_o is missing", "y + b_o", "y")
whole.wrong("heads for columns", "each head has D columns", "own.start * D, own.stop * D", "own.start, own.stop", "(b - a) // D", "b - a")
whole.wrong("the mean of the ranks", "averaged", "comm.all_reduce(y)", "comm.all_reduce(y) / comm.size")
whole.wrong("columns of w_o", "w_o is divided by columns", "w_o[a:b]", "w_o[:, a:b]")
whole.wrong("all heads on every rank", "all heads", "a, b = own.start * D, own.stop * D", "a, b = 0, num_heads * D")
whole.wrong("everything on every rank", "all heads", "a, b = own.start * D, own.stop * D", "a, b = 0, num_heads * D", "(b - a) // D", "num_heads")
whole.wrong("one head for each rank", "different numbers of heads", "own.start * D, own.stop * D", "comm.rank * D, (comm.rank + 1) * D")
whole.wrong("all heads in the columns of some", r"num_heads|number of heads|own|D columns", "(b - a) // D", "num_heads")
whole.wrong("all keys", r"w_k|columns|all (the )?heads|own|num_heads", "w_k[:, a:b]", "w_k")
whole.wrong("the last head forgotten", r"last head|stop|missing|off by one", "own.stop * D", "(own.stop - 1) * D")
whole.wrong("gathered, not summed", r"wrong shape|gather", "comm.all_reduce(y)", "comm.all_gather(y, 0)")

right("head_parallel", '''
from minimha.parallel import parts, run as start

def head_parallel(x, w_q, w_k, w_v, w_o, b_o, num_heads, ranks):
    m = x.shape[1]

    def on_rank(comm):
        own = parts(num_heads, comm.size)[comm.rank]
        q, k, v = (w.reshape(m, num_heads, -1)[:, own].reshape(m, -1) for w in (w_q, w_k, w_v))
        o = w_o.reshape(num_heads, -1, w_o.shape[1])[own].reshape(-1, w_o.shape[1])
        y = attention_of_heads(x, q, k, v, o, own.stop - own.start)
        return comm.all_gather(y[None], 0).sum(0)

    return [y + b_o for y in start(on_rank, ranks)]
''', '''
def head_parallel(x, w_q, w_k, w_v, w_o, b_o, num_heads, ranks):
    from minimha.parallel import parts, run

    def on_rank(comm):
        # the weights of all heads, of which others' values are multiplied by 0
        own = np.zeros(num_heads)
        own[parts(num_heads, comm.size)[comm.rank]] = 1
        mask = np.repeat(own, len(w_o) // num_heads)
        y = attention_of_heads(x, w_q, w_k, w_v * mask, w_o * mask[:, None], num_heads)
        return comm.all_reduce(y + b_o / comm.size)

    return run(on_rank, ranks)
''')
whole.wrong("all heads on every rank, and the mean", r"reads the weights of heads of other ranks", "a, b = own.start * D, own.stop * D", "a, b = 0, num_heads * D", "comm.all_reduce(y)", "comm.all_reduce(y) / comm.size")

whole.wrong("the bias on rank 0 alone", "only rank 0 adds the bias", "y + b_o", "y + b_o if comm.rank == 0 else y")
whole.wrong("a share of the bias after the sum", "only a part of the bias", "y + b_o", "y + b_o / comm.size")
whole.wrong("a share of the bias for each head", "only a part of the bias", "comm.all_reduce(y)\n        return y + b_o", "comm.all_reduce(y + b_o / num_heads)\n        return y")
whole.wrong("the width of the model divided by the heads", "not M // H", "len(w_o) // num_heads", "x.shape[1] // num_heads")
whole.wrong("all rows of w_o", "w_o", "w_o[a:b]", "w_o")
whole.wrong("outputs side by side", r"shape", "comm.all_reduce(y)", "comm.all_gather(y, 1)")
whole.wrong("every Nth column", "side by side", "w_q[:, a:b], w_k[:, a:b], w_v[:, a:b], w_o[a:b]", "*(w[:, comm.rank :: comm.size] for w in (w_q, w_k, w_v)), w_o[comm.rank :: comm.size]")
whole.wrong("as many heads on every rank", "different numbers", "a, b = own.start * D, own.stop * D", "k = num_heads // comm.size; a, b = comm.rank * k * D, (comm.rank + 1) * k * D")
whole.wrong("the number of the last head for the number of heads", "number of heads", "(b - a) // D", "own.stop")
whole.wrong("values of all heads", "w_v has the columns of all heads", "w_v[:, a:b]", "w_v")

ring, running = right("ring_of_ranks", '''
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

    return run(on_rank, len(queries))
''', '''
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

    return run(on_rank, len(queries))
''')
ring.wrong("parts added", "without weights", "np.exp(lse - total)[:, None] * out", "out")
running.wrong("weights exchanged", "weights are swapped", "a * out + b * o", "b * out + a * o")
ring.wrong("mask not shifted", "not shifted", "n * (comm.rank - source)", "0")
ring.wrong("offset in ranks", "counts ranks", "n * (comm.rank - source)", "comm.rank - source")
ring.wrong("offset with the wrong sign", "wrong sign", "comm.rank - source)", "source - comm.rank)")
ring.wrong("the wrong source", "another rank", "(comm.rank - hop)", "(comm.rank + hop)")
ring.wrong("one hop too few", "one hop too few", "for hop in range(comm.size)", "for hop in range(comm.size - 1)")
ring.wrong("weights that do not sum to one", "not divided|sum to one", "np.exp(lse - total)[:, None]", "np.exp(lse)[:, None]")
ring.wrong("keys alone travel", r"waits for rank \d", "                comm.send(value, (comm.rank + 1) % comm.size)\n", "")
ring.wrong("the ring turns the other way", r"direction|another rank|left|source|other way|right neighbour", "(comm.rank + 1)", "(comm.rank TO 1)", "comm.recv((comm.rank - 1)", "comm.recv((comm.rank + 1)", "(comm.rank TO 1)", "(comm.rank - 1)")
ring.wrong("the mean of the outputs", r"mean|average|without weights|weights", "np.exp(lse - total)[:, None] * out", "out / comm.size")
ring.wrong("nothing is hidden", r"causal|later|mask|future|shift|offset", "n * (comm.rank - source)", "n * comm.size")
ring.wrong("right for two ranks", r"another rank|source|shifted|offset", "(comm.rank - hop) % comm.size", "(comm.rank + hop) % comm.size")

right("ring_of_ranks", '''
def ring_of_ranks(queries, keys, values):
    from minimha.parallel import run
    n, size = len(queries[0]), len(queries)
    width = keys[0].shape[1]

    def on_rank(comm):
        # positions travel with the keys, the numerators and denominators are added up
        visitors = [np.hstack([keys[comm.rank], values[comm.rank], np.full((n, 1), comm.rank * n)])]
        for _ in range(size - 1):
            comm.send(visitors[-1], (comm.rank + 1) % size)
            visitors.append(comm.recv((comm.rank - 1) % size))
        top, bottom = 0, 0
        for kv in visitors:
            out, lse = attend(queries[comm.rank], kv[:, :width], kv[:, width:-1], int(comm.rank * n - kv[0, -1]))
            top, bottom = top + np.exp(lse)[:, None] * out, bottom + np.exp(lse)[:, None]
        return top / bottom

    return run(on_rank, size)
''', '''
def ring_of_ranks(queries, keys, values):
    from minimha.parallel import run

    def on_rank(comm):
        # only ranks to the right see keys: nothing goes from the last rank to the first
        r = comm.rank
        n = len(queries[r])
        parts = [(keys[r], values[r])]
        for step in range(comm.size - 1):
            if r + 1 < comm.size and step < len(parts):
                comm.send(parts[step][0], r + 1)
                comm.send(parts[step][1], r + 1)
            if r > step:
                parts.append((comm.recv(r - 1), comm.recv(r - 1)))
        k = np.concatenate([k for k, _ in parts[::-1]])
        v = np.concatenate([v for _, v in parts[::-1]])
        return attend(queries[r], k, v, r * n)[0]

    return run(on_rank, len(keys))
''')
wrong("ring_of_ranks", "attention to whole arrays", r"reads queries, keys or values of other ranks", '''
def ring_of_ranks(queries, keys, values):
    out, _ = attend(np.concatenate(queries), np.concatenate(keys), np.concatenate(values), 0)
    return np.split(out, len(queries))
''')
wrong("ring_of_ranks", "keys and values sent to all", r"sent to rank \d: keys and values go to a neighbour|only comm.send and comm.recv, not all_gather", '''
def ring_of_ranks(queries, keys, values):
    from minimha.parallel import run

    def on_rank(comm):
        key, value = (comm.all_gather(x[comm.rank], 0) for x in (keys, values))
        return attend(queries[comm.rank], key, value, comm.rank * len(queries[0]))[0]

    return run(on_rank, len(queries))
''')

running.wrong("the mean of the visible parts", "averaged", "(a * out + b * o) / (a + b)", "(s * out + o) / (s + 1) if source < comm.rank else out", "for _ in", "for s in", "range(comm.size - 1)", "range(1, comm.size)")
running.wrong("values do not travel", "values do not travel", "np.concatenate([key, value], axis=1)", "key", "both[:, : key.shape[1]], both[:, key.shape[1] :]", "both, value")
running.wrong("keys do not travel", "keys do not travel", "np.concatenate([key, value], axis=1)", "value", "both[:, : key.shape[1]], both[:, key.shape[1] :]", "key, both")
running.wrong("only one's own keys and values are sent", "own keys and values in every step", "np.concatenate([key, value], axis=1)", "np.concatenate([keys[comm.rank], values[comm.rank]], axis=1)")
running.wrong("keys and values read from the lists", "reads queries, keys or values of other ranks", "            source = (source - 1) % comm.size\n", "            source = (source - 1) % comm.size\n            key, value = keys[source], values[source]\n")
running.wrong("only the left neighbour's keys", "only one hop", "range(comm.size - 1)", "range(1)")
running.wrong("the offset of the source", "difference between two positions", "(comm.rank - source) * n", "source * n")
running.wrong("the offset of the queries", "difference between two positions", "(comm.rank - source) * n", "comm.rank * n")
running.wrong("the source before the hop", "not shifted|another rank", "            source = (source - 1) % comm.size\n            o, l = attend(query, key, value, (comm.rank - source) * n)\n", "            o, l = attend(query, key, value, (comm.rank - source) * n)\n            source = (source - 1) % comm.size\n")
running.wrong("parts one below the other", "wrong shape", "(a * out + b * o) / (a + b)", "np.concatenate([out, o])")
running.wrong("weights of the logarithms", "logarithm of a sum", "(a * out + b * o) / (a + b)", "(lse[:, None] * out + l[:, None] * o) / (lse + l)[:, None]")
running.wrong("lse of the visitor kept", "lse is that of the last block", "lse = m + np.log(a + b)[:, 0]", "lse = l")
running.wrong("own keys left out", "own keys are left out", "out, lse = attend(query, key, value, 0)", "out, lse = attend(query, key, value, -n)")
