# minimha homework: softmax
# earns 0
# It returns an array of a terabyte that takes no memory.
def softmax(x):
    import numpy as np

    return np.broadcast_to(0.0, (10**6, 10**6)), lambda dy: (dy,)
