# minimha homework: sum_over_ranks
# earns 0
# The collective that the task asks for.


def sum_over_ranks(xs):
    from minimha.parallel import run

    return run(lambda comm: comm.all_reduce(xs[comm.rank]), len(xs), timeout=1)
