"""Training with products in bfloat16, on a stand-in for CuPy."""

import contextlib
from collections import Counter

import cupy_on_numpy
import numpy as np
import pytest

import minimha as mh
from minimha.__main__ import main
from minimha.functional import linear
from minimha.kernels import attention as ways
from minimha.kernels.gpu import cuda, tiled
from minimha.training import Training, data
from minimha_autograd import backend, half, ops

bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
ROUNDING = 2.0**-8  # the largest relative error of a number rounded to bfloat16
TEXT = data.python_reference()[:20_000]
V, T = len(set(TEXT)), 32
TOKENS = data.CharacterTokenizer(TEXT).encode(TEXT)
SIZES = {  # of the model in chapter 09
    "context": T, "d_model": 64, "num_heads": 4, "num_layers": 2, "bias": False, "tie": True,
}  # fmt: skip


@pytest.fixture
def factors(monkeypatch):
    """Records the dtypes of the factors of all products on the stand-in: matrix products, and those
    of attention in tiles. As on a GPU, the product of bfloat16 matrices is bfloat16."""
    seen = []
    multiply = cupy_on_numpy.ndarray.__matmul__

    def recorded(a, b):
        seen.append(("matmul", a.dtype, b.dtype))
        y = multiply(a, b)
        return y.astype(bfloat16) if a.dtype == bfloat16 else y

    monkeypatch.setattr(cupy_on_numpy.ndarray, "__matmul__", recorded)
    monkeypatch.setattr(ways, "_failed", {})
    monkeypatch.setattr(tiled, "_machine_obstacle", lambda: None)
    with cupy_on_numpy.installed(), mh.implementation("tiled"):
        kernels, launch, stream = cupy_on_numpy.tiles_on_numpy()

        def launched(stream, grid, kernel, arguments):
            seen.append((kernel.__name__, *(x.dtype for x in arguments[:3])))  # Q, K, V
            launch(stream, grid, kernel, arguments)

        monkeypatch.setattr(tiled, "_on_gpu", lambda: tiled.Runner(kernels, launched, stream))
        yield seen


@pytest.fixture
def quick(factors, monkeypatch):
    """The same without kernels in CUDA C++, which take too long on a CPU."""
    monkeypatch.setattr(cuda, "REALS", {})
    return factors


def model(library="cupy", **settings):
    return mh.GPT(V, **(SIZES | settings), rng=0).to(library)


def run(precision, steps=3, made=None, **settings):
    made = model() if made is None else made
    more = {"lr": 5e-3, "batch": 4, "steps": steps} | settings
    return Training(made, TOKENS, precision=precision, **more)


def test_every_product_of_a_step_has_factors_of_bfloat16_and_everything_else_is_float32(factors):
    gradients("bfloat16")
    assert {name for name, *_ in factors} >= {"matmul", "forward"}
    assert any(name.startswith("backward") for name, *_ in factors)
    assert {dtype for _, *dtypes in factors for dtype in dtypes} == {np.dtype(bfloat16)}
    products = Counter(factors)

    factors.clear()
    training = run("bfloat16")
    next(training)
    assert products <= Counter(factors)  # the norm of the gradients may be a product, too

    parameters = training.model.parameters()
    assert {x.dtype for p in parameters for x in (p.data, p.grad)} == {np.dtype("float32")}
    states = training.optimiser.state().values()
    assert {x.dtype for x in states if x.ndim} == {np.dtype("float32")}


def test_without_the_setting_no_factor_is_rounded_even_after_a_run_with_it(quick):
    before = list(run("float32"))
    assert {dtype for _, *dtypes in quick for dtype in dtypes} == {np.dtype("float32")}
    rounded = list(run("bfloat16"))
    after = list(run("float32"))
    np.testing.assert_allclose(after, before, rtol=1e-6)  # a GPU adds up in no fixed order
    assert np.abs(np.subtract(rounded, before)).max() > 1e-5


def gradients(precision):
    made = model()
    block = half.bfloat16_products() if precision == "bfloat16" else contextlib.nullcontext()
    inputs = backend.library("cupy").asarray(TOKENS[: 4 * T].reshape(4, T))
    with block:
        loss = mh.functional.cross_entropy(made(inputs), inputs)
    loss.backward()
    return {name: p.grad.get() for name, p in made.named_parameters()}


@pytest.mark.usefixtures("quick")
def test_gradients_differ_by_the_rounding_of_bfloat16():
    exact, rounded = gradients("float32"), gradients("bfloat16")
    off = {name: np.linalg.norm(rounded[name] - g) / np.linalg.norm(g) for name, g in exact.items()}
    assert 0.25 * ROUNDING < max(off.values()) < 0.01, off


@pytest.mark.usefixtures("quick")
def test_the_loss_falls_as_it_does_in_float32():
    exact, rounded = (np.array(list(run(name, 30))) for name in ("float32", "bfloat16"))
    assert (exact[0], exact[-1]) == pytest.approx((4.5, 3.5), abs=0.1)
    apart = np.abs(rounded - exact).max()
    assert 0 < apart < 0.002, apart  # it was 0.0009 nats


def test_rounding_to_bfloat16_undoes_every_update_of_less_than_0_19_percent(rng):
    weights = rng.standard_normal(10_000).astype(bfloat16)
    weights[:8] = 2.0 ** np.arange(-4, 4)  # half the distance to the number below is the smallest
    exact = weights.astype("float32")
    for factor in (1.0019, 0.9981):
        assert ((exact * np.float32(factor)).astype(bfloat16) == weights).all()
    for factor in (1.0045, 0.9955):
        assert ((exact * np.float32(factor)).astype(bfloat16) != weights).all()
    assert ((exact * np.float32(0.998)).astype(bfloat16) != weights)[:8].all()


@pytest.mark.usefixtures("factors")
def test_a_pullback_rounds_as_its_forward_did_and_the_bias_is_not_rounded():
    xp = backend.library("cupy")
    rng = np.random.default_rng(0)
    x, w, b, dy = (
        xp.asarray(rng.standard_normal(shape, dtype="float32"))
        for shape in ((3, 5), (5, 7), (7,), (3, 7))
    )

    def as_factor(a):
        return a.astype(bfloat16).astype("float32")

    with half.bfloat16_products():
        y, pullback = linear.with_pullback(x, w, b)
    dx, dw, db = (g.get() for g in pullback(dy))
    x16, w16, dy16 = (as_factor(a).get() for a in (x, w, dy))
    for found, right in (
        (y.get() - b.get(), x16 @ w16), (dx, dy16 @ w16.T), (dw, x16.T @ dy16),
    ):  # fmt: skip
        np.testing.assert_allclose(found, right, rtol=ROUNDING, atol=1e-5)
        assert found.dtype == "float32"
    np.testing.assert_allclose(db, xp.sum(dy, axis=0).get(), rtol=0, atol=1e-6)  # in any order


@pytest.mark.parametrize("shapes", [((2, 3, 5), (5, 7)), ((5,), (5, 7)), ((4, 3, 5), (4, 5, 1))])
def test_matmul_rounds_its_factors(factors, shapes):
    xp = backend.library("cupy")
    rng = np.random.default_rng(0)
    a, b = (xp.asarray(rng.standard_normal(shape, dtype="float32")) for shape in shapes)
    exact, exact_pullback = ops.matmul.with_pullback(a, b)
    factors.clear()
    with half.bfloat16_products():
        y, pullback = ops.matmul.with_pullback(a, b)
    dy = xp.ones_like(y)
    found = y, *pullback(dy)
    assert {dtype for _, *dtypes in factors for dtype in dtypes} == {np.dtype(bfloat16)}
    for x, right in zip(found, (exact, *exact_pullback(dy)), strict=True):
        assert (x.dtype, x.shape) == ("float32", right.shape)
        np.testing.assert_allclose(x.get(), right.get(), rtol=4 * ROUNDING, atol=4 * ROUNDING)


@pytest.mark.parametrize(
    ("settings", "arrays"), [({"return_lse": True}, ()), ({}, ("bias",)), ({}, ("sink",))]
)
def test_attention_is_not_rounded_if_it_has_a_bias_or_a_sink_or_returns_lse(
    factors, settings, arrays
):
    xp = backend.library("cupy")
    rng = np.random.default_rng(0)
    shapes = {"query": (1, 2, 9, 8), "key": (1, 2, 9, 8), "value": (1, 2, 9, 8)}
    shapes |= {name: {"bias": (1, 2, 9, 9), "sink": (2,)}[name] for name in arrays}
    given = {
        name: xp.asarray(rng.standard_normal(shape, dtype="float32"))
        for name, shape in shapes.items()
    }
    mh.scaled_dot_product_attention(**given, **settings)
    with half.bfloat16_products():
        mh.scaled_dot_product_attention(**given, **settings)
    assert len(factors) == 2
    assert factors[0] == factors[1]


def test_on_a_cpu_it_is_refused_in_one_line(tmp_path, capsys):
    with pytest.raises(ValueError, match=r"^precision='bfloat16' needs a GPU: on a CPU, .*$"):
        run("bfloat16", made=model("numpy"))
    folder = tmp_path / "run"
    options = "--layers", "1", "--heads", "1", "--width", "8", "--context", "8", "--steps", "1"
    assert main(["train", *options, "--precision", "bfloat16", "--out", str(folder)]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("minimha: precision='bfloat16' needs a GPU: ")
    assert shown.err.count("\n") == 1
    assert not folder.exists()


@pytest.mark.usefixtures("factors")
def test_another_precision_or_dtype_is_refused():
    with pytest.raises(ValueError, match="precision='float8': there are 'float32' and 'bfloat16'"):
        run("float8")
    made = model(dtype="float16")
    with pytest.raises(ValueError, match=r"needs parameters of float32, but .* is float16"):
        run("bfloat16", made=made)


class InOrder:
    """In place of the stand-in's random order of additions."""

    permutation = staticmethod(np.arange)


@pytest.mark.usefixtures("quick")
def test_a_run_is_resumed_with_its_own_precision_only(tmp_path, monkeypatch):
    """Additions in another order change the last bit of a float32. That can move a weight to the next
    bfloat16, which changes the losses by 1e-5."""
    monkeypatch.setattr(cupy_on_numpy, "_random", InOrder)
    path = tmp_path / "checkpoint.safetensors"
    whole = list(run("bfloat16", 4))
    first = run("bfloat16", 4)
    losses = [next(first), next(first)]
    first.save(path)

    with pytest.raises(
        ValueError, match="precision is bfloat16 in the checkpoint, but float32 her"
    ):
        run("float32", 4).resume(path)
    second = run("bfloat16", 4)
    second.resume(path)
    np.testing.assert_allclose([*losses, *second], whole, rtol=1e-6)
