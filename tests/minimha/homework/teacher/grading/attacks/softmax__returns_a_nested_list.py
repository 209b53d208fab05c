# minimha homework: softmax
# earns 0
# It returns lists nested too deeply to be sent.
def softmax(x):
    y = []
    for _ in range(10**5):
        y = [y]
    return y, lambda dy: (dy,)
