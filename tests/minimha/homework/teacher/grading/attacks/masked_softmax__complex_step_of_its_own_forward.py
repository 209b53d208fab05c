# minimha homework: masked_softmax
# earns 0.6, slowly
# The pullback differentiates the forward pass entry by entry.

import numpy as np


def complex_step(loss, x):
    dx = np.empty(x.shape)
    for k in np.ndindex(x.shape):
        z = x.astype(complex)
        z[k] += 1e-20j
        dx[k] = loss(z).imag / 1e-20
    return dx


def masked_softmax(x, mask):
    x = np.where(mask, x, -np.inf)
    peak = x.real.max(axis=-1, keepdims=True)
    e = np.exp(x - np.where(peak == -np.inf, 0.0, peak))
    total = e.sum(axis=-1, keepdims=True)

    def pullback(dy):
        dy = np.where(mask, dy, 0.0)
        return (complex_step(lambda z: np.sum(dy * masked_softmax(z, mask)[0]), x),)

    return e / np.where(total == 0, 1.0, total), pullback
