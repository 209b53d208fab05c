"""Tasks of chapter 02: pullbacks of products, the order of a graph, and the tape."""

import numpy as np

from minimha_autograd import gradcheck

from ..comparisons import same, value_of
from ..task import task
from .ch01_arrays import unbroadcast


@task(chapter=2, difficulty=1, minutes=5, given=(unbroadcast,), hints=(
    "Look at one entry, y = a b. If a grows by a little, y grows by b times as much.",
    "da is dy times b, and db is dy times a: entry by entry, broadcasting as the value did. "
    "Where an argument was repeated, its gradient is a sum: unbroadcast takes it.",
    "unbroadcast(dy * b, a.shape) is da; db is the same with a and b in each other's place.",
))  # fmt: skip
def multiply(a, b):
    """The product entry by entry, with broadcasting, and its pullback.

    a, b  arrays whose shapes broadcast
    Returns y = a * b and the function that takes dy, of the shape of y, to a tuple with two
    gradients, (da, db): da has the shape of a, db that of b.
    """
    y = a * b

    def pullback(dy):
        # BEGIN SOLUTION: return a tuple with two gradients, (da, db)
        return unbroadcast(dy * b, a.shape), unbroadcast(dy * a, b.shape)
        # END SOLUTION

    return y, pullback


@multiply.check
def arrays_of_one_shape(yours, rng):
    a, b = rng.standard_normal((2, 3, 4))
    same(value_of(yours(a, b), "multiply"), a * b, "y")
    gradcheck(yours, a, b, names=["a", "b"])


@multiply.check(weight=2)
def arrays_that_broadcast(yours, rng):
    for a_shape, b_shape in [((3, 4), (4,)), ((3, 1), (2, 1, 4)), ((2, 1), (3, 2, 1))]:
        a, b = rng.standard_normal(a_shape), rng.standard_normal(b_shape)
        same(value_of(yours(a, b), "multiply"), a * b, "y")
        gradcheck(yours, a, b, names=["a", "b"])


@task(chapter=2, difficulty=2, minutes=10, given=(unbroadcast,), hints=(
    "Write one entry as a sum, y[n, m] = Σ_k a[n, k] b[k, m]. Which entries of y does a[n, k] "
    "reach, and with which factor?",
    "da = dy bᵀ and db = aᵀ dy. The shapes leave no other choice: try them with n, k, m. In a "
    "stack transpose the last two axes only, .mT, where .T would turn all of them around.",
    "unbroadcast(dy @ b.mT, a.shape), unbroadcast(a.mT @ dy, b.shape)",
))  # fmt: skip
def matmul(a, b):
    """The product of two matrices, or of two stacks of them, and its pullback.

    a  (…, n, k)
    b  (…, k, m): the axes in front broadcast, so that one matrix can meet a whole stack
    Returns y = a @ b (…, n, m) and the function that takes dy (…, n, m) to a tuple with two
    gradients, (da, db): da has the shape of a, db that of b.
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


@task(chapter=2, difficulty=2, minutes=12, hints=(
    "A name may be listed once everything it was made from is listed. At first that is true of "
    "the leaves only. Which names can follow?",
    "Count for each name how many parents it still waits for, and note its children. Keep a list "
    "of the names that wait for none and go through it: each lowers the count of each of its "
    "children by one, and a child whose count reaches 0 is appended to the list.",
    "waits = {name: len(made_from) for …}; ready = [those that wait for 0]; then `for name in "
    "ready:` also visits the names appended on the way. At the end ready is the answer.",
))  # fmt: skip
def topological_order(parents):
    """All steps of a computation in an order in which it could be done.

    parents  a dict: each name with the list of the names that it was made from, [] for a leaf. The
             dict is in no order; a name can be in a list twice, as for b = a + a, {"b": ["a", "a"]}
    Returns a list with every name once, each after all that it was made from. A chain of thousands
    of steps must not exceed Python's recursion limit: use a loop.
    """
    # BEGIN SOLUTION
    waits = {name: len(made_from) for name, made_from in parents.items()}
    children = {name: [] for name in parents}
    for name, made_from in parents.items():
        for parent in made_from:
            children[parent].append(name)
    ready = [name for name in parents if waits[name] == 0]
    for name in ready:  # which grows on the way
        for child in children[name]:
            waits[child] -= 1
            if waits[child] == 0:
                ready.append(child)
    return ready
    # END SOLUTION


def _ordered(yours, parents):
    """The answer, with every name in it once."""
    order = yours(parents)
    if not isinstance(order, list):
        kind = "None: is a return missing?" if order is None else f"a {type(order).__name__}"
        raise AssertionError(f"topological_order should return a list, not {kind}")
    for name in [*parents, *order]:
        times = order.count(name) if name in parents else 0
        if times != 1:
            asked = "it should be there once" if name in parents else "no step is called that"
            raise AssertionError(
                f"{name!r:.20} is in the list {order.count(name)} times; {asked}"
                f"{_told(parents, order)}"
            )
    return order


def _told(parents, order):
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
                    f"{name} stands before {parent}, which it was made from{_told(parents, order)}"
                )


@topological_order.check
def every_name_once(yours, rng):
    _ordered(yours, {"a": [], "b": ["a", "a"], "c": ["b", "b"]})
    _ordered(yours, {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "alone": []})


@topological_order.check(weight=2)
def what_it_was_made_from_comes_first(yours, rng):
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
    # The last stands first, where a recursion has to go all the way down. The others are in order,
    # so that who goes through the dict again and again is done in time.
    made = {f"v{k}": [f"v{k - 1}"] if k else [] for k in (3999, *range(3999))}
    order = yours(made)
    if order != [f"v{k}" for k in range(4000)]:
        raise AssertionError("a chain has only one order, that of its links; yours is different")


@task(chapter=2, difficulty=2, minutes=10, hints=(
    "Go through the nodes from the last to the first. When you come to a node, you have visited "
    "everything that used it, so its gradient is complete.",
    "Start with a list of None, put gradient in its last place, and for each node with a gradient "
    "and a pullback pass on what the pullback returns: the first gradient to reach a parent "
    "becomes its gradient so far, and every other is added to it.",
    "for k in reversed(range(len(nodes))): …; for parent, dx in zip(parents, "
    "pullback(gradients[k])): gradients[parent] = dx if gradients[parent] is None else "
    "gradients[parent] + dx",
))  # fmt: skip
def backward(nodes, gradient):
    """Walk the tape: the gradients of everything that the last node was made from.

    nodes     a list of pairs (parents, pullback), in the order in which they were made. parents are
              the places in this list of what the node was made from; one can be there twice.
              pullback takes the gradient of the node to a tuple with one gradient a parent; it is
              None for a leaf
    gradient  of the last node
    Returns a list with the gradient of every node, None where none arrives. Each pullback is called
    once at most, with the whole gradient of its node.
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


def _walked(yours, made, gradient, advice=""):
    """Compare the gradients of nodes, each with how it is made: (text, parents, pullback)."""
    calls = [0] * len(made)

    def counted(k, pullback):
        def pull(dy):
            calls[k] += 1
            return pullback(dy)

        return pull

    told = "by hand: " + "; ".join(text for text, _, _ in made)
    expected = backward([(parents, pull) for _, parents, pull in made], gradient)
    nodes = [(p, pull and counted(k, pull)) for k, (_, p, pull) in enumerate(made)]
    found = yours(nodes, np.array(gradient) if np.ndim(gradient) else gradient)
    if not isinstance(found, list) or len(found) != len(made):
        kind = f"one of {len(found)}" if isinstance(found, list) else f"a {type(found).__name__}"
        raise AssertionError(
            f"backward should return a list of {len(made)} gradients, not {kind}\n{told}"
        )
    for (text, _, _), dx, right, times in zip(made, found, expected, calls, strict=True):
        name = text.partition(" ")[0]
        if right is None and dx is not None:
            raise AssertionError(f"the gradient of {name} should be None, not {dx!s:.30}\n{told}")
        if right is not None and dx is None:
            raise AssertionError(f"the gradient of {name} is None: nothing arrived\n{told}")
        if right is not None:
            same(dx, right, f"the gradient of {name}", advice=told + advice)
        if times > 1:
            raise AssertionError(
                f"the pullback of {name} was called {times} times, once is right\n{told}"
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
def uses_add_up(yours, rng):
    made = [("a", [], None), ("b = a + a", [0, 0], _twice), ("c = b + b", [1, 1], _twice)]
    _walked(yours, made, 1.0)
    b = float(rng.uniform(1, 2))
    made = [
        ("a", [], None),
        ("b = 3 * a", [0], lambda dy: (3 * dy,)),
        ("c = b * b", [1, 1], lambda dy: (dy * b, dy * b)),
        ("d = b + c", [1, 2], _twice),
    ]
    _walked(yours, made, 1.0)


@backward.check
def what_was_not_used_has_none(yours, rng):
    made = [
        ("a", [], None),
        ("b", [], None),
        ("unused = 3 * b", [1], lambda dy: (3 * dy,)),
        ("c = 2 * a", [0], lambda dy: (2 * dy,)),
    ]
    _walked(yours, made, rng.standard_normal(3))


@backward.check
def one_array_as_two_gradients(yours, rng):
    made = [
        ("a", [], None),
        ("b", [], None),
        ("c = a + b", [0, 1], _twice),
        ("d = a + c", [0, 2], _twice),
    ]
    advice = ". Its pullback returns one array for both: += would change both"
    _walked(yours, made, rng.standard_normal(3), advice)
