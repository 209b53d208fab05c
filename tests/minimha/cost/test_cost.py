"""Predictions of `mh.cost`, compared with counts by arrays that record every operation on them."""

import itertools
from collections import Counter
from typing import ClassVar

import numpy as np
import pytest

import minimha as mh
from minimha_autograd import tape

SETTINGS = {
    "heads": {"B": 2, "T": 5, "M": 12, "H": 3},
    "one head": {"B": 1, "T": 7, "M": 6, "H": 1, "dtype": "float64"},
    "grouped": {"B": 3, "T": 5, "M": 8, "H": 6, "G": 2, "D": 4, "Dv": 7, "bias": False},
    "cross": {"B": 2, "T": 5, "S": 9, "M": 12, "H": 3},
    "three widths": {"B": 3, "T": 5, "S": 4, "M": 12, "H": 6, "G": 2, "Mk": 7, "Mv": 10, "Dv": 5},
}
LARGE = {  # here numbers per row are negligible beside numbers per pair
    "heads": {"B": 2, "T": 61, "M": 48, "H": 3},
    "grouped": {"B": 3, "T": 67, "M": 40, "H": 4, "G": 2, "D": 12, "Dv": 9, "bias": False},
    "one key head": {"B": 2, "T": 64, "M": 48, "H": 4, "G": 1},
    "one position": {"B": 3, "T": 1, "S": 61, "M": 48, "H": 3, "G": 3, "Dv": 9},
    "cross": {"B": 2, "T": 61, "S": 73, "M": 48, "H": 4, "G": 2, "Mk": 35, "Mv": 52},
}
WORDS = {"M": "d_model", "H": "num_heads", "G": "num_kv_heads", "D": "head_dim", "Dv": "v_head_dim", "Mk": "kdim", "Mv": "vdim"}  # fmt: skip


class Counted(np.ndarray):
    """An array that counts operations on it: products by their flops, and the bytes of the operands
    and results of everything that creates a new array."""

    products: ClassVar = Counter()
    bytes = 0

    @classmethod
    def note(cls, inputs, y):
        stored = [real(x) for x in inputs if isinstance(x, np.ndarray)]
        cls.bytes += sum(x.nbytes for x in [*stored, y])

    def __array_ufunc__(self, ufunc, method, *inputs, **settings):
        plain = to_plain(inputs)
        settings = {name: to_plain(x) for name, x in settings.items()}
        y = getattr(ufunc, method)(*plain, **settings)
        if ufunc is np.matmul:
            Counted.products[2 * y.size * plain[0].shape[-1]] += 1
        if method != "at":  # that changes its operand and returns nothing
            Counted.note(plain, y)
        return to_counted(y)

    def __array_function__(self, function, types, inputs, settings):
        inputs, settings = to_plain(inputs), {name: to_plain(x) for name, x in settings.items()}
        y = function(*inputs, **settings)
        shared = any(np.may_share_memory(y, x) for x in flat(inputs))
        makes = isinstance(y, np.ndarray) and not shared
        if makes and function is not np.zeros_like and function is not np.ones_like:
            Counted.note(flat(inputs), y)
        return to_counted(y)

    def reshape(self, *shape, **settings):
        y = to_plain(self).reshape(*shape, **settings)
        if not np.may_share_memory(y, self):
            Counted.note([self], y)
        return to_counted(y)


def real(x):
    """x without the axes along which it is broadcast."""
    return x[tuple(slice(0, 1) if step == 0 else slice(None) for step in x.strides)]


def mapped(f, x):
    """x with f applied to each array in it."""
    if isinstance(x, list | tuple):
        return type(x)(mapped(f, part) for part in x)
    return f(x) if isinstance(x, np.ndarray) else x


def to_plain(x):
    return mapped(lambda array: array.view(np.ndarray), x)


def to_counted(x):
    return mapped(lambda array: array.view(Counted), x)


def flat(x):
    found = []
    mapped(found.append, x)
    return found


def tensor(x):
    """A leaf whose array counts."""
    leaf = mh.Tensor(x, requires_grad=True)
    leaf._data = x.view(Counted)
    return leaf


class CountsCopies:
    """A namespace that counts copies, because NumPy does not notify the array."""

    def __init__(self, xp):
        self.xp = xp

    def __getattr__(self, name):
        return getattr(self.xp, name)

    def asarray(self, x, *, copy):
        Counted.note([x], x)
        return to_counted(self.xp.asarray(to_plain(x), copy=copy))


@pytest.fixture
def count(monkeypatch):
    """The counts of a function: (products by their flops, bytes)."""
    xp = mh.backend.namespace(np.zeros(1).view(Counted))
    asarray = mh.backend.asarray
    monkeypatch.setitem(mh.backend.namespaces, Counted, CountsCopies(xp))
    monkeypatch.setattr(
        mh.backend, "asarray", lambda x: x if isinstance(x, Counted) else asarray(x)
    )

    def counted(function):
        Counted.products, Counted.bytes = Counter(), 0
        function()
        return Counted.products, Counted.bytes

    return counted


def leaves(kind, letters, rng):
    """Q, K and V, or query, key and value: one Tensor in self-attention."""
    s = mh.cost.Setting.of(**letters)
    z = s.sizes
    shapes = (s.T, z.d_model), (s.S, z.kdim), (s.S, z.vdim)
    if kind == "attention":
        g = z.num_kv_heads
        shapes = (z.num_heads, s.T, z.head_dim), (g, s.S, z.head_dim), (g, s.S, z.v_head_dim)
    made = [tensor(rng.standard_normal((s.B, *shape)).astype(s.dtype)) for shape in shapes]
    return made if s.cross or kind == "attention" else made[:1] * 3


def module(kind, letters, form):
    """Projections or MultiHeadAttention with arrays that count."""
    made = {"projections": mh.projections.Projections, "multi_head": mh.MultiHeadAttention}[kind](
        **{WORDS.get(k, k): n for k, n in letters.items() if k not in ("B", "T", "S")}, form=form
    )
    for p in made.parameters():
        p._data = p.data.view(Counted)
    return made


@mh.operation
def end(*outputs):
    """A number from several arrays, whose pullback returns cotangents made in advance."""
    ready = tuple(to_counted(np.ones(y.shape, y.dtype)) for y in outputs)
    return np.ones_like(outputs[0], shape=(1,)), lambda dy: ready


def prepared(kind, letters, how, rng):
    """A function that computes the last Tensors, its inputs, and its parameters."""
    x = leaves(kind, letters, rng)
    if how == ("steps",):
        return lambda: [mh.attention_steps(*x).out], x, []
    if kind == "attention":
        return lambda: [mh.scaled_dot_product_attention(*x, implementation=how[0])], x, []
    made = module(kind, letters, how[0])
    inputs, parameters = list(dict.fromkeys(x)), list(made.parameters())
    if kind == "projections":
        return lambda: made.project(*x), inputs, parameters
    return lambda: [made(*x, implementation=how[1])], inputs, parameters


def cost(kind, letters, how, **settings):
    return getattr(mh.cost, kind)(*how, **settings, **letters)


EVEN = mh.cost.Machine(  # 1 Gflop/s, 1 GB/s, 1 µs
    products=((8.0, 8e-9), (8e9, 8.0)), walks=((8.0, 8e-9), (8e9, 8.0)), overhead=1e-6
)
FORMS = tuple(mh.projections.FORMS)
CASES = [
    *(("projections", (form,)) for form in FORMS),
    *(("attention", (implementation,)) for implementation in ("reference", "loop", "steps")),
    *(("multi_head", (form, "reference")) for form in FORMS),
    ("multi_head", ("stacked", "loop")),
]


def everything(settings):
    return pytest.mark.parametrize(
        ("kind", "how", "letters"),
        [
            pytest.param(kind, how, letters, id=f"{kind}-{'-'.join(how)}-{name}")
            for kind, how in CASES
            for name, letters in settings.items()
            if not (kind == "multi_head" and name == "one position")  # then copies of K dominate
            if "fused" not in how or not {"S", "Mk", "Mv"} & letters.keys()
        ],
    )


def products_of(cost):
    """The number of matrix products, by their flops."""
    found = Counter()
    for step in cost.primitives:
        if step.flops:
            found[step.flops] += step.times
    return found


@everything(SETTINGS)
def test_predicted_parameters_and_matrix_products_equal_the_counted_ones(
    kind, how, letters, rng, count
):
    f, _, parameters = prepared(kind, letters, how, rng)
    forward, both = cost(kind, letters, how, backward=False), cost(kind, letters, how)
    assert both.parameters == sum(p.data.size for p in parameters)
    assert count(f)[0] == products_of(forward)
    products, _ = count(lambda: end(*f()).backward())
    assert products == products_of(both)
    assert sum(n * times for n, times in products.items()) == both.flops == 3 * forward.flops


@everything(LARGE)
def test_predicted_bytes_are_those_of_operands_and_results(kind, how, letters, rng, count):
    f, inputs, _ = prepared(kind, letters, how, rng)
    landed = 2 * sum(x.data.nbytes for x in inputs)  # their gradients, which are leaves here
    error = {
        "projections": 0,
        "attention": 0.005,  # checks of each row
        "multi_head": 0.08,  # copies of heads that are not adjacent in memory
    }[kind]
    for backward, function in ((False, f), (True, lambda: end(*f()).backward())):
        _, moved = count(function)
        said = cost(kind, letters, how, backward=backward).bytes
        assert said == pytest.approx(moved - landed * backward, rel=error)


@pytest.mark.parametrize("width", [4, 12])
@pytest.mark.parametrize(("keys", "error"), [(2, 0.02), (30, 0.005), (64, 0.005)])
def test_the_fewer_the_keys_the_rougher_the_predicted_bytes_of_attention(
    width, keys, error, rng, count
):
    letters = {"B": 1, "T": keys, "M": 3 * width, "H": 3}
    f, _, _ = prepared("attention", letters, ("reference",), rng)
    _, moved = count(f)
    said = mh.cost.attention(backward=False, **letters).bytes
    assert said == pytest.approx(moved, rel=error)


@pytest.mark.parametrize("form", FORMS)
def test_the_bytes_of_a_few_long_sequences_are_rough_in_the_bilinear_form_alone(form, rng, count):
    letters = {"B": 4, "T": 60, "M": 512, "H": 32}
    f, _, _ = prepared("multi_head", letters, (form, "reference"), rng)
    _, moved = count(f)
    error = mh.cost.multi_head(form, backward=False, **letters).bytes / moved - 1
    assert 0.11 < error < 0.16 if form == "bilinear" else abs(error) < 0.01


def test_the_predicted_bytes_of_the_bilinear_form_are_twice_those_moved_for_one_query(rng, count):
    letters = {"B": 4, "T": 1, "S": 200, "M": 256, "H": 16}
    f, _, _ = prepared("multi_head", letters, ("bilinear", "reference"), rng)
    _, moved = count(f)
    said = mh.cost.multi_head("bilinear", backward=False, **letters).bytes
    assert said == pytest.approx(2 * moved, rel=0.2)


@everything(SETTINGS)
def test_predicted_saved_bytes_are_those_the_pullbacks_keep(kind, how, letters, rng, count):
    f, inputs, parameters = prepared(kind, letters, how, rng)
    last = end(*f())
    kept = {id(x): x.nbytes for x in map(owner, saved_by(last))}
    for x in (*inputs, *parameters):
        kept.pop(id(owner(x.data)), None)
    assert cost(kind, letters, how).saved == sum(kept.values())
    assert cost(kind, letters, how, backward=False).saved == 0


def saved_by(last):
    """All arrays in the closures of the pullbacks, except that of the last node."""
    for node in tape.ancestors(last._edge[0])[1:]:
        yield from tape.saved_arrays(node.function)


def owner(x):
    return x if x.base is None else owner(x.base)


def test_more_heads_move_and_keep_more_at_the_same_flops_and_parameters():
    layers = [mh.cost.multi_head(M=64, H=h, T=32) for h in (1, 4, 16, 64)]
    assert len({(layer.flops, layer.parameters) for layer in layers}) == 1
    for narrow, wide in itertools.pairwise(layers):
        assert wide.bytes > 1.1 * narrow.bytes
        assert wide.saved > 1.1 * narrow.saved


def test_per_head_stacked_and_fused_differ_only_in_calls_and_bytes():
    forms = "per-head", "stacked", "fused"
    per_head, stacked, fused = (mh.cost.projections(f, M=48, H=4, T=7, B=2) for f in forms)
    assert per_head.parameters == stacked.parameters == fused.parameters
    assert per_head.flops == stacked.flops == fused.flops
    assert per_head.calls > stacked.calls > fused.calls
    assert per_head.bytes > stacked.bytes > fused.bytes


def test_time_is_overhead_plus_the_slower_of_flops_and_bytes():
    steps = (
        mh.cost.Primitive(flops=5000, bytes=1000, times=3),
        mh.cost.Primitive(flops=500, bytes=1000, backward=True),
        mh.cost.Primitive(0, 0, times=2),
    )
    assert EVEN.seconds(mh.cost.Cost(primitives=steps)) == pytest.approx(3 * 6e-6 + 2e-6 + 2e-6)


def test_a_batch_of_small_matrices_runs_at_the_speed_of_small_matrices():
    slow_when_small = mh.cost.Machine(((10.0, 1e-6), (1000.0, 1e-5)), ((1.0, 1e-12),), 0.0)
    for matrices, each in ((1, 1e-5), (10, 10**-5.5), (100, 1e-6), (1000, 1e-7)):
        cost = mh.cost.Cost(primitives=(mh.cost.Primitive(flops=1000, bytes=8, matrices=matrices),))
        assert slow_when_small.seconds(cost) == pytest.approx(matrices * each)


def test_a_comparison_shows_every_possible_form():
    text = repr(mh.cost.compare(M=64, H=4, G=2, T=16, machine=EVEN))
    assert "B=1 T=16 M=64 H=4 G=2 D=16" in text
    rows = [line.split()[:2] for line in text.splitlines() if line.split(" ")[0] in FORMS]
    assert [form for form, _ in rows] == list(FORMS)
    made = mh.MultiHeadAttention(64, 4, num_kv_heads=2)
    assert dict(rows)["stacked"] == f"{sum(p.data.size for p in made.parameters()):,}"
    assert "fused" not in mh.cost.compare(M=64, H=4, T=16, S=9, machine=EVEN).costs()


@pytest.mark.parametrize("letters", [
    {"B": 2, "T": 5, "M": 12, "H": 3},
    {"B": 3, "T": 7, "M": 8, "H": 4, "G": 2, "D": 6, "bias": False, "dtype": "float64"},
])  # fmt: skip
def test_a_step_of_a_gpt_takes_what_is_predicted(letters, count):
    sizes = {WORDS.get(k, k): n for k, n in letters.items() if k not in ("B", "T")}
    model = mh.GPT(11, context=letters["T"], num_layers=2, **sizes)
    optimiser = mh.AdamW(model.parameters(), lr=1e-3)
    for p in model.parameters():
        p._data = p.data.view(Counted)
    tokens = np.arange(letters["B"] * letters["T"]).reshape(letters["B"], -1) % 11
    tokens, places = tokens.view(Counted), np.arange(letters["T"]).view(Counted)
    kept = []

    def forward_and_backward():
        with mh.implementation("reference"):
            loss = mh.functional.cross_entropy(model(tokens, positions=places), tokens)
        pairs = letters["T"], letters["T"]
        arrays = {id(owner(x)): x for x in saved_by(loss)}.values()
        kept.extend(x.nbytes for x in arrays if x.shape[-2:] == pairs and x.dtype.kind == "f")
        loss.backward()

    products, _ = count(forward_and_backward)
    for p in model.parameters():
        p._data, p.grad = to_plain(p.data), to_plain(p.grad)
    optimiser.step()
    step = mh.cost.gpt_step(11, 2, **letters)
    assert step.parameters == sum(p.data.size for p in model.parameters())
    assert step.flops == sum(n * times for n, times in products.items())
    moments = [x.nbytes for x in optimiser.state().values() if x.ndim]
    gradients = [p.grad.nbytes for p in model.parameters()]
    values = [p.data.nbytes for p in model.parameters()]
    assert step.state == sum(values + gradients + moments)
    assert step.update == step.state + sum(values + moments)
    assert step.kept == sum(kept)


class CountedCache(mh.KeyValueCache):
    """A cache that returns arrays that count."""

    def joined(self, keys, values):
        joined = super().joined(keys, values)
        for x in joined:
            x._data = x.data.view(Counted)
        return joined


def decoders(letters):
    """The layers that `mh.cost.decoding` compares, and what to pass to each."""
    m, h, d, dv = (letters[k] for k in ("M", "H", "D", "Dv"))
    settings = {"head_dim": d, "v_head_dim": dv, "dtype": letters["dtype"]}
    shared = [
        (mh.MultiHeadAttention(m, h, num_kv_heads=g, bias=False, **settings), {})
        for g in (h, letters["G"], 1)
    ]
    settings |= {"latent": letters["C"], "rope_dim": letters["Dr"], "query_latent": letters["Cq"]}
    latent = mh.LatentAttention(m, h, rope=None, **settings)
    return [*shared, (latent, {"absorbed": False}), (latent, {"absorbed": True})]


@pytest.mark.parametrize("letters", [
    {"B": 1, "S": 383, "M": 36, "H": 6, "D": 8, "Dv": 7, "G": 2, "C": 19, "Dr": 4, "Cq": None, "dtype": "float32"},
    {"B": 3, "S": 397, "M": 40, "H": 4, "D": 10, "Dv": 9, "G": 2, "C": 23, "Dr": 6, "Cq": 13, "dtype": "float64"},
])  # fmt: skip
def test_a_step_of_decoding_takes_what_is_predicted(letters, rng, count):
    predicted = mh.cost.decoding(**letters).steps
    x = rng.standard_normal((letters["B"], letters["S"], letters["M"])).astype(letters["dtype"])
    x = x.view(Counted)
    for (kind, step), (layer, form) in zip(predicted.items(), decoders(letters), strict=True):
        cache, settings = CountedCache(), {"implementation": "reference", **form}
        assert step.cost.parameters == sum(p.data.size for p in layer.parameters())
        for p in layer.parameters():
            p._data = p.data.view(Counted)
        with mh.no_grad():
            layer(x[:, :-1], cache=cache, implementation="reference")
            products, moved = count(lambda: layer(x[:, -1:], cache=cache, **settings))  # noqa: B023
        assert products == products_of(step.cost), kind
        assert step.cost.bytes == pytest.approx(moved, rel=0.01), kind  # norms
        held = cache.keys.data.nbytes + cache.values.data.nbytes
        assert step.cache * letters["B"] * letters["S"] == held, kind
    shown = repr(mh.cost.decoding(**letters))
    assert all(f"\n{kind} " in shown for kind in predicted)


@pytest.mark.thorough
def test_this_machine_is_measured_once():
    machine = mh.cost.calibrate()
    assert mh.cost.calibrate() is machine
    assert 0 < machine.overhead < 1e-2
    for curve in (machine.products, machine.walks):
        assert [n for n, _ in curve] == sorted(n for n, _ in curve)
        assert all(t > 0 for _, t in curve)
    cost = mh.cost.projections(M=64, H=4, T=16)
    assert machine.seconds(cost) > 0
    assert "flop/s at best" in repr(machine)
    assert repr(cost).startswith("12,480 parameters, ")


@pytest.mark.parametrize(("call", "message"), [
    (lambda: mh.cost.projections("stakced", M=6, H=2, T=5), "stakced"),
    (lambda: mh.cost.attention("tiled", M=6, H=2, T=5), "'tiled'"),
    (lambda: mh.cost.multi_head("fused", "steps", M=6, H=2, T=5), "attention_steps"),
    (lambda: mh.cost.projections("fused", M=6, H=2, T=5, S=4), "self-attention"),
    (lambda: mh.cost.projections(H=2, T=5), "M or D must be given"),
    (lambda: mh.cost.compare(M=7, H=2, T=5, machine=EVEN), "M = 7 must be a multiple of H = 2"),
    (lambda: mh.cost.projections(M=8, H=4, G=3, T=5), "must be a multiple of"),
    (lambda: mh.cost.projections(M=8, H=0, T=5), "H = 0 must be at least 1"),
    (lambda: mh.cost.projections(M=8, H=2, T=0), "T = 0 must be at least 1"),
    (lambda: mh.cost.projections(M=8, H=2, T=5, dtype="float16"), "float32 or float64"),
    (lambda: mh.cost.decoding(M=8, H=2, S=5, G=1, C=0, Dr=2), "C = 0 must be at least 1"),
])  # fmt: skip
def test_invalid_combinations_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_speed_up_of_speculative_decoding_by_hand():
    assert mh.cost.speculation(0.5, ahead=2, ratio=0.25) == 1.75 / 1.5
    assert mh.cost.speculation(0.5, ahead=2, ratio=0.25, scoring=2.0) == 1.75 / 2.5
    assert mh.cost.speculation(1.0, ahead=4, ratio=0.0) == 5
    assert mh.cost.speculation(0.31, ahead=1, ratio=0.3) > 1
    assert all(mh.cost.speculation(0.3, ahead=k, ratio=0.3) <= 1 for k in range(1, 9))
    with pytest.raises(
        ValueError, match=r"acceptance must be a probability, from 0 to 1, not 1\.5"
    ):
        mh.cost.speculation(1.5, ahead=1, ratio=0.3)
