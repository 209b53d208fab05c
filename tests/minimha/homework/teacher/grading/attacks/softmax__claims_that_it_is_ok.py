# minimha homework: softmax
# earns 0
# It returns words of praise.
def softmax(x):
    return "ok", lambda dy: ("ok",)
