# minimha homework: attention
# earns 0, endlessly
# It calls the check's function without end.
def attention(query, key, value, *, tap=lambda name, x: x):
    while True:
        tap("scores", query)
