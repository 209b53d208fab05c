# minimha homework: softmax
# earns 0
# It asks Python to call it in each function that runs.
import sys

sys.settrace(lambda *_: None)
sys.setprofile(lambda *_: None)


def softmax(x):
    return 0 * x, lambda dy: (0 * dy,)
