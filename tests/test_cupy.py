"""The package on CuPy's arrays: what crosses between host and device, and what the messages say.

`cupy_on_numpy` stands in for CuPy, so that these tests run without a GPU.
"""

import importlib.util
import json
import operator
import re
import sys

import cuda_on_cpu
import cupy_on_numpy
import list_cupy
import numpy as np
import pytest

import minimha as mh
from minimha import functional, masks, nn, training
from minimha.__main__ import main
from minimha.kernels.gpu import cuda, norms
from minimha_autograd import backend, ops

B, H, G, T, D = 2, 4, 2, 6, 8
IDS = np.array([[0, 0, 1, 1, 1, 2], [0, 1, 1, 2, 2, 2]])
TOKENS = np.arange(200) * 7 % 11
GPT2 = {"d_model": 16, "num_heads": 2}
LLAMA = {
    "d_model": 16, "num_heads": 4, "num_kv_heads": 2, "norm": "rms", "activation": "swiglu",
    "bias": False, "rope": mh.positions.Rope(),
}  # fmt: skip

SLOW = pytest.mark.thorough
WHY = cuda_on_cpu.unavailable()
COMPILES = [SLOW, pytest.mark.skipif(WHY is not None, reason=str(WHY))]


@pytest.fixture(params=["reference", pytest.param("auto", marks=COMPILES)])
def traffic(request, monkeypatch):
    """The counts, where operations run without kernels, and where kernels are compiled."""
    # A CPU needs longer to start a thread of a kernel than to compute an entry.
    monkeypatch.setattr(cuda, "BLOCKS", 3)
    monkeypatch.setattr(cuda, "THREADS", 32)
    monkeypatch.setattr(norms, "_BLOCKS", 3)
    with cupy_on_numpy.installed() as counts, mh.implementation(request.param):
        yield counts


@pytest.fixture
def there(traffic):
    """A function that moves an array to the device, and forgets the copy."""
    cupy = backend.library("cupy")

    def move(x):
        moved = cupy.asarray(x)
        traffic.clear()
        return moved

    return move


def gpt(library="cupy", **settings):
    return mh.GPT(11, context=8, num_layers=2, **settings).to(library)


def test_the_stand_in_refuses_what_cupy_refuses_and_counts(there, traffic):
    x = there(np.arange(3.0))
    for refused in (lambda: np.asarray(x), lambda: x + np.ones(3), lambda: np.ones(3) * x):
        with pytest.raises(TypeError):
            refused()
    assert not traffic
    assert bool(x[0] == 0) and float(x[1]) == x[1].item() == 1  # noqa: PT018
    x[x > 1], x.get()
    assert traffic == {"wait": 4, "to the host": 1}


def test_a_device_is_not_a_string_and_cannot_be_hashed(there):
    x = there(np.ones(2))
    assert x.device == backend.library("cupy").ones(1).device
    assert x.device is not x.device
    assert x.device != "cuda:0"
    assert x.device != 0
    with pytest.raises(TypeError, match="unhashable"):
        hash(x.device)


def test_an_array_cannot_serve_as_an_index_or_a_length(there):
    one = there(np.array(1))
    for use in (operator.index, range, [1, 2].__getitem__, np.zeros, there(np.ones(3)).reshape):
        with pytest.raises(TypeError):
            use(one)
    with pytest.raises(TypeError):
        there(np.ones(3))[one:]
    assert there(np.arange(3.0))[one].item() == 1  # but it selects, as any array


X = np.arange(24.0).reshape(2, 3, 4)
LINE = np.arange(40) * 7 % 11

NUMBERS = {
    "index": lambda x, n: x[n(1)],
    "index from the end": lambda x, n: x[n(-1)],
    "index beside others": lambda x, n: x[:, n(2), n(1) : n(3)],
    "index beside arrays": lambda x, n: x[n(1), x.data.argmax(axis=-1)[0] * 0],
    "gather": lambda x, n: x.gather(n(1), axis=n(1)),
    "embedding": lambda x, n: functional.embedding(x[0], n(2)),
    "split into": lambda x, n: x.split(n(3), axis=n(1))[1],
    "split at": lambda x, n: x.split((n(1), n(2)), axis=1)[1],
    "reshape": lambda x, n: x.reshape(n(4), n(6)),
    "reshape to one axis": lambda x, n: x.reshape(n(24)),
    "permute": lambda x, n: x.permute(n(2), n(0), n(1)),
    "transpose": lambda x, n: x.transpose(n(0), n(1)),
    "expand": lambda x, n: x.expand((n(2), 2, 3, 4)),
    "flip": lambda x, n: x.flip(n(1)),
    "flip axes": lambda x, n: x.flip((n(0), n(1))),
    "repeat": lambda x, n: x.repeat(n(2), n(1)),
    "sum": lambda x, n: x.sum((n(0), n(2))),
    "max": lambda x, n: x.max(n(1)),
    "cumsum": lambda x, n: x.cumsum(n(1)),
    "squeeze": lambda x, n: x[:, :1].squeeze(n(1)),
    "expand_dims": lambda x, n: ops.expand_dims(x, n(1)),
    "concat": lambda x, n: ops.concat([x, x], axis=n(1)),
    "stack": lambda x, n: ops.stack([x, x], n(1)),
    "pad": lambda x, n: ops.pad(x, ((n(0), n(1)), (n(2), 0), (0, 0)), n(7)),
    "pad by": lambda x, n: ops.pad(x, n(1)),
    "clip": lambda x, n: x.clip(n(3.0), n(9.0)),
    "var": lambda x, n: x.var(axis=n(0), correction=n(1)),
    "softmax": lambda x, n: functional.softmax(x, n(1)),
    "dropout": lambda x, n: functional.drop(x, n(0.5), rng=np.random.default_rng(0)),
    "rope": lambda x, n: functional.rope(x, offset=n(3), base=n(100.0), width=n(2)),
    "scale": lambda x, n: mh.scaled_dot_product_attention(x, x, x, scale=n(0.25)),
    "softcap": lambda x, n: mh.scaled_dot_product_attention(x, x, x, softcap=n(2.0)),
    "dropout of attention": lambda x, n: mh.scaled_dot_product_attention(
        x, x, x, dropout=n(0.5), keep=x[..., :1].data * 0 + x[0, :, :3].data > 4
    ),
    "window": lambda x, n: mh.scaled_dot_product_attention(
        x, x, x, masks.sliding_window(n(1), n(0), offset=n(1))
    ),
    "prefix": lambda x, n: mh.scaled_dot_product_attention(x, x, x, masks.prefix(n(2))),
    "shape of a mask": lambda x, n: masks.causal(offset=0).array((n(3), n(4)), like=x),
    "rows of a mask": lambda x, n: masks.causal(offset=0).array(
        (3, 4), like=x, queries=slice(n(1), n(3))
    ),
    "blocks": lambda x, n: masks.causal().blocks((n(4), n(4)), (n(2), n(2)), like=x)[0],
    "sinusoidal": lambda x, n: mh.positions.sinusoidal(n(3), n(4), offset=n(2), like=x),
    "alibi": lambda x, n: mh.positions.alibi(n(2), n(3), n(3), offset=n(0), like=x),
}
"""Calls in which each number is an array without axes, made by n."""


@pytest.mark.parametrize("call", NUMBERS.values(), ids=NUMBERS.keys())
def test_an_array_without_axes_can_be_an_index_a_length_or_a_setting_as_with_numpy(there, call):
    def value_and_gradient(move):
        x = mh.Tensor(move(X), requires_grad=True)
        y = call(x, lambda number: move(np.asarray(number)))
        if not isinstance(y, mh.Tensor):
            return y, y
        y.sum().backward()
        return y.data, x.grad

    for x, y in zip(value_and_gradient(there), value_and_gradient(np.asarray), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x.get(), y, rtol=1e-13)


def test_an_index_without_axes_stays_on_the_device(there, traffic):
    x, one = mh.Tensor(there(X), requires_grad=True), there(np.array(1))
    (x[one].sum() + x[:, one].sum() + x.gather(one, axis=2).sum()).backward()
    assert not traffic
    expected = np.zeros_like(X)
    expected[1] += 1
    expected[:, 1] += 1
    expected[:, :, 1] += 1
    np.testing.assert_array_equal(x.grad.get(), expected)


def settled(number):
    """What a model, its training and its generation give for settings made by a function."""
    n = number
    model = mh.GPT(
        n(11), context=n(8), d_model=n(16), num_heads=n(4), num_kv_heads=n(2), num_layers=n(2),
        hidden=n(24), norm_eps=n(1e-5), dropout=n(0.25), window=n(4), sinks=n(1), scale=n(0.3),
        softcap=n(20.0), logit_softcap=n(30.0), layers=[{}, {"window": None, "hidden": n(16)}],
        rng=n(3),
    )  # fmt: skip
    model.to("cupy")
    run = training.Training(
        model, LINE, steps=n(3), batch=n(2), lr=n(0.01), min_lr=n(0.001), warmup=n(1),
        betas=(n(0.9), n(0.98)), weight_decay=n(0.1), clip=n(0.5), seed=n(5),
    )  # fmt: skip
    losses = list(run)
    losses.append(training.evaluate(model, LINE, batch=n(2)))
    tokens = backend.library("cupy").asarray(LINE[None, :3])
    kinds = {"temperature": n(0.8), "top_k": n(4), "top_p": n(0.9), "stop": [n(1)], "rng": n(2)}
    drawn = mh.generate(model, tokens, n(5), **kinds)
    quick = mh.speculate(model, model, tokens, n(5), ahead=n(2), **kinds).tokens
    return [np.asarray(losses), drawn.get(), quick.get()], model.settings, run.settings


@mh.implementation("reference")
def test_a_model_its_training_and_generation_take_arrays_without_axes(there):
    found, model, run = settled(lambda n: there(np.asarray(n)))
    expected, *plain = settled(lambda n: n)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)
    assert json.dumps([model, run]) == json.dumps(plain)


def test_other_layers_take_arrays_without_axes(there):
    def parameters(n):
        rope = mh.positions.Rope()
        sizes = {"latent": n(6), "head_dim": n(4), "rope_dim": n(2), "v_head_dim": n(3)}
        layers = [
            nn.Linear(n(3), n(4), std=n(0.5), rng=n(1)), nn.LayerNorm(n(3), eps=n(1e-3)),
            nn.RMSNorm(n(3), eps=n(1e-3)), nn.Embedding(n(3), n(2), rng=n(1)), nn.Dropout(n(0.5)),
            nn.MLP(n(4), n(6), rng=n(1)), mh.positions.Learned(n(3), n(4), rng=n(1)),
            mh.MultiHeadAttention(n(8), n(4), num_kv_heads=n(2), head_dim=n(2), rng=n(1)),
            mh.LatentAttention(n(8), n(2), query_latent=n(5), rope=rope, rng=n(1), **sizes),
            mh.EncoderDecoder(n(7), d_model=n(8), num_heads=n(2), num_layers=n(1), rng=n(1)),
        ]  # fmt: skip
        cache = mh.KeyValueCache(n(3), sinks=n(1), reserve=n(2))
        kept = [cache.window, cache.sinks, cache.reserve, layers[1].eps, layers[4].p]
        return [p.data for layer in layers for p in layer.parameters()], kept

    found, kept = parameters(lambda n: there(np.asarray(n)))
    expected, plain = parameters(lambda n: n)
    assert all(map(np.array_equal, found, expected))
    assert kept == plain
    assert {type(n) for n in kept} == {int, float}


def sums_to_zero(table, rows, factors):
    """Σ fᵢ · tableᵣᵢ with Σ fᵢ = 0: the gradient is 0, and only rounding is left of it."""
    chosen = functional.embedding(table, rows)
    factors = ops.astype(factors, dtype=table.dtype)
    return (chosen * factors).sum(axis=0)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_gradcheck_allows_another_order_of_additions(there, dtype):
    rng = np.random.default_rng(0)
    rows = there(rng.integers(0, 2, 3000))
    table = mh.Tensor(there(rng.standard_normal((2, 3)).astype(dtype)))
    mh.gradcheck(lambda table: functional.embedding(table, rows), table)
    mh.gradcheck(lambda table: table[rows], table)
    factors = rng.standard_normal((64, 1))
    factors = there(factors - factors.mean())
    same = there(np.zeros(64, int))
    mh.gradcheck(lambda table: sums_to_zero(table, same, factors), table)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("amount", [1.0, 1e-3])
def test_gradcheck_finds_a_pullback_that_draws_on_the_device(there, dtype, amount):
    draws = np.random.default_rng(0)
    rows = there(np.zeros(64, int))
    signs = there(np.where(np.arange(64) % 2, 1.0, -1.0)[:, None])

    def noisy(operation):
        def f(table):
            y, pull = operation(table)

            def pullback(dy):
                dx = pull(dy)[0]
                factors = 1 + amount * draws.standard_normal(tuple(dx.shape))
                return (dx * backend.like(factors.astype(dtype), dx),)

            return y, pullback

        return f

    def shifted(table):
        y, pull = ops.getitem.with_pullback(table, rows)
        signs_here = backend.namespace(y).astype(signs, y.dtype)

        def pullback(dy):
            noise = amount * draws.standard_normal(tuple(table.shape))
            dx = pull(dy * signs_here)[0]
            return (dx + backend.like(noise.astype(dtype), dx),)

        return backend.namespace(y).sum(y * signs_here, axis=0), pullback

    table = there(np.random.default_rng(1).standard_normal((1, 3)).astype(dtype))
    for f in (noisy(lambda table: ops.getitem.with_pullback(table, rows)), shifted):
        with pytest.raises(mh.GradcheckError, match=r"two gradients of table: does it draw"):
            mh.gradcheck(f, table)


def test_two_additions_to_one_entry_differ_by_rounding(there):
    cupy = backend.library("cupy")
    rows = there(np.zeros(1000, int))
    updates = there(np.random.default_rng(0).standard_normal(1000))

    def added():
        total = cupy.zeros(1)
        cupy.add.at(total, rows, updates)
        return total.item()

    sums = {added() for _ in range(10)}
    assert len(sums) > 1
    assert max(sums) - min(sums) < 1e-12
    places = cupy.zeros(1)
    assert len({(places.__setitem__(rows, updates), places.item())[1] for _ in range(10)}) > 1


def test_the_stand_in_has_only_what_cupy_has(there):
    x, cupy = there(np.ones((2, 2))), sys.modules["cupy"]
    for name in ("errstate", "geomspace", "vecdot", "insert"):
        assert not hasattr(cupy, name), name
    for name in ("__index__", "__contains__", "__imatmul__", "__array_namespace__", "to_device"):
        assert not hasattr(x, name), name
    for refused in (
        lambda: cupy.sum([1.0, 2.0]),
        lambda: cupy.sum(x, where=x > 0),
        lambda: cupy.max(x, initial=0.0),
        lambda: cupy.zeros(2, device=x.device),
        lambda: cupy.exp(x, where=x > 0),
        lambda: cupy.exp([1.0]),
        lambda: x.item(0),
        lambda: x == [1.0],
        lambda: x == "cpu",
        lambda: cupy.add.at(there(np.zeros(1, complex)), there(np.array([0])), 1),
    ):
        with pytest.raises(TypeError):
            refused()
    for wrong in (lambda: cupy.array(["a"]), lambda: x.__setitem__(0, np.ones(2))):
        with pytest.raises(ValueError, match=r"Unsupported dtype|cannot be used for fill"):
            wrong()
    same = x
    same += 1  # in place
    assert x[0, 0].item() == 2
    assert not (x == None).any()  # noqa: E711  as CuPy: an array


def test_the_list_of_what_cupy_has_is_that_of_the_version_it_names():
    cupy = pytest.importorskip("cupy")
    if cupy.__version__ != cupy_on_numpy.VERSION.removeprefix("CuPy ") or not hasattr(
        cupy, "_core"
    ):
        pytest.skip(f"needs {cupy_on_numpy.VERSION}; here is {cupy.__version__}")
    with_numpy = set(dir(np)) | set(dir(np.linalg)) | set(dir(np.fft)) | set(dir(np.ndarray))
    found = [line for line in list_cupy.lines() if re.split(r"[.( ]", line)[-1] in with_numpy]
    assert set(found) <= set(list_cupy.FILE.read_text(encoding="ascii").splitlines())


def test_the_stand_in_is_isolated_from_another_cupy_and_gives_it_back():
    """A second copy of the stand-in plays the real CuPy."""
    spec = importlib.util.spec_from_file_location("another_cupy", cupy_on_numpy.__file__)
    another = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(another)
    with another.installed():
        x = mh.Tensor(backend.library("cupy").ones(3))
        with cupy_on_numpy.installed() as traffic:
            y = mh.Tensor(backend.library("cupy").ones(3))
            assert type(y.data) is cupy_on_numpy.ndarray
            assert type((y * 2 + 1).data) is cupy_on_numpy.ndarray
            assert type(backend.like(np.ones(2), y.data)) is cupy_on_numpy.ndarray
            assert traffic == {"to the device": 1}
        assert type((x * 2).data) is another.ndarray
        assert type(backend.like(np.ones(2), x.data)) is another.ndarray
        assert backend.on_cupy(x.data)


def test_the_plugin_gives_way_to_a_gpu(monkeypatch):
    spec = importlib.util.spec_from_file_location("another_cupy", cupy_on_numpy.__file__)
    another = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(another)
    with another.installed():  # it finds a GPU
        cupy_on_numpy.pytest_configure(None)
        assert sys.modules["cupy"] is another.MODULES["cupy"]
        assert "real" in cupy_on_numpy.pytest_report_header()


@pytest.mark.parametrize(
    ("settings", "draws"),
    [(GPT2, 0), (LLAMA, 0), ({**GPT2, "dropout": 0.1}, 1 + 2 * 2)],
    ids=["GPT-2", "Llama", "dropout"],
)
def test_a_training_step_copies_only_tokens_draws_and_the_loss(traffic, settings, draws):
    run = training.Training(gpt(**settings), TOKENS, steps=2, batch=3, lr=0.01)
    for _ in range(2):
        traffic.clear()
        next(run)
        assert traffic == {"to the device": 2 + draws, "to the host": 1}  # inputs and targets; loss


def test_training_gives_the_losses_of_numpy(traffic):
    cupy, numpy = (
        list(training.Training(gpt(library, **GPT2), TOKENS, steps=4, batch=3, lr=0.1))
        for library in ("cupy", "numpy")
    )
    np.testing.assert_allclose(cupy, numpy, rtol=1e-5)


def test_a_step_of_a_sequence_task_copies_only_tokens_and_the_loss(traffic):
    tasks = training.sequence_tasks
    model = mh.EncoderDecoder(len(tasks.SYMBOLS), d_model=16, num_heads=2, num_layers=2).to("cupy")
    run = tasks.train(model, [("1+2", "3"), (">ab", "ab"), ("<ab", "ba")], steps=2, batch=3)
    for _ in range(2):
        traffic.clear()
        next(run)
        assert traffic == {"to the device": 5, "to the host": 1}  # two of them: what counts
    traffic.clear()
    (answer,) = tasks.answers(model, [">ab"], count=4)
    assert len(answer) <= 4
    assert traffic["to the device"] == traffic["to the host"] == 1
    assert traffic["wait"] <= 4  # to see whether all answers have ended


@pytest.mark.parametrize(
    "settings",
    [GPT2, LLAMA, {**LLAMA, "window": 3, "sinks": 1}, {**GPT2, "dtype": "float16"}],
    ids=["GPT-2", "Llama", "window", "float16"],
)
def test_each_generated_token_needs_one_copy_in_each_direction(traffic, settings):
    model = gpt(**settings)
    for way in (mh.generate, lambda *x: mh.speculate(model, *x, ahead=1)):
        traffic.clear()
        way(model, TOKENS[None, :3], 12)  # beyond the context
        assert traffic == {"to the device": 12, "to the host": 12}


CALLS = {
    "plain": {},
    "causal": {"mask": masks.causal()},
    "window": {"mask": masks.sliding_window(2, 1)},
    "padding": {"mask": lambda there: masks.padding(there(np.array([3, 6])))},
    "documents": {"mask": lambda there: masks.causal() & masks.documents(there(IDS))},
    "keys": {"mask": lambda there: masks.keys(there(IDS < 2))},
    "dense": {"mask": lambda there: there(np.tri(T, dtype=bool))},
    "prefix": {"mask": lambda there: masks.causal() | masks.prefix(there(np.array([1, 4])))},
    "bias": {"bias": lambda there: there(np.where(np.tri(T), 0.5, -np.inf))},
    "softcap, sink": {"softcap": 5.0, "sink": lambda there: there(np.arange(4.0))},
    "scale": {"scale": lambda there: there(np.full((T, T), 0.5))},
    "loop": {"implementation": "loop", "mask": masks.causal()},
}


def attended(move, call, number):
    """The output of attention and the gradients of its inputs, for a value with this number."""
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal((B, heads, T, D)) for heads in (H, G, G)]
    inputs[2][0, 1, 4] = number
    settings = {
        name: x(move) if callable(x) and not isinstance(x, masks.Mask) else x
        for name, x in call.items()
    }
    q, k, v = (mh.Tensor(move(x), requires_grad=True) for x in inputs)
    out = mh.scaled_dot_product_attention(q, k, v, **settings)
    out.sum().backward()
    return [out.data, q.grad, k.grad, v.grad]


@pytest.mark.parametrize("name", [
    "reference", pytest.param("fused", marks=COMPILES), pytest.param("tiled", marks=SLOW),
])  # fmt: skip
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_attention_stays_on_the_device_and_agrees_with_numpy(there, traffic, call, name):
    number = 0.0 if name == "fused" else np.nan  # whose NaN spreads to more gradients
    with mh.implementation(name):
        found = attended(there, call, number)
    assert not traffic
    with np.errstate(invalid="ignore"):
        expected = attended(lambda x: x, {"implementation": "reference", **call}, number)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x.get(), y, rtol=1e-12, atol=1e-12)


def test_decoding_with_a_cache_stays_on_the_device(there, traffic):
    layer = mh.MultiHeadAttention(D, H, num_kv_heads=G, rope=mh.positions.Rope()).to("cupy")
    x, cache = there(np.ones((B, T, D), np.float32)), mh.KeyValueCache()
    with mh.no_grad():
        for t in range(T):
            layer(x[:, t : t + 1], mask=masks.causal(), cache=cache)
    assert not traffic


@pytest.mark.parametrize("optimiser", [nn.SGD, nn.Adam, nn.AdamW])
def test_clipping_and_optimisers_stay_on_the_device(there, traffic, optimiser):
    for scale in (0.01, 100.0):  # below and above the largest norm
        results = []
        for move in (there, np.asarray):
            w = mh.Tensor(move(np.ones((2, 3))), requires_grad=True)
            w.grad = move(scale * np.arange(6.0).reshape(2, 3))
            step = optimiser([w], lr=0.1)
            norm = nn.clip_gradients([w], 1.0)
            step.step()
            results.append((norm, w.data))
        assert not traffic
        (norm, w), expected = results
        np.testing.assert_allclose(w.get(), expected[1])
        np.testing.assert_allclose(norm.get(), expected[0])


def test_an_index_out_of_range_gives_nan_since_a_check_would_wait(there, traffic):
    table, rows = there(np.ones((3, 2))), there(np.array([0, 3, -1]))
    x, y = (functional.embedding(table, rows), functional.cross_entropy(table, rows % 4))
    assert not traffic
    np.testing.assert_array_equal(np.isnan(x.get()[:, 0]), [False, True, True])
    assert np.isnan(y.item())


def test_an_array_moves_to_the_gpu_by_name_and_back(traffic):
    x = mh.Tensor(np.arange(3.0), requires_grad=True)
    y = x.to("cuda")
    assert type(y.data) is cupy_on_numpy.ndarray
    assert y.to("cuda:0").data is y.data
    y.to("cpu").sum().backward()
    np.testing.assert_array_equal(x.grad, 1)
    with pytest.raises(ValueError, match="no device 'cuda:7'"):
        y.to("cuda:7")


@pytest.mark.parametrize(("stage", "error", "message"), [
    ("zeros", cupy_on_numpy.CUDARuntimeError("no driver"), r"finds no GPU \(no driver\): install a driver"),
    ("add", ImportError("no libnvrtc.so"), r"compile for it \(no libnvrtc.so\): pip install .*ctk"),
])  # fmt: skip
def test_a_gpu_that_cannot_compute_is_explained_in_one_line(
    traffic, monkeypatch, stage, error, message, capsys, tmp_path
):
    def fail(*_):
        raise error

    owner = cupy_on_numpy.ndarray if stage == "add" else sys.modules["cupy"]
    monkeypatch.setattr(owner, "__add__" if stage == "add" else stage, fail)
    for ask in (lambda: backend.library("cupy"), lambda: mh.Tensor([1.0]).to("cuda")):
        with pytest.raises(RuntimeError, match=message) as failure:
            ask()
        assert "\n" not in str(failure.value)
    assert main(["train", "--backend", "cupy", "--out", str(tmp_path / "run")]) == 2
    assert "the array library cupy" in capsys.readouterr().err


def test_an_error_of_memory_says_what_is_free_and_what_to_change(
    there, monkeypatch, capsys, tmp_path
):
    def fail(*_):
        raise cupy_on_numpy.OutOfMemoryError("Out of memory allocating 4,096 bytes")

    advice = "3.5 of the GPU's 8.0 GiB are free: use a smaller batch or shorter sequences"
    x = mh.Tensor(there(np.ones((2, 2))), requires_grad=True)
    y = (x @ x).sum()
    monkeypatch.setattr(backend.library("cupy"), "matmul", fail)
    monkeypatch.setattr(cupy_on_numpy.ndarray, "__matmul__", fail)
    for compute in (lambda: functional.linear(x, x), y.backward):
        with pytest.raises(MemoryError, match="allocating 4,096 bytes") as failure:
            compute()
        assert failure.value.__notes__[0] == advice
    sizes = ["--layers", "1", "--width", "16", "--context", "16", "--steps", "2"]
    assert main(["train", *sizes, "--backend", "cupy", "--out", str(tmp_path / "run")]) == 1
    assert f"4,096 bytes; {advice}" in capsys.readouterr().err


@SLOW
def test_the_tour_ends_well_on_cupy(traffic, tmp_path, capsys):
    picture = tmp_path / "heads.png"
    assert main(["--backend", "cupy", "--steps", "2", "--picture", str(picture)]) == 0
    assert picture.exists()
    assert "structural zero" in capsys.readouterr().out


@SLOW
@mh.implementation("reference")  # the stand-in takes long for tiles
def test_the_commands_checkpoints_and_diagnose_run_on_cupy(traffic, tmp_path):
    run = ["train", "--layers", "1", "--width", "16", "--context", "16", "--batch", "2"]
    run += ["--steps", "4", "--every", "2", "--backend", "cupy", "--out", str(tmp_path / "run")]
    assert main(run) == 0
    assert main(["generate", str(tmp_path / "run"), "--tokens", "3"]) == 0
    model, path = gpt(**GPT2), tmp_path / "checkpoint.safetensors"
    first = training.Training(model, TOKENS, steps=4, batch=3, lr=0.1)
    losses = [next(first), next(first)]
    first.save(path)
    losses += first
    again = training.Training(gpt(**GPT2), TOKENS, steps=4, batch=3, lr=0.1)
    again.resume(path)
    # A device adds up the gradients of an embedding in another order.
    np.testing.assert_allclose(list(again), losses[2:], rtol=1e-5)
    assert training.evaluate(model, TOKENS) > 0
    healthy = gpt(**GPT2)
    inputs = backend.library("cupy").asarray(TOKENS[:32].reshape(4, 8))
    report = mh.diagnose(healthy, inputs, (inputs * 3 + 1) % 11)
    assert str(report) == str(
        mh.diagnose(gpt("numpy", **GPT2), inputs.get(), (inputs.get() * 3 + 1) % 11)
    )
