# minimha homework: adapters
# earns 2
# An honest answer, in a module of the student's own.
from mine import maths


def softmax(x):
    return maths.softmax(x)
