# minimha homework: softmax
# earns 0, slowly
# It never returns.
def softmax(x):
    while True:
        pass
