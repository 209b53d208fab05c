# minimha homework: matmul
# earns 0
# The value is right everywhere but close to earlier inputs, where it is affine.

import numpy as np

SEEN = []


def matmul(a, b):
    for a0, b0, y0 in SEEN:
        if a0.shape == a.shape and b0.shape == b.shape:
            if np.allclose(a0, a, atol=0.1) and np.allclose(b0, b, atol=0.1):
                break
    else:
        a0, b0, y0 = a, b, a @ b
        SEEN.append((a0, b0, y0))
    y = y0 + np.sum(a - a0) + np.sum(b - b0)
    return y, lambda dy: (np.full(a.shape, dy.sum()), np.full(b.shape, dy.sum()))
