# minimha homework: softmax
# earns 2
# An honest answer.
import numpy as np


def softmax(x):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)

    def pullback(dy):
        return (y * (dy - (dy * y).sum(axis=-1, keepdims=True)),)

    return y, pullback
