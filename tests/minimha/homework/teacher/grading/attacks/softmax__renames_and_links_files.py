# minimha homework: softmax
# earns 0
# It changes files without opening them.
import os

for change in (
    lambda: os.rename("VICTIM/grades.json", "VICTIM/other.json"),
    lambda: os.truncate("VICTIM/grades.json", 0),
    lambda: os.symlink("/etc", "VICTIM/etc"),
    lambda: os.chmod("VICTIM/grades.json", 0),
):
    try:
        change()
    except OSError:
        pass


def softmax(x):
    return 0 * x, lambda dy: (0 * dy,)
