# minimha homework: tiled_product
# earns 0
# No kernel at all.


def tiled_product(x, y, m, n, k):
    return x @ y
