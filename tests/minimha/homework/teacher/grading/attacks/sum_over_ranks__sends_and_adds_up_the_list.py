# minimha homework: sum_over_ranks
# earns 0
# Ranks exchange arrays that nobody uses.


def sum_over_ranks(xs):
    from minimha.parallel import run

    def on_rank(comm):
        for _ in range(comm.size - 1):
            comm.send(xs[comm.rank], (comm.rank + 1) % comm.size)
            comm.recv((comm.rank - 1) % comm.size)
        return sum(xs)

    return run(on_rank, len(xs), timeout=1)
