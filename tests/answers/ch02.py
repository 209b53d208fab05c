"""Chapter 02: autograd."""

# fmt: off
from . import right, wrong

product, *_ = right("multiply", """
def multiply(a, b):
    y = a * b

    def pullback(dy):
        da = unbroadcast(dy * b, a.shape)
        db = unbroadcast(dy * a, b.shape)
        return da, db

    return y, pullback
""", """
def multiply(a, b):
    return np.multiply(a, b), lambda g: (unbroadcast(g * b, a.shape), unbroadcast(g * a, b.shape))
""", """
def multiply(a, b):
    def pullback(dy):
        return tuple(unbroadcast(other * dy, one.shape) for one, other in [(a, b), (b, a)])
    return a * b, pullback
""", """
class Product:
    def __init__(self, a, b):
        self.a, self.b = a, b

    def __call__(self, dy):
        return (self.to(dy * self.b, self.a), self.to(dy * self.a, self.b))

    @staticmethod
    def to(g, x):
        k = g.ndim - x.ndim
        g = g.sum(tuple(range(k)))
        return g.sum(tuple(i for i in range(x.ndim) if x.shape[i] == 1), keepdims=True)

def multiply(a, b):
    return a * b, Product(a, b)
""", """
import functools

def _back(a, b, dy):
    A, B = np.broadcast_arrays(a, b)
    return unbroadcast(B * dy, a.shape), unbroadcast(A * dy, b.shape)

def multiply(a, b):
    return a * b, functools.partial(_back, a, b)
""")
product.wrong("the factors are exchanged", r"swap|exchang|interchang|order|other (factor|array)",
    "dy * b", "dy * A", "dy * a", "dy * b", "dy * A", "dy * a")
product.wrong("copies are not summed", r"broadcast|copies|copied", "unbroadcast(dy * b, a.shape)", "dy * b",
    "unbroadcast(dy * a, b.shape)", "dy * a")
product.wrong("without the gradient that comes in", r"chain|times dy|(without|lacks?|factor|depends? on) dy|ignor|whatever|multiply by|dy is missing",
    "dy * b", "b + 0 * dy", "dy * a", "a + 0 * dy")
product.wrong("works in dy", r"in place", "(dy * a, b.shape)", "(np.multiply(dy, a, out=dy), b.shape)")
product.wrong("one gradient alone", r"two gradients|tuple|both|one of", "return da, db", "return da")

product.wrong("each summed to the shape of the other", r"swap|exchang|interchang|shape of (the other|[ab])", "a.shape", "B.shape", "b.shape", "a.shape", "B.shape", "b.shape")
product.wrong("the gradient of a sum", r"times [ab]\b|factor|multipl|of a sum|addition|· [ab]", "dy * b", "dy", "dy * a", "dy")
product.wrong("the mean of the copies", r"mean|average|divid|copies", "unbroadcast(dy * b, a.shape)", "unbroadcast(dy * b, a.shape) * a.size / dy.size")
wrong("multiply", "the quotient by the wrong factor", r"it is the gradient of a", """
def multiply(a, b):
    y = a * b

    def pullback(dy):
        return unbroadcast(dy * y / b, a.shape), unbroadcast(dy * y / a, b.shape)

    return y, pullback
""")
wrong("multiply", "dy is forgotten", r"dy|cotangent|gradient of the output|chain", """
def multiply(a, b):
    def pullback(dy):
        one = np.ones_like(dy)
        return unbroadcast(one * b, a.shape), unbroadcast(one * a, b.shape)

    return a * b, pullback
""")
wrong("multiply", "the gradients of a sum", r"b|product|factor|dy times", """
def multiply(a, b):
    def pullback(dy):
        return unbroadcast(dy, a.shape), unbroadcast(dy, b.shape)

    return a * b, pullback
""")
wrong("multiply", "db from the changed dy", r"in place|wrong", """
def multiply(a, b):
    def pullback(dy):
        da = unbroadcast(dy * b, a.shape)
        dy *= a
        return da, unbroadcast(dy, b.shape)

    return a * b, pullback
""")

plain, summed, *_ = right("matmul", """
def matmul(a, b):
    y = a @ b

    def pullback(dy):
        da = dy @ b.swapaxes(-1, -2)
        db = a.swapaxes(-1, -2) @ dy
        return unbroadcast(da, a.shape), unbroadcast(db, b.shape)

    return y, pullback
""", """
def matmul(a, b):
    def pullback(dy):
        da = np.einsum("...nm,...km->...nk", dy, b)
        db = np.einsum("...nk,...nm->...km", a, dy)
        return unbroadcast(da, a.shape), unbroadcast(db, b.shape)
    return np.einsum("...nk,...km->...nm", a, b), pullback
""", """
def matmul(a, b):
    return np.matmul(a, b), lambda dy: (unbroadcast(dy @ b.mT, a.shape), unbroadcast(a.mT @ dy, b.shape))
""", """
def matmul(a, b):
    flip = lambda z: np.moveaxis(z, -1, -2)
    def pullback(dy):
        da = flip(b @ flip(dy))
        db = flip(flip(dy) @ a)
        return unbroadcast(da, a.shape), unbroadcast(db, b.shape)
    return a @ b, pullback
""", """
def matmul(a, b):
    y = a @ b
    def pullback(dy):
        A = np.broadcast_to(a, y.shape[:-2] + a.shape[-2:])
        B = np.broadcast_to(b, y.shape[:-2] + b.shape[-2:])
        dA, dB = np.zeros_like(A, dtype=dy.dtype), np.zeros_like(B, dtype=dy.dtype)
        for i in np.ndindex(y.shape[:-2]):
            dA[i] = dy[i].dot(B[i].T)
            dB[i] = A[i].T.dot(dy[i])
        return unbroadcast(dA, a.shape), unbroadcast(dB, b.shape)
    return y, pullback
""")
plain.wrong("np.dot of stacks", r"all pairs", "a @ b", "np.dot(a, b)")
plain.wrong(".T reverses all axes of a stack", r"\.T\b|last two|mT", ".swapaxes(-1, -2)", ".T")
plain.wrong("no transposes in the backward", r"transpos|swapaxes|mT", ".swapaxes(-1, -2)", "")
plain.wrong("copies of a shared matrix are not summed", r"broadcast|copies|copied|shared",
    "unbroadcast(da, a.shape), unbroadcast(db, b.shape)", "da, db")
plain.wrong("the gradients in the wrong order", r"swap|exchang|order|interchang",
    "unbroadcast(da, a.shape), unbroadcast(db, b.shape)",
    "unbroadcast(db, b.shape), unbroadcast(da, a.shape)")
summed.wrong("db is transposed", r"transpos|\.mT|swapaxes", "...nk,...nm->...km", "...nk,...nm->...mk")
plain.wrong("factors on the wrong sides", r"order|side|left|dy @",
    "dy @ b.swapaxes(-1, -2)", "b.swapaxes(-1, -2) @ dy")
plain.wrong("db from dy transposed", r"transpos|mT|swapaxes|order", "a.swapaxes(-1, -2) @ dy", "dy.swapaxes(-1, -2) @ a")
plain.wrong("the first two axes exchanged", r"last two|-1, -2|stack|mT|axes 0", "swapaxes(-1, -2)", "swapaxes(0, 1)")
plain.wrong("db alone is not summed", r"broadcast|copies|copied|shared|summed", "unbroadcast(db, b.shape)", "db")
wrong("matmul", "sums over the wrong letter", r"transpos|\.mT|side|einsum|sum", """
def matmul(a, b):
    def pullback(dy):
        da = np.einsum("...nm,...km->...nk", dy, b)
        db = np.einsum("...nk,...nm->...mk", a, dy)
        return unbroadcast(da, a.shape), unbroadcast(db, b.shape)

    return a @ b, pullback
""")
wrong("matmul", "the axes of all reversed", r"\.T\b|swapaxes|mT|last two|revers", """
def matmul(a, b):
    def pullback(dy):
        return unbroadcast(dy @ b.T, a.shape), unbroadcast(a.T @ dy, b.shape)

    return a @ b, pullback
""")
wrong("matmul", "no unbroadcast of da", r"summed|broadcast", """
def matmul(a, b):
    def pullback(dy):
        return dy @ b.mT, unbroadcast(a.mT @ dy, b.shape)

    return a @ b, pullback
""")

kahn, *_ = right("topological_order", """
from collections import deque

def topological_order(parents):
    waiting = {n: len(p) for n, p in parents.items()}
    children = {n: [] for n in parents}
    for n, p in parents.items():
        for q in p:
            children[q].append(n)
    ready = deque(n for n, k in waiting.items() if k == 0)
    order = []
    while ready:
        n = ready.popleft()
        order.append(n)
        for c in children[n]:
            waiting[c] -= 1
            if waiting[c] == 0:
                ready.append(c)
    return order
""", """
def topological_order(parents):
    order, seen = [], set()
    for start in parents:
        stack = [start]
        while stack:
            node = stack[-1]
            if node in seen:
                stack.pop()
                continue
            missing = [p for p in parents[node] if p not in seen]
            if missing:
                stack.extend(missing)
            else:
                order.append(node)
                seen.add(node)
    return order
""", """
import graphlib

def topological_order(parents):
    return list(graphlib.TopologicalSorter(parents).static_order())
""", """
def topological_order(parents):
    done = {}
    for name in parents:
        todo = [(name, iter(parents[name]))]
        while todo:
            at, rest = todo[-1]
            for p in rest:
                if p not in done:
                    todo.append((p, iter(parents[p])))
                    break
            else:
                todo.pop()
                done[at] = True
    return list(done)
""", """
def topological_order(parents):
    users = {}
    for child, made_from in parents.items():
        for p in set(made_from):
            users.setdefault(p, []).append(child)
    left = {child: set(p) for child, p in parents.items()}
    order = [n for n in parents if not left[n]]
    for n in order:
        for child in users.get(n, ()):
            left[child].remove(n)
            if not left[child]:
                order.append(child)
    return order
""")
wrong("topological_order", "recursive", r"recurs", """
def topological_order(parents):
    order, seen = [], set()
    def visit(n):
        if n in seen:
            return
        seen.add(n)
        for p in parents[n]:
            visit(p)
        order.append(n)
    for n in parents:
        visit(n)
    return order
""")
kahn.wrong("results before what they are made from", r"revers|before|after",
    "return order", "return order[::-1]")
kahn.wrong("a name that is used twice is counted once", r"twice|counted|again|both times", "p:", "set(p):")
wrong("topological_order", "trusts the order of the dict", r"before|after|order of the dict", """
def topological_order(parents):
    return list(parents)
""")
wrong("topological_order", "breadth first from the end", r"before|after", """
def topological_order(parents):
    used = {p for ps in parents.values() for p in ps}
    order = [n for n in parents if n not in used]
    for n in order:
        for p in parents[n]:
            if p not in order:
                order.append(p)
    return order[::-1]
""")
kahn.wrong("a set", r"returns a set", "return order", "return set(order)")
kahn.wrong("added after its first parent", r"before|after|\d times|all (its )?parents", "if waiting[c] == 0:", "if c not in order:")
kahn.wrong("no leaves", r"leaf|leaves|missing|0 times", "return order", "return [n for n in order if parents[n]]")
wrong("topological_order", "depth first, reversed", r"before|after", """
def topological_order(parents):
    order, stack = [], [n for n in parents if not any(n in p for p in parents.values())]
    while stack:
        n = stack.pop()
        if n not in order:
            order.append(n)
            stack.extend(parents[n])
    return order[::-1]
""")
wrong("topological_order", "sorted by the number of parents", r"before|parents? (is|are) listed|wait", """
def topological_order(parents):
    return sorted(parents, key=lambda name: len(parents[name]))
""")
wrong("topological_order", "one pass", r"\d times|once|wait|several|before", """
def topological_order(parents):
    done = []
    for name in parents:
        if all(p in done for p in parents[name]):
            done.append(name)
    return done
""")
wrong("topological_order", "the dict is emptied", r"in place|copy", """
def topological_order(parents):
    order = []
    while parents:
        for name in list(parents):
            if not any(p in parents for p in parents[name]):
                order.append(name)
                del parents[name]
    return order
""")
wrong("topological_order", "breadth first from the leaves", r"comes before|times", """
def topological_order(parents):
    order = [n for n in parents if not parents[n]]
    for done in order:
        for name in parents:
            if done in parents[name] and name not in order:
                order.append(name)
    return order
""")
wrong("topological_order", "a dict in the right order", r"should return a list", """
def topological_order(parents):
    order = {}
    while len(order) < len(parents):
        for n in parents:
            if n not in order and all(p in order for p in parents[n]):
                order[n] = None
    return order
""")

tape, *_ = right("backward", """
def backward(nodes, gradient):
    grads = [None] * len(nodes)
    grads[-1] = gradient
    for i in reversed(range(len(nodes))):
        parents, pullback = nodes[i]
        if pullback is None or grads[i] is None:
            continue
        for p, g in zip(parents, pullback(grads[i])):
            grads[p] = g if grads[p] is None else grads[p] + g
    return grads
""", """
def backward(nodes, gradient):
    found = {len(nodes) - 1: gradient}
    for i in range(len(nodes) - 1, -1, -1):
        parents, pullback = nodes[i]
        if i in found and pullback is not None:
            for place, part in zip(parents, pullback(found[i]), strict=True):
                found[place] = found[place] + part if place in found else part
    return [found.get(i) for i in range(len(nodes))]
""", """
import functools, operator

def backward(nodes, gradient):
    arrived = [[] for _ in nodes]
    arrived[-1].append(gradient)
    total = [None for _ in nodes]
    for i, (parents, pullback) in list(enumerate(nodes))[::-1]:
        if not arrived[i]:
            continue
        total[i] = functools.reduce(operator.add, arrived[i])
        if pullback:
            for p, g in zip(parents, pullback(total[i])):
                arrived[p].append(g)
    return total
""", """
def add(a, b):
    if a is None:
        return b
    return a + b

def backward(nodes, gradient):
    result = [None for _ in range(len(nodes) - 1)] + [gradient]
    k = len(nodes) - 1
    while k >= 0:
        parents, pullback = nodes[k]
        if result[k] is not None and pullback is not None:
            parts = pullback(result[k])
            for m in range(len(parents)):
                result[parents[m]] = add(result[parents[m]], parts[m])
        k -= 1
    return result
""", """
class Tape:
    def __init__(self, nodes):
        self.nodes, self.grad = nodes, {}

    def receive(self, i, g):
        self.grad[i] = np.add(self.grad[i], g) if i in self.grad else g

    def run(self, gradient):
        self.receive(len(self.nodes) - 1, gradient)
        for i in range(len(self.nodes))[::-1]:
            parents, pull = self.nodes[i]
            if pull is not None and i in self.grad:
                for p, g in zip(parents, pull(self.grad[i])):
                    self.receive(p, g)
        return [self.grad.get(i) for i in range(len(self.nodes))]

def backward(nodes, gradient):
    return Tape(nodes).run(gradient)
""")
tape.wrong("the last gradient overwrites the others", r"overwr|accumul|add|sum|replac",
    "g if grads[p] is None else grads[p] + g", "g")
tape.wrong("walks from the front", r"revers|from the (last|end)|go backward|backwards|first to (the )?last",
    "reversed(range(len(nodes)))", "range(len(nodes))")
tape.wrong("adds in place to an array that others hold", r"in place|\+=|same array|copy",
    "grads[p] = g if grads[p] is None else grads[p] + g",
    "if grads[p] is None:\n                grads[p] = g\n            else:\n                grads[p] += g")
wrong("backward", "a pullback for every path", r"once|more than|times|whole gradient|every path", """
def backward(nodes, gradient):
    grads = [None] * len(nodes)
    def go(i, g):
        grads[i] = g if grads[i] is None else grads[i] + g
        parents, pullback = nodes[i]
        if pullback is not None:
            for p, part in zip(parents, pullback(g)):
                go(p, part)
    go(len(nodes) - 1, gradient)
    return grads
""")
tape.wrong("calls pullbacks of nodes that no gradient reaches", r"no gradient|reach|is None|arriv",
    "pullback is None or grads[i] is None", "pullback is None")
tape.wrong("zero where no gradient arrives", r"\bNone\b", "[None] * len(nodes)", "[0.0] * len(nodes)",
    "g if grads[p] is None else ", "", " or grads[i] is None", "")
tape.wrong("starts with 1", r"starts? (with|from)|gradient (is|of the last)|not used|ignor|dy\b", "grads[-1] = gradient", "grads[-1] = np.ones_like(gradient)")
tape.wrong("a parent that occurs twice counts once", r"twice|both|each (use|time)|occurs|several", "zip(parents, pullback(grads[i]))", "dict(zip(parents, pullback(grads[i]))).items()")
tape.wrong("gradients of leaves alone", r"every node|each node|all nodes|\d+ (entries|gradients)|length|intermediate", "return grads", "return [g for g, (_, f) in zip(grads, nodes) if f is None]")
tape.wrong("nothing returned", r"return missing", "    return grads\n", "")
tape.wrong("the gradient is not put in its place", r"gradient of", "grads[-1] = gradient", "pass")
wrong("backward", "only the first parent", r"parent|only one|None|nothing arrived", """
def backward(nodes, gradient):
    grads = [None] * (len(nodes) - 1) + [gradient]
    for k in range(len(nodes) - 1, -1, -1):
        parents, pullback = nodes[k]
        if pullback and grads[k] is not None:
            p, g = parents[0], pullback(grads[k])[0]
            grads[p] = g if grads[p] is None else grads[p] + g
    return grads
""")
wrong("backward", "zeros for nodes without a gradient", r"None", """
def backward(nodes, gradient):
    grads = [0.0] * len(nodes)
    grads[-1] = gradient
    for k in reversed(range(len(nodes))):
        parents, pullback = nodes[k]
        if pullback is not None:
            for p, g in zip(parents, pullback(grads[k])):
                grads[p] = grads[p] + g
    return grads
""")
wrong("backward", "the gradient is added once more", r"twice|times|factor|2 times|added|sum", """
def backward(nodes, gradient):
    grads = [None] * len(nodes)
    grads[-1] = gradient
    for k in range(len(nodes))[::-1]:
        parents, pull = nodes[k]
        if pull is None or grads[k] is None:
            continue
        for i, p in enumerate(parents):
            g = pull(grads[k])[i]
            grads[p] = g if grads[p] is None else grads[p] + g
    return grads
""")
wrong("backward", "parents are walked by recursion", r"times|once|complete|recurs", """
def backward(nodes, gradient):
    grads = [None] * len(nodes)

    def walk(k, g):
        grads[k] = g if grads[k] is None else grads[k] + g
        parents, pull = nodes[k]
        if pull:
            for p, d in zip(parents, pull(g)):
                walk(p, d)

    walk(len(nodes) - 1, gradient)
    return grads
""")
wrong("backward", "the leaves are skipped", r"leaf", """
def backward(nodes, gradient):
    grads = [None] * len(nodes)
    grads[-1] = gradient
    for k in range(len(nodes) - 1, -1, -1):
        parents, pull = nodes[k]
        if pull is None or grads[k] is None:
            continue
        for p, g in zip(parents, pull(grads[k])):
            if nodes[p][1] is None:
                continue
            grads[p] = g if grads[p] is None else grads[p] + g
    return grads
""")
