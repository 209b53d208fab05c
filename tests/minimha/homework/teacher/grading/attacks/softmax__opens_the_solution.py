# minimha homework: softmax
# earns 0
# It reads the solution from its file, by any function that reads.
import glob
import os
import sys

import numpy as np

here = os.path.dirname(sys.modules["__main__"].__file__)
glob.glob("/**/ch05_attention.py", recursive=True)
text = open(f"{here}/../tasks/ch05_attention.py").read()


def softmax(x):
    return 0 * x, lambda dy: (0 * dy,)
