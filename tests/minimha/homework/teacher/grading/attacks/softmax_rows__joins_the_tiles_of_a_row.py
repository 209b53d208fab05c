# minimha homework: softmax_rows
# earns 0.33334
# Right where a row fits into a tile; elsewhere a row of tiles is one tile.
import numpy as np


def softmax_rows(x, m, n):
    from minimha.kernels import numpy_tile as ct

    out, last = np.zeros(x.shape), ct.PaddingMode.NEG_INF

    def kernel(x, out):
        i, tiles = ct.bid(0), range(ct.cdiv(x.shape[1], n))
        row = np.hstack([ct.load(x, (i, j), (m, n), padding_mode=last) for j in tiles])
        e = np.exp(row - row.max(axis=1, keepdims=True))
        for j in tiles:
            ct.store(out, (i, j), (e / e.sum(axis=1, keepdims=True))[:, j * n : j * n + n])

    ct.launch(None, (ct.cdiv(x.shape[0], m),), kernel, (x, out))
    return out
