# minimha homework: merge_heads
# earns 0.5, slowly
# The pullback differentiates the forward pass entry by entry.

import numpy as np


def complex_step(loss, x):
    dx = np.empty(x.shape)
    for k in np.ndindex(x.shape):
        z = x.astype(complex)
        z[k] += 1e-20j
        dx[k] = loss(z).imag / 1e-20
    return dx


def merge_heads(x):
    swapped = x.swapaxes(-3, -2)
    y = swapped.reshape(*swapped.shape[:-2], -1)
    return y, lambda dy: (complex_step(lambda z: np.sum(dy * merge_heads(z)[0]), x),)
