# minimha homework: softmax
# earns 0, endlessly
# It returns a number with more digits than fit into a message.
def softmax(x):
    return 10**10**7, lambda dy: (dy,)
