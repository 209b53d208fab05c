# minimha homework: adapters
# earns 0
# Its own modules have the names of those that grade, beside files that other tools would run.
import connection
import system_calls
import minimha
import numpy


def softmax(x):
    return 0 * x, lambda dy: (0 * dy,)
