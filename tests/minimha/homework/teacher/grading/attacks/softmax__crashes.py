# minimha homework: softmax
# earns 0
# It reads memory that is not there.
def softmax(x):
    import numpy as np

    return np.lib.stride_tricks.as_strided(np.ones(1), (1 << 30,), (4096,)).sum()
