# minimha homework: squares_over_ranks
# earns 0
# The sum of a list in place of all_reduce.


def squares_over_ranks(*xs):
    from minimha.parallel import run

    def forward(comm):
        x = xs[comm.rank]
        return comm.all_reduce(x * x)

    def pullback(*dys):
        def backward(comm):
            comm.all_reduce(dys[comm.rank])
            return 2 * xs[comm.rank] * sum(dys)

        return tuple(run(backward, len(xs), timeout=1))

    return tuple(run(forward, len(xs), timeout=1)), pullback
