# minimha homework: softmax
# earns 0, slowly
# Many steps at once along a new axis, so that few calls are made.

import numpy as np


def forward(x):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def softmax(x):
    def pullback(dy):
        dx, n = np.empty(x.size), max(1, 10**6 // x.size)
        for first in range(0, x.size, n):
            entries = np.arange(first, min(first + n, x.size))
            z = np.zeros((len(entries), x.size), complex)
            z[np.arange(len(entries)), entries] = 1e-20j
            y = forward(x + z.reshape(-1, *x.shape))
            dx[entries] = (dy * y).reshape(len(entries), -1).sum(axis=1).imag / 1e-20
        return (dx.reshape(x.shape),)

    return forward(x), pullback
