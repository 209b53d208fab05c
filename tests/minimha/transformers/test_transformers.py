"""Blocks and GPTs: gradients with every setting, tied weights, caches, dropout."""

import gc
import tracemalloc

import numpy as np
import pytest
from layers import assert_gradients, far

import minimha as mh

V, M, H = 7, 6, 2
LLAMA = {
    "norm": "rms", "activation": "swiglu", "bias": False, "num_kv_heads": 1, "head_dim": 4,
    "rope": mh.positions.Rope(),
}  # fmt: skip
OLMO = LLAMA | {"norm_of": "output", "qk_norm": mh.QKNorm(all_heads=True), "attention_bias": "qkv"}
GEMMA = LLAMA | {
    "norm": "rms plus one", "norm_of": "both", "activation": "geglu", "scale": 0.4, "softcap": 2.0,
    "scale_embeddings": True, "logit_softcap": 3.0, "qk_norm": mh.QKNorm(plus_one=True),
    "layers": [{"window": 3, "rope": None}, {}],
}  # fmt: skip


def gpt(rng, **settings):
    """A GPT in float64 with parameters far from their initial values."""
    sizes = {"context": 5, "d_model": M, "num_heads": H, "num_layers": 2} | settings
    return far(mh.GPT(V, **sizes, dtype="float64"), rng)


@pytest.mark.parametrize(
    "settings",
    [{}, {"tie": True, "bias": False}, LLAMA | {"tie": True}, {"activation": "relu"}, OLMO, GEMMA],
)
def test_gradients_of_a_gpt(settings, rng):
    model = gpt(rng, **settings)
    tokens, targets = rng.integers(0, V, (2, 3, 5))
    assert_gradients(
        lambda: mh.functional.cross_entropy(model(tokens), targets), [], model, rng, 1e-7
    )


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("settings", [{"tie": True, "bias": False}, LLAMA])
def test_kernels_change_neither_logits_nor_gradients_of_a_gpt(settings, dtype, rng):
    sizes = {"context": 64, "d_model": 128, "num_heads": 4, "num_layers": 4} | settings
    tokens, targets = rng.integers(0, 65, (2, 5, 63))
    found = []
    for implementation in ("reference", "auto", "tiled"):
        model = mh.GPT(65, **sizes, dtype=dtype)
        with mh.implementation(implementation):
            logits = model(tokens)
            mh.functional.cross_entropy(logits, targets).backward()
        found.append([logits.data, *(p.grad for p in model.parameters())])
    largest = max(abs(x).max() for x in found[0][1:])
    for expected, *others in zip(*found, strict=True):
        bound = (1e-4 if dtype == "float32" else 1e-10) * max(abs(expected).max(), largest / 1000)
        assert all(abs(x - expected).max() <= bound for x in others)


@pytest.mark.parametrize("norm_first", [True, False])
def test_gradients_of_a_block_with_cross_attention(norm_first, rng):
    block = mh.Block(M, H, cross=True, norm_first=norm_first, hidden=5, dtype="float64")
    far(block, rng)

    def run(x, memory):
        return block(x, mh.masks.causal(), memory, mh.masks.padding([4, 3]))

    x, memory = rng.standard_normal((2, 3, M)), rng.standard_normal((2, 4, M))
    assert_gradients(run, [x, memory], block, rng, 1e-7)


@pytest.mark.parametrize("settings", [{}, LLAMA, GEMMA])
def test_a_model_that_reads_in_parts_with_caches_gives_the_same_logits(settings, rng):
    model, tokens = gpt(rng, **settings), rng.integers(0, V, (2, 5))
    with mh.no_grad():
        expected = model(tokens).data
        caches = [mh.KeyValueCache() for _ in model.blocks]
        parts = [model(tokens[:, a:b], caches=caches).data for a, b in ((0, 2), (2, 3), (3, 5))]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), expected, rtol=1e-12, atol=1e-13)
    with pytest.raises(ValueError, match=r"\(2, 1\) after 5 in the cache"):
        model(tokens[:, :1], caches=caches)


@pytest.mark.parametrize("layers", [
    [{"window": 2}, {}], [{"window": 1, "sinks": 1}, {"window": 4}], [{"window": 3, "sinks": 2}] * 2,
])  # fmt: skip
@pytest.mark.parametrize("settings", [{}, LLAMA])
def test_every_pattern_of_windows_gives_the_same_logits_with_caches_that_evict(
    settings, layers, rng
):
    model, tokens = gpt(rng, **settings, layers=layers, context=20), rng.integers(0, V, (2, 20))
    with mh.no_grad():
        expected = model(tokens).data
        for reserve, steps in ((0, [1] * 20), (1, [6, 1, 1, 3, 1, 8])):
            caches, ends = model.new_caches(reserve), np.cumsum(steps)
            parts = [
                model(tokens[:, end - n : end], caches=caches).data
                for n, end in zip(steps, ends, strict=True)
            ]
            found = np.concatenate(parts, axis=1)
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
            for cache, layer in zip(caches, layers, strict=True):
                held = layer["window"] - 1 + layer.get("sinks", 0) + 2 * reserve if layer else 20
                assert cache.keys.shape[-2] <= held


@pytest.mark.parametrize("entries", [1, 3])
def test_a_model_refuses_more_or_fewer_caches_than_blocks(entries, rng):
    model, tokens = gpt(rng), rng.integers(0, V, (1, 2))
    with pytest.raises(ValueError, match=f"caches has {entries} entries.* the 2 blocks"):
        model(tokens, caches=[mh.KeyValueCache() for _ in range(entries)])


@pytest.mark.thorough
def test_the_memory_of_a_cache_with_a_window_does_not_grow(rng):
    model = gpt(rng, window=8, sinks=2, context=2000)
    tokens, caches, sizes = rng.integers(0, V, (2, 2000)), model.new_caches(16), {}
    tracemalloc.start()
    with mh.no_grad():
        for end in range(20, 2001, 20):
            model(tokens[:, end - 20 : end], caches=caches)
            if end in (200, 2000):
                gc.collect()
                sizes[end] = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    all_keys = 1800 * 2 * 2 * 2 * M * 8  # of both blocks, with the values, of two sequences
    assert sizes[2000] - sizes[200] < all_keys / 5


def test_a_cache_keeps_its_memory_for_the_next_keys(rng):
    cache, k = mh.KeyValueCache(), rng.standard_normal((2, 3, 40, 4))
    moved = 0
    with mh.no_grad():
        for t in range(40):
            before = cache.keys
            cache.keys, cache.values = cache.joined(k[:, :, t : t + 1], k[:, :, t : t + 1])
            moved += t > 0 and not np.shares_memory(before, cache.keys)
    np.testing.assert_array_equal(cache.keys, k)
    assert moved <= 5  # of 39 steps: at 2, 5, 11 and 23 positions


def test_dropout_needs_a_generator_and_can_be_repeated(rng):
    model, tokens = gpt(rng, dropout=0.3), rng.integers(0, V, (2, 5))
    exact = model(tokens).data
    np.testing.assert_array_equal(model(tokens).data, exact)
    one, other = (model(tokens, rng=np.random.default_rng(seed)).data for seed in (1, 1))
    np.testing.assert_array_equal(one, other)
    assert abs(one - exact).max() > 1e-3
    x = np.ones((40, 50))
    assert mh.Dropout(0.2)(x) is x
    assert set(np.unique(mh.Dropout(0.2)(x, rng))) == {0.0, 1.25}


def test_initial_weights_are_those_of_gpt2():
    model = mh.GPT(50, context=40, d_model=64, num_heads=4, num_layers=8, rng=1)
    for name, p in model.named_parameters():
        expected = 0.02 / 4 if name.endswith(("w_o", "narrow.weight")) else 0.02
        if p.ndim == 2:
            assert abs(p.data.std() / expected - 1) < 0.1, name
    assert mh.GPT(**model.settings).blocks[0].attention.w_q.shape == (64, 64)


def test_unknown_parts_are_refused():
    with pytest.raises(ValueError, match="norm = 'batch' must be 'layer', 'rms' or 'rms plus one'"):
        mh.Block(M, H, norm="batch")
    with pytest.raises(ValueError, match="activation = 'tanh' must be one of gelu, relu, swiglu"):
        mh.Block(M, H, activation="tanh")
    with pytest.raises(ValueError, match="norm_of = 'output' must be 'input', and with norm_first"):
        mh.Block(M, H, norm_of="output", norm_first=False)
    with pytest.raises(ValueError, match="window = 0 must be at least 1"):
        mh.Block(M, H, window=0)
    with pytest.raises(ValueError, match="layers has 1 entries, but num_layers is 2"):
        mh.GPT(V, context=5, d_model=M, num_heads=H, num_layers=2, layers=[{}])


@pytest.mark.parametrize(("window", "sinks"), [(1, 0), (2, 0), (5, 0), (2, 2)])
def test_a_token_sees_as_many_tokens_as_the_window_has_and_the_sinks(window, sinks, rng):
    layers = [{"window": window, "sinks": sinks}]
    model = far(mh.GPT(V, context=5, d_model=M, num_heads=H, num_layers=1, layers=layers), rng)
    tokens = rng.integers(0, V, (1, 5))
    _, (weights,) = model(tokens, return_weights=True)
    near = np.tri(5, dtype=bool) & ~np.tri(5, k=-window, dtype=bool)
    near[:, :sinks] = np.tri(5, sinks, dtype=bool)
    np.testing.assert_array_equal(weights.data[0] != 0, np.broadcast_to(near, (H, 5, 5)))


def test_a_gpt_of_bfloat16_computes_in_float32(rng):
    pytest.importorskip("ml_dtypes")
    sizes = {"context": 5, "d_model": M, "num_heads": H, "num_layers": 1}
    model, tokens = mh.GPT(V, **sizes, dtype="bfloat16"), rng.integers(0, V, (2, 5))
    wide = mh.GPT(V, **sizes)
    for p, q in zip(model.parameters(), wide.parameters(), strict=True):
        q.data = p.data.astype("float32")
    found = []
    for one in (model, wide):
        loss = mh.functional.cross_entropy(one(tokens), tokens)
        loss.backward()
        found.append([loss.data, *(p.grad for p in one.parameters())])
    assert all(p.grad.dtype == p.dtype for p in model.parameters())
    assert {p.ndim for p in model.parameters() if p.dtype == "bfloat16"} == {2}
    for x, y in zip(*found, strict=True):
        tolerance = 2e-6 if x.dtype == "float32" else 2**-8  # bfloat16 has 8 bits
        assert abs(x.astype("float32") - y).max() <= tolerance * abs(y).max()


def test_embeddings_and_logits_are_scaled_and_capped(rng):
    plain, scaled = (gpt(np.random.default_rng(1), scale_embeddings=x) for x in (False, True))
    scaled.tokens.table.data = plain.tokens.table.data / np.sqrt(M)
    tokens = rng.integers(0, V, (2, 5))
    expected = plain(tokens).data
    np.testing.assert_allclose(scaled(tokens).data, expected, rtol=1e-12)
    capped = gpt(np.random.default_rng(1), logit_softcap=3.0)
    np.testing.assert_allclose(capped(tokens).data, 3 * np.tanh(expected / 3), rtol=1e-12)


@pytest.mark.parametrize("make", [
    lambda n: mh.GPT(V, context=5, d_model=M, num_heads=H, num_layers=n),
    lambda n: mh.EncoderDecoder(V, d_model=M, num_heads=H, num_layers=n),
])  # fmt: skip
def test_a_negative_number_of_layers_is_refused(make):
    with pytest.raises(ValueError, match="num_layers = -1 must be at least 0"):
        make(-1)


@pytest.mark.parametrize("make", [
    lambda eps: mh.LayerNorm(M, eps=eps),
    lambda eps: mh.RMSNorm(M, eps=eps),
    lambda eps: mh.Block(M, H, norm_eps=eps),
    lambda eps: mh.GPT(V, context=5, d_model=M, num_heads=H, num_layers=0, norm_eps=eps),
])  # fmt: skip
def test_an_eps_that_is_negative_or_no_number_is_refused(make):
    with pytest.raises(ValueError, match=r"^eps = -0\.1 must be at least 0 and finite$"):
        make(-0.1)
    with pytest.raises(TypeError, match="eps must be a number of at least 0, not '1'"):
        make("1")


def test_a_module_shows_its_parameters():
    shown = repr(mh.MLP(3, 5))
    assert shown.splitlines()[0] == "MLP"
    assert "  widen.weight    (3, 5)  15\n  widen.bias      (5,)     5\n" in shown
    assert shown.endswith("38")
