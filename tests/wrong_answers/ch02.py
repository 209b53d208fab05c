"""Wrong answers to the tasks of chapter 02."""

from wrong_answers import Wrong

_PLUS = "gradients[parent] = dx if gradients[parent] is None else gradients[parent] + dx"
_IN_PLACE = """\
if gradients[parent] is None:
                gradients[parent] = dx
            else:
                gradients[parent] += dx"""
_KAHN = """\
    ready = [name for name in parents if waits[name] == 0]
    for name in ready:  # which grows on the way
        for child in children[name]:
            waits[child] -= 1
            if waits[child] == 0:
                ready.append(child)
    return ready
"""
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
_UNMARKED = _RECURSIVE.replace("if name not in order", "if True")

WRONG = {
    "multiply": [
        Wrong("a sum", "    y = a * b\n", "    y = a + b\n", "arrays of one shape", "y is wrong"),
        Wrong("each with its own factor", "(dy * b, a.shape), unbroadcast(dy * a, b.shape)", "(dy * a, a.shape), unbroadcast(dy * b, b.shape)", "arrays of one shape", "gradient of a"),
        Wrong("a list", "return unbroadcast(dy * b, a.shape), unbroadcast(dy * a, b.shape)", "return [unbroadcast(dy * b, a.shape)]", "arrays of one shape", "must return a tuple"),
        Wrong("broadcasting not undone", "unbroadcast(dy * b, a.shape), unbroadcast(dy * a, b.shape)", "dy * b, dy * a", "arrays that broadcast", "shape"),
    ],
    "matmul": [
        Wrong("the other way round", "    y = a @ b\n", "    y = (a @ b).mT\n", "two matrices", "wrong shape"),
        Wrong("not transposed", "dy @ b.mT", "dy @ b", "two matrices", "matmul"),
        Wrong("a sign", "unbroadcast(a.mT @ dy", "unbroadcast(-a.mT @ dy", "two matrices", "ratio -1"),
        Wrong("all axes turned around", "dy @ b.mT", "dy @ b.T", "two stacks of matrices", "matmul"),
        Wrong("broadcasting not undone", "unbroadcast(dy @ b.mT, a.shape), unbroadcast(a.mT @ dy, b.shape)", "dy @ b.mT, a.mT @ dy", "one matrix and a stack", "shape"),
        Wrong("undone at the front only", "unbroadcast(dy @ b.mT, a.shape)", "(dy @ b.mT).sum(axis=tuple(range(dy.ndim - a.ndim)))", "one matrix and a stack", "a was broadcast"),
    ],
    "topological_order": [
        Wrong("nothing is marked as done", _KAHN, _UNMARKED, "every name once", "'a' is in the list 7 times"),
        Wrong("leaves only", "            if waits[child] == 0:\n                ready.append(child)\n", "", "every name once", "'b' is in the list 0 times"),
        Wrong("a set of names", "return ready", "return set(ready)", "every name once", "not a set"),
        Wrong("each parent counted once", "len(made_from)", "len(set(made_from))", "what it was made from comes first", "c stands before b"),
        Wrong("ready with the first parent", "waits[child] == 0:", "child not in ready:", "what it was made from comes first", "d stands before c"),
        Wrong("by recursion", _KAHN, _RECURSIVE, "a chain of 4000 steps", "RecursionError"),
    ],
    "backward": [
        Wrong("from the first to the last", "reversed(range(len(nodes)))", "range(len(nodes))", "a chain", "the gradient of x is None"),
        Wrong("no return", "    return gradients\n", "", "a chain", "NoneType"),
        Wrong("the last place left empty", "gradients[-1] = gradient", "pass", "a chain", "gradient of x"),
        Wrong("the newest replaces the others", _PLUS, "gradients[parent] = dx", "uses add up", "2"),
        Wrong("zeros to start with", "gradients = [None]", "gradients = [0.0]", "what was not used has none", "gradient of b should be None"),
        Wrong("no look whether anything came", "pullback is None or gradients[k] is None", "pullback is None", "what was not used has none", "TypeError"),
        Wrong("added in place", _PLUS, _IN_PLACE, "one array as two gradients", "+= would change both"),
    ],
}  # fmt: skip
