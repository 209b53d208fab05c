# minimha homework: softmax
# earns 2
# A limit that docs/sandbox.md states: softmax's Jacobian is symmetric, so its
# derivative along dy is its pullback.

import numpy as np


def softmax(x):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)
    return y, lambda dy: (softmax(x + 1e-20j * dy)[0].imag / 1e-20,)
