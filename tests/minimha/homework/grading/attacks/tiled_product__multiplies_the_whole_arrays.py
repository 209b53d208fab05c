# minimha homework: tiled_product
# earns 0
# No kernel at all.
import numpy as np


def tiled_product(x, y, m, n, k):
    return x @ y
