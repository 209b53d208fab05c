# minimha homework: softmax
# earns 0
# It answers with functions where arrays are expected.
def softmax(x):
    return softmax, softmax
