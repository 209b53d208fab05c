"""Tasks of chapter 02: pullbacks of products, topological order, and the tape."""

import numpy as np

from minimha_autograd import gradcheck

from ..comparisons import same, value_of
from ..task import task
from .ch01_arrays import unbroadcast


@task(chapter=2, difficulty=1, minutes=5, given=(unbroadcast,), hints=(
    "Look at one entry, y = a b. If a grows by a little, y grows by b times as much.",
    "da is dy times b, and db is dy times a, entry by entry, broadcast as in the forward. Where "
    "broadcasting copied an argument, its gradient is the sum over the copies: use unbroadcast.",
    "da is unbroadcast(dy * b, a.shape). For db, swap a and b.",
))  # fmt: skip
def multiply(a, b):
    """The elementwise product, with broadcasting, and its pullback.

    a, b  arrays whose shapes broadcast
    Returns y = a * b, and a function that takes dy, an array of the shape of y, and returns a tuple
    of two gradients, (da, db): da has the shape of a, db the shape of b.
    """
    y = a * b

    def pullback(dy):
        # BEGIN SOLUTION: return a tuple with two gradients, (da, db)
        return unbroadcast(dy * b, a.shape), unbroadcast(dy * a, b.shape)
        # END SOLUTION

    return y, pullback


@multiply.check
def arrays_of_the_same_shape(yours, rng):
    a, b = rng.standard_normal((2, 3, 4))
    same(value_of(yours(a, b), "multiply"), a * b, "y")
    gradcheck(yours, a, b, names=["a", "b"])


@multiply.check(weight=2)
def arrays_that_broadcast(yours, rng):
    for a_shape, b_shape in [((3, 4), (4,)), ((3, 1), (2, 1, 4)), ((2, 1), (3, 2, 1))]:
        a, b = rng.standard_normal(a_shape), rng.standard_normal(b_shape)
        same(value_of(yours(a, b), "multiply"), a * b, "y")
        gradcheck(yours, a, b, names=["a", "b"])


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


@task(chapter=2, difficulty=2, minutes=10, given=(unbroadcast,), hints=(
    "Write one entry as a sum, y[n, m] = Σ_k a[n, k] b[k, m]. Which entries of y depend on "
    "a[n, k], and with which factor?",
    "da = dy bᵀ and db = aᵀ dy: write down their shapes in n, k, m, and no other product fits. In "
    "a stack, transpose only the last two axes: .mT, where .T would reverse all axes.",
    "unbroadcast(dy @ b.mT, a.shape), unbroadcast(a.mT @ dy, b.shape)",
))  # fmt: skip
def matmul(a, b):
    """The product of two matrices, or of two stacks of them, and its pullback.

    a  (…, n, k)
    b  (…, k, m); the axes in front broadcast, so one matrix can be multiplied by a whole stack
    Returns y = a @ b (…, n, m), and a function that takes dy (…, n, m) and returns a tuple of two
    gradients, (da, db): da has the shape of a, db the shape of b.
    """
    y = a @ b

    def pullback(dy):
        # BEGIN SOLUTION: return a tuple with two gradients, (da, db)
        return unbroadcast(dy @ b.mT, a.shape), unbroadcast(a.mT @ dy, b.shape)
        # END SOLUTION

    return y, pullback


def _products(yours, rng, *shapes):
    for a_shape, b_shape in shapes:
        a, b = rng.standard_normal(a_shape), rng.standard_normal(b_shape)
        same(value_of(yours(a, b), "matmul"), a @ b, "y")
        gradcheck(yours, a, b, names=["a", "b"])


@matmul.check
def two_matrices(yours, rng):
    _products(yours, rng, ((3, 4), (4, 5)))


@matmul.check
def two_stacks_of_matrices(yours, rng):
    _products(yours, rng, ((2, 3, 4), (2, 4, 5)))


@matmul.check
def one_matrix_and_a_stack(yours, rng):
    _products(yours, rng, ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((1, 2, 3, 4), (3, 2, 4, 2)))


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
        "a reshape is no transpose, it only cuts the same numbers into other rows: .mT",
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


@task(chapter=2, difficulty=2, minutes=12, hints=(
    "A name can be listed once all its parents are listed. At first that is true only of the "
    "leaves. Which names can follow?",
    "For each name, count the parents it still waits for, and collect its children. Keep a list "
    "of the names that wait for no parent and loop over it: each name in it lowers the count of "
    "its children by one, and a child whose count reaches 0 is appended to the list.",
    "waits = {name: len(made_from) for …}; ready = [the names with waits[name] == 0]; the loop "
    "`for name in ready:` also visits names appended during the loop. At the end, return ready.",
))  # fmt: skip
def topological_order(parents):
    """The steps of a computation, in an order in which they can be computed.

    parents  a dict from each name to the list of its parents, the names that it is computed from;
             [] for a leaf. The dict is in no particular order. A name can be in a list twice: for
             b = a + a, the dict has {"b": ["a", "a"]}
    Returns a list with every name once, each after all its parents. A chain of thousands of steps
    must not exceed Python's recursion limit: use a loop.
    """
    # BEGIN SOLUTION
    waits = {name: len(made_from) for name, made_from in parents.items()}
    children = {name: [] for name in parents}
    for name, made_from in parents.items():
        for parent in made_from:
            children[parent].append(name)
    ready = [name for name in parents if waits[name] == 0]
    for name in ready:  # the list grows during the loop
        for child in children[name]:
            waits[child] -= 1
            if waits[child] == 0:
                ready.append(child)
    return ready
    # END SOLUTION


def _ordered(yours, parents):
    """The student's list, after checking that every name is in it once."""
    order = yours(parents)
    if not isinstance(order, list):
        kind = "None: is a return missing?" if order is None else f"a {type(order).__name__}"
        raise AssertionError(f"topological_order should return a list, not {kind}")
    for name in [*parents, *order]:
        times = order.count(name) if name in parents else 0
        if times != 1:
            asked = "it should be there once" if name in parents else "no step has that name"
            if not order.count(name):
                asked += ":\nif its parents are not listed yet, it has to wait"
            raise AssertionError(
                f"{name!r:.20} is in the list {order.count(name)} times; {asked}"
                f"{_shown(parents, order)}"
            )
    return order


def _shown(parents, order):
    if len(order) > 8 or len(parents) > 6:
        return ""
    made = [f"  {name} from {', '.join(p) or 'nothing'}" for name, p in parents.items()]
    return "\n".join(["", "parents:", *made, f"yours: {order!s:.70}"])


def _in_order(yours, parents):
    order = _ordered(yours, parents)
    place = {name: k for k, name in enumerate(order)}
    for name, made_from in parents.items():
        for parent in made_from:
            if place[parent] > place[name]:
                raise AssertionError(
                    f"{name} comes before {parent}, its parent: it has to wait until all its\n"
                    f"parents are listed{_shown(parents, order)}"
                )


@topological_order.check
def every_name_appears_once(yours, rng):
    _ordered(yours, {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "alone": []})
    _ordered(yours, {"a": [], "b": ["a", "a"], "c": ["b", "b"]})


@topological_order.check(weight=2)
def parents_come_first(yours, rng):
    _in_order(yours, {"a": [], "b": ["a", "a"], "c": ["b", "b"]})
    _in_order(yours, {"c": ["b", "b"], "b": ["a", "a"], "a": []})
    _in_order(yours, {"d": ["a", "c"], "c": ["b"], "b": ["a"], "a": []})
    _in_order(yours, {"a": [], "c": ["a", "a", "b"], "b": ["a"]})
    for size in (6, 30):
        names = [f"v{k}" for k in rng.permutation(size)]
        made = {}
        for k in rng.permutation(size):
            made[names[k]] = [names[j] for j in rng.integers(0, k, min(k, 2))]
        _in_order(yours, made)


@topological_order.check
def a_chain_of_4000_steps(yours, rng):
    # The last step comes first, so that a recursion from there has to go all the way down. The
    # others are in order, so that an answer that scans the dict repeatedly finishes in time.
    made = {f"v{k}": [f"v{k - 1}"] if k else [] for k in (3999, *range(3999))}
    order = yours(made)
    if order != [f"v{k}" for k in range(4000)]:
        raise AssertionError("a chain has only one right order, and yours is different")


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
    "each name comes before its parents, which is the order of the backward: reverse the list",
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


@task(chapter=2, difficulty=2, minutes=10, hints=(
    "Go through the nodes from the last to the first. When you reach a node, you have already "
    "visited everything computed from it, so its gradient is complete.",
    "Start with a list of None and put gradient in its last place. For each node that has a "
    "gradient and a pullback, call the pullback. The first gradient that reaches a parent is "
    "stored, and every further one is added to it.",
    "for k in reversed(range(len(nodes))): …; for parent, dx in zip(parents, "
    "pullback(gradients[k])): gradients[parent] = dx if gradients[parent] is None else "
    "gradients[parent] + dx",
))  # fmt: skip
def backward(nodes, gradient):
    """Walk the tape backward: the gradients of everything that the last node depends on.

    nodes     a list of pairs (parents, pullback), in the order in which the nodes were computed.
              parents lists the indices of the node's parents in nodes; an index can occur twice.
              pullback takes the gradient of the node and returns a tuple with one gradient for each
              parent; for a leaf, pullback is None
    gradient  the gradient of the last node
    Returns a list with the gradient of every node, None for a node that receives none. Each
    pullback is called at most once, with the complete gradient of its node.
    """
    # BEGIN SOLUTION
    gradients = [None] * len(nodes)
    gradients[-1] = gradient
    for k in reversed(range(len(nodes))):
        parents, pullback = nodes[k]
        if pullback is None or gradients[k] is None:
            continue
        for parent, dx in zip(parents, pullback(gradients[k]), strict=True):
            gradients[parent] = dx if gradients[parent] is None else gradients[parent] + dx
    return gradients
    # END SOLUTION


def _walked(yours, made, gradient):
    """Compare the gradients of nodes, each given as (formula, parents, pullback)."""
    calls = [0] * len(made)

    def counted(k, pullback):
        def pull(dy):
            calls[k] += 1
            return pullback(dy)

        return pull

    graph = "the graph: " + "; ".join(text for text, _, _ in made)
    expected = backward([(parents, pull) for _, parents, pull in made], gradient)
    nodes = [(p, pull and counted(k, pull)) for k, (_, p, pull) in enumerate(made)]
    found = yours(nodes, np.array(gradient) if np.ndim(gradient) else gradient)
    if not isinstance(found, list) or len(found) != len(made):
        kind = f"{len(found)}" if isinstance(found, list) else f"a {type(found).__name__}"
        kind = "None: is a return missing?" if found is None else kind
        raise AssertionError(
            f"backward should return a list of {len(made)} gradients, not {kind}\n{graph}"
        )
    for (text, _, _), dx, right, times in zip(made, found, expected, calls, strict=True):
        name = text.partition(" ")[0]
        if right is None and dx is not None:
            raise AssertionError(f"the gradient of {name} should be None, not {dx!s:.30}\n{graph}")
        if right is not None and dx is None:
            raise AssertionError(f"the gradient of {name} is None: nothing arrived\n{graph}")
        if right is not None:
            same(dx, right, f"the gradient of {name} ({graph})")
        if times > 1:
            raise AssertionError(
                f"the pullback of {name} was called {times} times: call it once, with\n"
                f"the complete gradient of {name}\n{graph}"
            )


def _twice(dy):
    return dy, dy


@backward.check
def a_chain(yours, rng):
    x, w = rng.standard_normal(3), rng.standard_normal((4, 3))
    y = np.exp(x)
    made = [
        ("x", [], None),
        ("y = exp(x)", [0], lambda dy: (dy * y,)),
        ("z = w @ y", [1], lambda dy: (w.T @ dy,)),
    ]
    _walked(yours, made, rng.standard_normal(4))


@backward.check(weight=2)
def gradients_of_several_uses_add_up(yours, rng):
    made = [("a", [], None), ("b = a + a", [0, 0], _twice), ("c = b + b", [1, 1], _twice)]
    _walked(yours, made, 1.5)
    b = float(rng.uniform(1, 2))
    made = [
        ("a", [], None),
        ("b = 3 * a", [0], lambda dy: (3 * dy,)),
        ("c = b * b", [1, 1], lambda dy: (dy * b, dy * b)),
        ("d = b - c", [1, 2], lambda dy: (dy, -dy)),
    ]
    _walked(yours, made, 1.0)


@backward.check
def unused_nodes_have_no_gradient(yours, rng):
    made = [
        ("a", [], None),
        ("b", [], None),
        ("e = 2 * a", [0], lambda dy: (2 * dy,)),
        ("unused = 3 * b", [1], lambda dy: (3 * dy,)),
        ("leaf", [], None),
        ("c = e + leaf", [2, 4], _twice),
    ]
    _walked(yours, made, rng.standard_normal(3))


@backward.check
def one_array_returned_for_two_parents(yours, rng):
    made = [
        ("a", [], None),
        ("b", [], None),
        ("c = a + b", [0, 1], _twice),
        ("d = a + c", [0, 2], _twice),
    ]
    _walked(yours, made, rng.standard_normal(3))


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
    "the last node has no gradient at the start, so that none moves on: gradients[-1] = gradient",
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
