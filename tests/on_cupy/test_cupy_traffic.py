"""The package on CuPy's arrays: what crosses between host and device, and what the messages say."""

import sys

import cuda_on_cpu
import cupy_on_numpy
import numpy as np
import pytest

import minimha as mh
from minimha import functional, masks, nn, training
from minimha.__main__ import main
from minimha_autograd import backend

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


def gpt(library="cupy", **settings):
    return mh.GPT(11, context=8, num_layers=2, **settings).to(library)


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
