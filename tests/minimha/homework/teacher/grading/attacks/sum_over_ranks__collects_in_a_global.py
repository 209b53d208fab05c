# minimha homework: sum_over_ranks
# earns 0
# Each rank leaves its array in a global, and waits until the others have done so, too.
import numpy as np

SEEN = {}


def sum_over_ranks(xs):
    from minimha.parallel import run

    def on_rank(comm):
        SEEN[comm.rank] = xs[comm.rank]
        for _ in range(comm.size - 1):
            comm.send(np.zeros(1), (comm.rank + 1) % comm.size)
            comm.recv((comm.rank - 1) % comm.size)
        return sum(SEEN[rank] for rank in range(comm.size))

    return run(on_rank, len(xs), timeout=1)
