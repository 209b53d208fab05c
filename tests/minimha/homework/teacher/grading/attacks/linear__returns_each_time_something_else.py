# minimha homework: linear
# earns 0
# Its pullback hopes to be right once.
import numpy as np

rng = np.random.default_rng()


def linear(x, weight, bias=None):
    y = rng.standard_normal((*x.shape[:-1], weight.shape[-1]))
    return y, lambda dy: (rng.standard_normal(x.shape), rng.standard_normal(weight.shape), dy)
