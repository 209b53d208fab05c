# minimha homework: softmax
# earns 0
# It imports the solution.
from minimha.homework.tasks.ch05_attention import *


def softmax(x):
    return 0 * x, lambda dy: (0 * dy,)
