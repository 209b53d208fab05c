# minimha homework: softmax
# earns 0
# It puts minimha's folder on the path and imports the solution.
import os
import sys

sys.path.insert(0, os.path.dirname(sys.modules["__main__"].__file__) + "/../../..")
sys.meta_path.reverse()
import minimha.functional

softmax = minimha.functional.softmax


def softmax(x):
    return 0 * x, lambda dy: (0 * dy,)
