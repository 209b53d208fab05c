"""Tasks of chapter 02: pullbacks of products, topological order, and the tape."""

import numpy as np

from ..checks.comparisons import instead, same, same_operation
from ..checks.shown import shown
from ..checks.task import task
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


def _same_product(yours, rng, right, shapes, large):
    inputs, large = ([rng.standard_normal(shape) for shape in x] for x in (shapes, large))
    same_operation(yours, right, *inputs, large=large)


multiply.case(
    "arrays of the same shape", _same_product,
    (multiply, [(2, 3), (2, 3)], [(250, 350), (250, 350)]),
)  # fmt: skip
multiply.case(
    "arrays that broadcast", _same_product,
    (multiply, [(3, 4), (4,)], [(400, 350), (350,)]),
    (multiply, [(3, 1), (2, 1, 4)], [(30, 1), (20, 1, 4)]), weight=2,
)  # fmt: skip


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


matmul.case("two matrices", _same_product, (matmul, [(2, 3), (3, 4)], [(5, 20000), (20000, 5)]))
matmul.case(
    "two stacks of matrices", _same_product,
    (matmul, [(4, 2, 3), (4, 3, 1)], [(2, 3, 15000), (2, 15000, 3)]),
)  # fmt: skip
matmul.case(
    "one matrix and a stack", _same_product,
    (matmul, [(4, 1, 2), (2, 3)], [(2, 3, 15000), (15000, 3)]),
    (matmul, [(3, 2), (4, 2, 1)], [(6, 20), (3, 20, 5)]),
    (matmul, [(1, 3, 1, 2), (4, 1, 2, 1)], [(1, 2, 6, 20), (2, 1, 20, 5)]), hidden=True,
)  # fmt: skip


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
        raise AssertionError(instead("yours returns", order, "return a list"))
    for name in [*parents, *order]:
        times = order.count(name) if name in parents else 0
        if times != 1:
            asked = "be there once" if name in parents else "not be there: no step has that name"
            if not order.count(name):
                made_from = parents[name]
                asked += ":\nif its parents are not listed yet, it has to wait"
                if len(set(made_from)) < len(made_from) and set(made_from) <= set(order):
                    asked += ";\na parent that occurs twice is counted twice, so tick it off twice"
            raise AssertionError(
                f"{shown(name):.20} is in the list {order.count(name)} times; it should {asked}"
                f"{_shown(parents, order)}"
            )
    return order


def _shown(parents, order):
    if len(order) > 8 or len(parents) > 6:
        return ""
    made = [f"  {name} from {', '.join(p) or 'nothing'}" for name, p in parents.items()]
    return "\n".join(["", "parents:", *made, f"yours: {shown(order):.70}"])


def _in_order(yours, parents):
    order = _ordered(yours, parents)
    place = {name: k for k, name in enumerate(order)}
    for name, listed in parents.items():
        for parent in listed:
            if place[parent] > place[name]:
                raise AssertionError(
                    f"{name} comes before {parent}, its parent; it should wait until all its\n"
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


@topological_order.check(hidden=True)
def a_chain_of_4000_steps(yours, rng):
    # The last step comes first, so that a recursion from there has to go all the way down. The
    # others are in order, so that an answer that scans the dict repeatedly finishes in time.
    made = {f"v{k}": [f"v{k - 1}"] if k else [] for k in (3999, *range(3999))}
    order = yours(made)
    if not isinstance(order, list) or order != [f"v{k}" for k in range(4000)]:
        raise AssertionError("the list is in another order; it should be v0, v1, … v3999")


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
    found = yours(nodes, gradient)
    if not isinstance(found, list) or len(found) != len(made):
        wanted = f"return a list of {len(made)} gradients"
        raise AssertionError(f"{instead('yours returns', found, wanted)}\n{graph}")
    for (text, _, _), dx, right, times in zip(made, found, expected, calls, strict=True):
        name = text.partition(" ")[0]
        if right is None and dx is not None:
            raise AssertionError(
                f"the gradient of {name} is {shown(dx):.30}; it should be None\n{graph}"
            )
        if right is not None and dx is None:
            raise AssertionError(
                f"the gradient of {name} is None; it should not be: nothing arrived\n{graph}"
            )
        if right is not None:
            same(dx, right, f"the gradient of {name} ({graph})")
        if times > 1:
            raise AssertionError(
                f"the pullback of {name} is called {times} times; it should be called once, with\n"
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
        ("u = 3 * z", [2], lambda dy: (3 * dy,)),
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


@backward.check(hidden=True)
def one_array_returned_for_two_parents(yours, rng):
    made = [
        ("a", [], None),
        ("b", [], None),
        ("c = a + b", [0, 1], _twice),
        ("d = a + c", [0, 2], _twice),
    ]
    _walked(yours, made, rng.standard_normal(3))
