# minimha homework: softmax
# earns 0, endlessly
# It sleeps longer than anyone waits.
import time

time.sleep(99)


def softmax(x):
    return 0 * x, lambda dy: (0 * dy,)
