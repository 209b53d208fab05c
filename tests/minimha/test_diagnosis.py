"""A wrong gradient is found where its fault stands, and its cause is named: the whole catalogue."""

import functools
import inspect
import itertools
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from catalogue import CATALOGUE, HEALTHY

import minimha as mh

WRONG = [bug for bug in CATALOGUE if not bug.hygiene]
RESTLESS = [bug for bug in CATALOGUE if bug.hygiene]
NAMED = 0.95  # the share of the causes that must be named right


class Nodes:
    """The inputs and intermediates of a function by name: values, gradients, what needs what."""

    def __init__(self, make):
        self.f, self.inputs = make(np.random.default_rng(0))
        self.parameters = list(inspect.signature(self.f).parameters)[: len(self.inputs)]
        given = dict(zip(self.parameters, self.inputs, strict=True))
        self.values = {k: x for k, x in given.items() if x.dtype.kind == "f"}
        real = list(self.values)
        out, pullback = self.f(*self.inputs, tap=lambda k, x: self.values.setdefault(k, x))
        self.cotangent = np.random.default_rng(1).standard_normal(np.shape(out))
        *gradients, tapped = pullback(self.cotangent.copy())
        self.gradients = dict(zip(real, gradients, strict=True)) | tapped

    def loss(self, moved, by, seen=None):
        """L = Σ c · f with the array by added to a node; seen, a dictionary, gets intermediates."""

        def tap(name, x):
            x = x + by if name == moved else x
            if seen is not None:
                seen[name] = x
            return x

        inputs = [
            x + by if k == moved else x for k, x in zip(self.parameters, self.inputs, strict=True)
        ]
        return (self.cotangent * self.f(*inputs, tap=tap)[0]).sum()

    def numeric(self, name):
        """The gradient of a node by the complex step, entry by entry."""
        gradient = np.zeros(self.values[name].shape)
        for k in np.ndindex(gradient.shape):
            step = np.zeros(gradient.shape, complex)
            step[k] = 1e-20j
            gradient[k] = self.loss(name, step).imag / 1e-20
        return gradient

    def after(self, name):
        """The nodes that are computed from a node: those that move with it."""
        still, moved = {}, {}
        self.loss(None, 0, still)
        by = np.random.default_rng(2).standard_normal(self.values[name].shape)
        self.loss(name, by, moved)
        return {k for k in still if k != name and not np.array_equal(still[k], moved[k])}


@functools.cache
def known(base):
    """The nodes of a healthy function, the numeric gradient of each, and what comes after each."""
    nodes = Nodes(base.make)
    numeric = {k: nodes.numeric(k) for k in nodes.values}
    return nodes, numeric, {k: nodes.after(k) for k in nodes.values}


def zeros_for_none(gradient, like):
    return np.zeros_like(like) if gradient is None else gradient


def off(gradient, numeric):
    """The worst entry's error, of the largest entry; or of 1, where the true gradient is zero."""
    gradient, size = zeros_for_none(gradient, numeric), abs(numeric).max()
    if gradient.shape != numeric.shape:
        return np.inf
    return abs(gradient - numeric).max() / (size if size > 1e-12 else 1.0)


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in HEALTHY])
def test_the_functions_of_the_catalogue_are_right(make, rng):
    nodes, numeric, _ = known(make.__self__)
    assert nodes.gradients.keys() == numeric.keys()
    for k, gradient in nodes.gradients.items():
        assert off(gradient, numeric[k]) < 1e-12, k
        # the complex step itself, by differences, which have no imaginary part to lose
        way = 1e-5 * rng.standard_normal(gradient.shape)
        change = (nodes.loss(k, way) - nodes.loss(k, -way)) / 2
        size = np.linalg.norm(way) * np.linalg.norm(numeric[k])
        assert abs(change - (way * numeric[k]).sum()) < 1e-5 * size + 1e-13, k


@pytest.mark.parametrize("bug", WRONG, ids=lambda bug: bug.name)
def test_the_catalogue_is_what_it_says(bug):
    nodes, (_, numeric, after) = Nodes(bug.make), known(bug.base)
    errors = {k: off(nodes.gradients[k], numeric[k]) for k in numeric}
    wrong = {k for k, error in errors.items() if error > 1e-3}
    assert {k for k in wrong if not after[k] & wrong} == set(bug.node)
    assert all(error < 1e-12 for k, error in errors.items() if k not in wrong)


def test_no_two_bugs_are_alike():
    assert len({bug.name for bug in CATALOGUE}) == len(CATALOGUE)
    for one, other in itertools.combinations(WRONG, 2):
        if one.base is other.base and one.node == other.node:
            pair = [Nodes(bug.make).gradients for bug in (one, other)]
            like = [known(one.base)[1][k] for k in one.node]
            a, b = (
                [zeros_for_none(g[k], x) for k, x in zip(one.node, like, strict=True)] for g in pair
            )
            same = [x.shape == y.shape and np.allclose(x, y) for x, y in zip(a, b, strict=True)]
            assert not all(same), (one.name, other.name)


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in HEALTHY])
def test_every_seed_draws_new_inputs(make):
    (_, one), (_, other) = (make(np.random.default_rng(seed)) for seed in (0, 1))
    pairs = zip(one, other, strict=True)
    assert all(x.shape == y.shape and not np.array_equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("bug", RESTLESS, ids=lambda bug: bug.name)
def test_what_does_not_hold_still_moves(bug, rng):
    f, inputs = bug.make(rng)
    (out, pullback), (_, anew) = f(*inputs), f(*inputs)
    cotangent = rng.standard_normal(out.shape)

    def run(pull):
        *gradients, tapped = pull(cotangent)
        return [np.copy(x) for x in (*gradients, *tapped.values())]

    first, second, third = run(pullback), run(pullback), run(anew)
    assert not all(map(np.array_equal, first * 2, second + third))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in HEALTHY])
def test_a_right_gradient_raises_no_alarm(make, seed):
    f, inputs = make(np.random.default_rng(seed))
    mh.gradcheck(f, *inputs, rng=seed)


@functools.cache
def diagnosis(bug):
    """What the gradient check says of a bug: nodes and cause."""
    f, inputs = bug.make(np.random.default_rng(0))
    try:
        mh.gradcheck(f, *inputs)
    except mh.GradcheckError as error:
        found = getattr(error, "diagnosis", None)
        return found or SimpleNamespace(nodes=(), cause="(no diagnosis)")
    return SimpleNamespace(nodes=(), cause="(passed)")


@pytest.mark.parametrize("bug", WRONG, ids=lambda bug: bug.name)
def test_a_fault_is_located(bug):
    assert set(diagnosis(bug).nodes) == set(bug.node)


@pytest.mark.parametrize("bug", RESTLESS, ids=lambda bug: bug.name)
def test_what_does_not_hold_still_is_told(bug):
    f, inputs = bug.make(np.random.default_rng(0))
    with pytest.raises(mh.GradcheckError, match=bug.match):
        mh.gradcheck(f, *inputs)


def confusion(pairs):
    """Rows of a table of (true, named): a row a true cause, a column a named one, numbered alike."""
    counts = Counter(pairs)
    true, named = ({pair[n] for pair in counts} for n in (0, 1))
    causes = sorted(true | named)
    columns = [n for n, cause in enumerate(causes) if cause in named]
    rows = [["", "cause", *(str(n + 1) for n in columns)]]
    for n, cause in enumerate(causes):  # one that is only named has a row for its number alone
        cells = (str(counts[cause, causes[k]] or ".") for k in columns if cause in true)
        rows.append([str(n + 1), cause, *cells])
    return rows


def test_causes_are_named(tables):
    named = {bug: diagnosis(bug).cause for bug in WRONG}
    misses = [
        f"{b.name}: {b.cause}, named {cause}" for b, cause in named.items() if b.cause != cause
    ]
    right = len(WRONG) - len(misses)
    tables[f"causes of wrong gradients: {right} of {len(WRONG)} named right"] += confusion(
        (bug.cause, cause) for bug, cause in named.items()
    )
    assert right >= NAMED * len(WRONG), "\n".join(misses)


def test_the_confusion_table_counts():
    pairs = [("scale", "scale")] * 11 + [("scale", "factor"), ("sign", "sign"), ("zero", "factor")]
    assert confusion(pairs) == [
        ["", "cause", "1", "2", "3"],
        ["1", "factor"],
        ["2", "scale", "1", "11", "."],
        ["3", "sign", ".", ".", "1"],
        ["4", "zero", "1", ".", "."],
    ]
