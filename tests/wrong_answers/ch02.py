"""Wrong answers to the tasks of chapter 02."""

from minimha.homework.tasks.ch02_mistakes import _KAHN
from wrong_answers import Wrong

_RECURSIVE = """\
    order = []
    def visit(name):
        if name not in order:
            for parent in parents[name]:
                visit(parent)
            order.append(name)
    for name in parents:
        visit(name)
    return order
"""
_WALK = """\
    for k in reversed(range(len(nodes))):
        parents, pullback = nodes[k]
        if pullback is None or gradients[k] is None:
            continue
        for parent, dx in zip(parents, pullback(gradients[k]), strict=True):
            gradients[parent] = dx if gradients[parent] is None else gradients[parent] + dx
"""
_EACH_USE = """\
    gradients[-1] = None
    def walk(k, dy):
        gradients[k] = dy if gradients[k] is None else gradients[k] + dy
        parents, pullback = nodes[k]
        for parent, dx in zip(parents, pullback(dy) if pullback else ()):
            walk(parent, dx)
    walk(len(nodes) - 1, gradient)
"""
WRONG = {
    "multiply": [
        Wrong("a sum", "    y = a * b\n", "    y = a + b\n", "arrays of the same shape", "y is wrong"),
        Wrong("a list", "return unbroadcast(dy * b, a.shape), unbroadcast(dy * a, b.shape)", "return [unbroadcast(dy * b, a.shape)]", "arrays of the same shape", "must return a tuple"),
    ],
    "matmul": [
        Wrong("the other way round", "    y = a @ b\n", "    y = (a @ b).mT\n", "two matrices", "wrong shape"),
        Wrong("a sign", "unbroadcast(a.mT @ dy", "unbroadcast(-a.mT @ dy", "two matrices", "ratio -1"),
    ],
    "topological_order": [
        Wrong("a set of names", "return ready", "return set(ready)", "every name appears once", "not a set"),
        Wrong("by recursion", _KAHN, _RECURSIVE, "a chain of 4000 steps", "RecursionError"),
    ],
    "backward": [
        Wrong("no return", "    return gradients\n", "", "a chain", "None: is a return missing?"),
        Wrong("the last place left empty", "gradients[-1] = gradient", "pass", "a chain", "gradient of x"),
        Wrong("one pullback called for each use", _WALK, _EACH_USE, "gradients of several uses add up", "was called 2 times"),
    ],
}  # fmt: skip
