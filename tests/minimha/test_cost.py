"""What things cost: said by `mh.cost`, and counted on arrays that know what is done to them."""

import math
from collections import Counter

import numpy as np
import pytest

import minimha as mh
from minimha_autograd.saved import _arrays

SELF = {
    "one head": dict(B=2, T=5, M=6, H=1),
    "heads": dict(B=2, T=5, M=12, H=3),
    "one sequence": dict(B=1, T=7, M=12, H=4),
    "grouped": dict(B=3, T=5, M=8, H=6, G=2, D=4),
    "wide values": dict(B=2, T=5, M=6, H=3, D=4, Dv=7),
    "no bias": dict(B=2, T=5, M=12, H=4, G=2, Dv=5, bias=False),
    "float64": dict(B=2, T=5, M=6, H=3, dtype="float64"),
}
CROSS = {
    "cross": dict(B=2, T=5, S=9, M=12, H=3),
    "three widths": dict(B=3, T=5, S=4, M=12, H=6, G=2, Mk=7, Mv=10, Dv=5),
    "three widths, no bias": dict(B=1, T=5, S=9, M=12, H=4, G=4, Mk=7, Mv=10, bias=False),
}
LARGE = {  # where numbers a row are few beside numbers a pair
    "heads": dict(B=2, T=61, M=48, H=3),
    "grouped": dict(B=3, T=67, M=40, H=4, G=2, D=12, Dv=9),
    "no bias": dict(B=1, T=71, M=48, H=4, bias=False),
}


WORDS = {"M": "d_model", "H": "num_heads", "G": "num_kv_heads", "D": "head_dim", "Dv": "v_head_dim", "Mk": "kdim", "Mv": "vdim"}  # fmt: skip


class Counted(np.ndarray):
    """An array that counts what is done to it: products by their flops, and the bytes of operands
    and results of everything that makes a new array."""

    products: Counter = Counter()
    bytes = 0

    @classmethod
    def note(cls, inputs, y):
        stored = [real(x) for x in inputs if isinstance(x, np.ndarray)]
        cls.bytes += sum(x.nbytes for x in [*stored, y])

    def __array_ufunc__(self, ufunc, method, *inputs, **settings):
        plain = [to_plain(x) for x in inputs]
        if settings.get("out"):
            settings["out"] = tuple(map(to_plain, settings["out"]))
        y = getattr(ufunc, method)(*plain, **settings)
        if ufunc is np.matmul:
            Counted.products[2 * y.size * plain[0].shape[-1]] += 1
        Counted.note(plain, y)
        return to_counted(y)

    def __array_function__(self, function, types, inputs, settings):
        inputs, settings = to_plain(inputs), to_plain(settings)
        y = function(*inputs, **settings)
        makes = isinstance(y, np.ndarray) and not any(np.may_share_memory(y, x) for x in flat(inputs))
        if makes and function is not np.zeros_like and function is not np.ones_like:
            Counted.note(flat(inputs), y)
        return to_counted(y)

    def reshape(self, *shape, **settings):
        y = to_plain(self).reshape(*shape, **settings)
        if not np.may_share_memory(y, self):
            Counted.note([self], y)
        return to_counted(y)


def real(x):
    """x without the axes along which it only repeats itself."""
    return x[tuple(slice(0, 1) if step == 0 else slice(None) for step in x.strides)]


def to_plain(x):
    if isinstance(x, list | tuple):
        return type(x)(map(to_plain, x))
    if isinstance(x, dict):
        return {name: to_plain(part) for name, part in x.items()}
    return x.view(np.ndarray) if isinstance(x, Counted) else x


def to_counted(x):
    if isinstance(x, list | tuple):
        return type(x)(map(to_counted, x))
    return x.view(Counted) if isinstance(x, np.ndarray) else x


def flat(x):
    if isinstance(x, list | tuple):
        return [part for item in x for part in flat(item)]
    return [x] if isinstance(x, np.ndarray) else []


def tensor(x):
    """A leaf whose array counts."""
    leaf = mh.Tensor(x, requires_grad=True)
    leaf._data = x.view(Counted)
    return leaf


class CountsCopies:
    """A namespace whose copies count, which NumPy does not tell an array of."""

    def __init__(self, xp):
        self.xp = xp

    def __getattr__(self, name):
        return getattr(self.xp, name)

    def asarray(self, x, *, copy):
        Counted.note([x], x)
        return to_counted(self.xp.asarray(to_plain(x), copy=copy))


@pytest.fixture
def count(monkeypatch):
    """What was counted of a function: (products by their flops, bytes)."""
    xp = mh.backend.namespace(np.zeros(1).view(Counted))
    asarray = mh.backend.asarray
    monkeypatch.setitem(mh.backend.known, Counted, CountsCopies(xp))
    monkeypatch.setattr(
        mh.backend, "asarray", lambda x: x if isinstance(x, Counted) else asarray(x)
    )

    def counted(function):
        Counted.products, Counted.bytes = Counter(), 0
        function()
        return Counted.products, Counted.bytes

    return counted


def inputs(rng, letters, make=tensor):
    """Query, key and value; one Tensor in self-attention."""
    s = mh.cost.Setting.of(**letters)
    shapes = (s.B, s.T, s.sizes.d_model), (s.B, s.S, s.sizes.kdim), (s.B, s.S, s.sizes.vdim)
    made = [make(rng.standard_normal(shape).astype(s.dtype)) for shape in shapes]
    return made if s.cross else made[:1] * 3


def heads(rng, letters, make=tensor):
    """Q, K and V."""
    s = mh.cost.Setting.of(**letters)
    z = s.sizes
    shapes = (z.num_heads, s.T, z.head_dim), (z.num_kv_heads, s.S, z.head_dim), (z.num_kv_heads, s.S, z.v_head_dim)
    return [make(rng.standard_normal((s.B, *shape)).astype(s.dtype)) for shape in shapes]


def module(kind, letters, form, make=tensor):
    """Projections or MultiHeadAttention with arrays that make makes."""
    made = {"projections": mh.projections.Projections, "multi-head": mh.MultiHeadAttention}[kind](
        **{WORDS.get(k, k): n for k, n in letters.items() if k not in ("B", "T", "S")}, form=form
    )
    for p in made.parameters():
        p._data = make(p.data)._data
    return made


@mh.operation
def end(*outputs):
    """A number made of several arrays, whose pullback has a cotangent ready for each."""
    ready = tuple(to_counted(np.ones(y.shape, y.dtype)) for y in outputs)
    if type(outputs[0]) is not Counted:
        ready = tuple(map(to_plain, ready))
    return np.ones_like(outputs[0], shape=(1,)), lambda dy: ready


def prepared(kind, letters, how, rng, make=tensor):
    """What is computed, as a function of nothing that returns its last Tensors, and the inputs."""
    if kind == "attention":
        x = heads(rng, letters, make)
        if how == "steps":
            return lambda: [mh.attention_steps(*x).out], x
        return lambda: [mh.scaled_dot_product_attention(*x, implementation=how)], x
    x = inputs(rng, letters, make)
    if kind == "projections":
        made = module(kind, letters, how, make)
        return lambda: made.project(*x), list(dict.fromkeys(x))
    made, implementation = module(kind, letters, how[0], make), how[1]
    return lambda: [made(*x, implementation=implementation)], list(dict.fromkeys(x))


def cost(kind, letters, how, **settings):
    how = how if isinstance(how, tuple) else (how,)
    return getattr(mh.cost, {"multi-head": "multi_head"}.get(kind, kind))(*how, **settings, **letters)


FORMS = tuple(mh.projections.FORMS)
KINDS = {
    "projections": FORMS,
    "attention": ("reference", "loop", "steps"),
    "multi-head": tuple((form, how) for form in FORMS for how in ("reference", "loop")),
}


def everything(*groups):
    cases = {name: letters for group in groups for name, letters in group.items()}
    return pytest.mark.parametrize(
        ("kind", "how", "letters"),
        [
            pytest.param(kind, how, letters, id=f"{kind}-{how}-{name}")
            for kind, ways in KINDS.items()
            for how in ways
            for name, letters in cases.items()
            if "fused" not in how or not {"S", "Mk", "Mv"} & letters.keys()
        ],
    )


@everything(SELF, CROSS)
def test_parameters_are_those_of_the_module(kind, how, letters):
    if kind == "attention":
        assert cost(kind, letters, how).parameters == 0
        return
    form = how if kind == "projections" else how[0]
    held = sum(p.data.size for p in module(kind, letters, form).parameters())
    assert cost(kind, letters, how).parameters == held


@everything(SELF, CROSS)
def test_products_of_matrices_are_those_that_are_done(kind, how, letters, rng, count):
    f, _ = prepared(kind, letters, how, rng)
    products, _ = count(f)
    forward = cost(kind, letters, how, backward=False)
    assert products == forward.products
    products, _ = count(lambda: end(*f()).backward())
    both = cost(kind, letters, how)
    assert products == both.products
    assert sum(n * times for n, times in products.items()) == both.flops == 3 * forward.flops


@everything(LARGE)
def test_bytes_are_those_of_operands_and_results(kind, how, letters, rng, count):
    f, leaves = prepared(kind, letters, how, rng)
    landed = 2 * sum(x.data.nbytes for x in leaves)  # gradients of the inputs, which are leaves here
    error = {
        "projections": 0,
        "attention": 0.005,  # checks a row
        "multi-head": 0.08,  # copies of heads that lie apart in memory
    }[kind]
    for backward, function in ((False, f), (True, lambda: end(*f()).backward())):
        _, moved = count(function)
        said = cost(kind, letters, how, backward=backward).bytes
        assert said == pytest.approx(moved - landed * backward, rel=error)


@everything(SELF, CROSS)
def test_saved_is_what_the_pullbacks_keep(kind, how, letters, rng, monkeypatch):
    monkeypatch.setattr(mh.backend, "_SMALL", 0)  # a broadcast is a view
    leaves = []

    def leaf(x):
        leaves.append(mh.Tensor(x.copy(), requires_grad=True))
        return leaves[-1]

    function, _ = prepared(kind, letters, how, rng, leaf)
    outputs = function()
    kept = {id(x): x.nbytes for x in map(owner, saved_by(end(*outputs)._node.parents))}
    for x in leaves:
        kept.pop(id(owner(x.data)), None)
    assert cost(kind, letters, how).saved == sum(kept.values())
    assert cost(kind, letters, how, backward=False).saved == 0


def saved_by(nodes):
    """All arrays that the pullbacks of these nodes and those before them close over."""
    waiting, met = list(nodes), set()
    while waiting:
        node = waiting.pop()
        if node is not None and id(node) not in met:
            met.add(id(node))
            waiting += node.parents
            yield from (x for _, x in _arrays(node.pull, "", set()))


def owner(x):
    return x if x.base is None else owner(x.base)
