"""The usual mistakes in the tasks of chapter 02, as changes of their solutions."""

from .ch02_autograd import (
    backward,
    matmul,
    multiply,
    topological_order,
)

_BOTH = "unbroadcast(dy * b, a.shape), unbroadcast(dy * a, b.shape)"
multiply.mistake(
    _BOTH,
    "unbroadcast(dy * a, a.shape), unbroadcast(dy * b, b.shape)",
    "a and b are swapped: da is dy times b, db is dy times a",
)
multiply.mistake(
    _BOTH,
    "unbroadcast(b + 0 * dy, a.shape), unbroadcast(a + 0 * dy, b.shape)",
    "dy is missing: da is dy times b, db is dy times a",
)
multiply.mistake(
    _BOTH,
    "unbroadcast(dy * y, a.shape), unbroadcast(dy * y, b.shape)",
    "dy times y; the derivative of a b with respect to a is b alone: da is dy times b",
)
for _old, _new in (
    (_BOTH, "dy * b, dy * a"),
    ("unbroadcast(dy * b, a.shape)", "dy * b"),
    ("unbroadcast(dy * a, b.shape)", "dy * a"),
):
    multiply.mistake(
        _old,
        _new,
        "a gradient has the shape of y, not that of its argument: where broadcasting copied the "
        "argument, sum over the copies with unbroadcast",
    )
multiply.mistake(
    _BOTH,
    "unbroadcast(dy * b, b.shape), unbroadcast(dy * a, a.shape)",
    "unbroadcast gets the shape of the other argument: da has the shape of a, db that of b",
)
multiply.mistake(
    _BOTH,
    "unbroadcast(dy, a.shape) * b, unbroadcast(dy, b.shape) * a",
    "dy is summed over the copies before the product; each copy has a factor of its own: multiply "
    "first, then unbroadcast",
)
multiply.mistake(
    _BOTH,
    "unbroadcast(dy * b + dy * a, a.shape), unbroadcast(dy * b + dy * a, b.shape)",
    "both terms of the product rule are added; da is the change with a alone, dy times b, and db "
    "is dy times a",
)
multiply.mistake(
    _BOTH,
    "dy @ b.T, a.T @ dy",
    "these are the gradients of a matrix product, a @ b; * multiplies entry by entry: da is dy "
    "times b",
)
multiply.mistake(
    _BOTH,
    "unbroadcast(dy, a.shape), unbroadcast(dy, b.shape)",
    "dy is passed on as for a sum, a + b; for a product, da is dy times b, db is dy times a",
)

_PAIR = "unbroadcast(dy @ b.mT, a.shape), unbroadcast(a.mT @ dy, b.shape)"
for _old in ("dy @ b.mT", "a.mT @ dy"):  # before those that two matrices already show
    matmul.mistake(
        _old,
        _old.replace("mT", "T"),
        ".T reverses all axes of a stack, the batch included; .mT swaps only the last two",
    )
for _old, _new in (
    ("dy @ b.mT", "dy @ b"),
    ("dy @ b.mT", "b.mT @ dy"),
    ("a.mT @ dy", "a @ dy"),
    ("a.mT @ dy", "dy @ a.mT"),
):
    matmul.mistake(
        _old,
        _new,
        "a matrix is not transposed, or is on the wrong side: da (n, k) = dy (n, m) bᵀ (m, k) and "
        "db (k, m) = aᵀ (k, n) dy (n, m)",
    )
for _old, _new in (
    (_PAIR, "dy @ b.reshape(*b.shape[:-2], -1, b.shape[-2]), "
     "a.reshape(*a.shape[:-2], -1, a.shape[-2]) @ dy"),
    ("dy @ b.mT", "dy @ b.reshape(*b.shape[:-2], -1, b.shape[-2])"),
    ("a.mT @ dy", "a.reshape(*a.shape[:-2], -1, a.shape[-2]) @ dy"),
):  # fmt: skip
    matmul.mistake(
        _old,
        _new,
        "a reshape is not a transpose; it only cuts the same numbers into different rows: .mT",
    )
matmul.mistake(
    "dy @ b.mT",
    "dy * b",
    "* multiplies entry by entry; da is a matrix product, dy @ b.mT",
)
for _old, _new in (
    (_PAIR, "dy @ b.mT, a.mT @ dy"),
    ("unbroadcast(dy @ b.mT, a.shape)", "dy @ b.mT"),
    ("unbroadcast(a.mT @ dy, b.shape)", "a.mT @ dy"),
):
    matmul.mistake(
        _old,
        _new,
        "a gradient still has the axes that broadcasting added: sum over the copies with "
        "unbroadcast",
    )
matmul.mistake(
    "unbroadcast(a.mT @ dy, b.shape)",
    "(a.mT @ dy).sum(axis=tuple(range(a.ndim - 2)))",
    "db is summed over the batch although b has a matrix for each item: sum only where b was "
    "broadcast, with unbroadcast",
)
matmul.mistake(
    _PAIR,
    "unbroadcast(dy @ b.mT, b.shape), unbroadcast(a.mT @ dy, a.shape)",
    "unbroadcast gets the shape of the other argument: da has the shape of a, db that of b",
)
matmul.mistake(
    _PAIR,
    "(dy @ b.mT).sum(axis=tuple(range(dy.ndim - a.ndim))), "
    "(a.mT @ dy).sum(axis=tuple(range(dy.ndim - b.ndim)))",
    "the axes added in front are summed, but an axis of length 1 that was stretched is not: "
    "unbroadcast sums both kinds",
)
matmul.mistake(
    _PAIR,
    "unbroadcast(a.mT @ dy, b.shape), unbroadcast(dy @ b.mT, a.shape)",
    "the gradients are in the order (db, da): return (da, db)",
)

_KAHN = """\
    ready = [name for name in parents if waits[name] == 0]
    for name in ready:  # the list grows during the loop
        for child in children[name]:
            waits[child] -= 1
            if waits[child] == 0:
                ready.append(child)
    return ready
"""
_DEPTH_FIRST = """\
    order = []
    def visit(name):
        for parent in parents[name]:
            visit(parent)
        order.append(name)
    for name in parents:
        visit(name)
    return order
"""
topological_order.mistake(
    _KAHN,
    _DEPTH_FIRST,
    "a name is listed again for every use: before you list it, check that it is not in the list",
)
topological_order.mistake(
    "return ready",
    "return list(parents)",
    "a name can come before its parents here, as in the order of the dict: list a name only after "
    "all its parents",
)
topological_order.mistake(
    "return ready",
    "return ready[::-1]",
    "each name comes before its parents, as in the backward pass: reverse the list",
)
topological_order.mistake(
    "children[parent].append(name)",
    "children[parent] += [name] * (name not in children[parent])",
    "for b = a + a the count of b is 2, but b is listed once among the children of a, so the count "
    "never reaches 0: list b twice, or count distinct parents",
)
topological_order.mistake(
    """\
            if waits[child] == 0:
                ready.append(child)
""",
    "            pass\n",
    "only the leaves are listed: when the last parent of a name is listed, list the name",
)
topological_order.mistake(
    "waits[child] == 0:",
    "child not in ready:",
    "a name is listed as soon as one of its parents is; it must wait for all of them",
)
topological_order.mistake(
    "len(made_from)",
    "len(set(made_from))",
    "the count ignores that a name can be a parent twice, as in b = a + a, but the loop lowers it "
    "twice: count with len(made_from)",
)

_ADDED = "gradients[parent] = dx if gradients[parent] is None else gradients[parent] + dx"
_IN_PLACE = """\
if gradients[parent] is None:
                gradients[parent] = dx
            else:
                gradients[parent] += dx"""
for _new in (
    "gradients[parent] = dx",
    "gradients[parent] = dx if gradients[parent] is None else gradients[parent]",
):
    backward.mistake(
        _ADDED,
        _new,
        "only one of the gradients that reach a node is kept; a node used several times gets "
        "their sum",
    )
backward.mistake(
    _ADDED,
    _IN_PLACE,
    "+= changes an array in place, and a pullback may return the same array for two parents: "
    "gradients[parent] + dx makes a new one",
)
backward.mistake(
    "reversed(range(len(nodes)))",
    "range(len(nodes))",
    "the nodes are visited from the first to the last; a node's gradient is complete only after "
    "everything computed from it: go backward",
)
backward.mistake(
    "pullback(gradients[k])",
    "pullback(gradient)",
    "every pullback gets the gradient of the last node; it needs that of its own node, "
    "gradients[k]",
)
backward.mistake(
    _ADDED,
    "gradients[parent] = dx if gradients[parent] is None else gradients[parent] * dx",
    "the gradients that reach a node are multiplied: a node used several times gets their sum",
)
backward.mistake(
    "gradients[-1] = gradient\n",
    "pass\n",
    "the last node has no gradient at the start, so nothing is passed on: gradients[-1] = gradient",
)
backward.mistake(
    "gradients[-1] = gradient\n",
    "gradients[-1] = np.ones_like(gradient)\n",
    "the walk starts with 1; it must start with gradient, that of the last node",
)
backward.mistake(
    "pullback(gradients[k])",
    "pullback(gradients[k])[::-1]",
    "the gradients of the parents are in the wrong order: a pullback returns them in the order of "
    "parents",
)
backward.mistake(
    "gradients = [None]",
    "gradients = [0.0]",
    "the list starts with zeros; a node that receives no gradient has None, not 0: start with None",
)
for _old in ("pullback is None or gradients[k] is None", "pullback is None"):
    backward.mistake(
        "if pullback is None or gradients[k] is None:\n            continue",
        f"if {_old}:\n            break",
        "the walk stops at the first leaf or unused node; earlier nodes may still have gradients: "
        "continue, not break or return",
    )
backward.mistake(
    "reversed(range(len(nodes)))",
    "range(len(nodes) - 2, -1, -1)",
    "the walk starts at the node before the last; the last one, whose gradient is given, is the "
    "first whose pullback is called",
)
backward.mistake(
    "reversed(range(len(nodes)))",
    "range(len(nodes) - 2, 0, -1)",
    "the walk starts at the node before the last; the last one, whose gradient is given, is the "
    "first whose pullback is called",
)
backward.mistake(
    "return gradients",
    "return [g if p is None else None for g, (_, p) in zip(gradients, nodes)]",
    "only leaves keep their gradients; return that of every node",
)
backward.mistake(
    "pullback is None or gradients[k] is None",
    "gradients[k] is None",
    "a leaf has no pullback to call: skip a node whose pullback is None",
)
backward.mistake(
    "pullback is None or gradients[k] is None",
    "pullback is None",
    "a pullback is called with None: skip a node that received no gradient",
)
