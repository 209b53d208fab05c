# minimha homework: softmax
# earns 0
# It damages NumPy and the built-in functions, so that a classmate's right answer fails.
import builtins
import sys

import numpy as np

np.exp = np.sum = lambda *_, **__: 0
builtins.abs = builtins.len = lambda *_: 0
sys.modules["numpy"] = None


def softmax(x):
    return 0 * x, lambda dy: (0 * dy,)
