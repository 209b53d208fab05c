# minimha homework: sum_over_ranks
# earns 0
# No rank runs.


def sum_over_ranks(xs):
    return [sum(xs)] * len(xs)
