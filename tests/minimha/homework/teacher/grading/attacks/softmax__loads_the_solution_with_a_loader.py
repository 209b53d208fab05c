# minimha homework: softmax
# earns 0
# It asks an import loader for the solution's source.
import importlib.machinery
import os
import sys

file = os.path.dirname(sys.modules["__main__"].__file__) + "/../tasks/ch05_attention.py"
exec(importlib.machinery.SourceFileLoader("answers", file).get_data(file))


def softmax(x):
    return 0 * x, lambda dy: (0 * dy,)
