# minimha homework: softmax
# earns 0
# It asks for more memory than there is.
x = bytearray(1 << 40)


def softmax(x):
    return 0 * x, lambda dy: (0 * dy,)
