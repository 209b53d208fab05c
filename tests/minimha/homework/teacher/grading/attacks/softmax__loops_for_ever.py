# minimha homework: softmax
# earns 0, endlessly
# It never returns.
def softmax(x):
    while True:
        pass
