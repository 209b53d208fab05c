"""Multi-head attention: the heads, their projections and their gradients."""

import copy
import math
import pickle

import numpy as np
import pytest
from layers import assert_gradients, drawn, outcome

import minimha as mh
from minimha_autograd import array_of, backend

B, T, S, M = 2, 5, 4, 12


ALL = {
    "num_kv_heads": 2, "head_dim": 6, "v_head_dim": 5, "qk_norm": True, "scale": 0.4,
    "rope": mh.positions.Rope(width=4), "alibi": True, "softcap": 3.0, "sink": True, "dropout": 0.3,
}  # fmt: skip
OPTIONS = {name: {name: value} for name, value in ALL.items()} | {
    "num_kv_heads": {"num_kv_heads": 1},
    "everything": ALL,
    "fused": {"form": "fused", **ALL},
    "per-head": {"form": "per-head", **ALL},
    "double": {"form": "double", **ALL},
    "bilinear": {"form": "bilinear", "num_kv_heads": 2, "softcap": 3.0, "sink": True},
    "interleaved": {"rope": mh.positions.Rope(interleaved=True), "num_kv_heads": 2},
    "norm over all heads": {"qk_norm": mh.QKNorm(all_heads=True, eps=0.1), "num_kv_heads": 2},
    "norm with 1 + weight": {"qk_norm": mh.QKNorm(plus_one=True)},
    "biases of q, k, v": {"bias": "qkv"},
    "plain": {},
}
EVERY_OPTION = pytest.mark.parametrize("settings", OPTIONS.values(), ids=OPTIONS)
FOUR = 4  # query heads for two key heads


def test_self_attention_equals_attention_with_x_in_all_three_roles(rng):
    mha, x, memory = drawn(rng), rng.standard_normal((B, T, M)), rng.standard_normal((B, S, M))
    np.testing.assert_array_equal(mha(x).data, mha(x, x, x).data)
    np.testing.assert_array_equal(mha(x, memory).data, mha(x, memory, memory).data)


def test_the_layer_moves_to_every_library_and_device(rng, place):
    mha, x = drawn(rng), rng.standard_normal((B, T, M))
    expected = mha(x).data
    moved = mha.to(place.name, place.device)(place(x))
    assert backend.namespace(moved.data) is place.xp
    moved.sum().backward()
    assert mha.w_q.grad.device == moved.device
    np.testing.assert_allclose(backend.to_numpy(moved.data), expected, atol=1e-13)


@EVERY_OPTION
def test_every_option_has_right_gradients(settings, rng):
    mha, x = drawn(rng, settings, d_model=16), rng.standard_normal((B, 3, 16))
    keep = rng.random((B, FOUR, 3, 3)) < 0.6 if mha.dropout else None
    assert_gradients(lambda x: mha(x, mask=mh.masks.causal(), keep=keep), [x], mha, rng)


def test_the_layer_equals_its_parts_applied_in_order(rng):
    """Project, normalise, rotate, attend with scale, softcap, bias and sink, project."""
    mha, x, f = drawn(rng, ALL), rng.standard_normal((B, T, M)), mh.functional
    q, k, v = (
        np.stack(np.split(x @ w.data + b.data, n, axis=-1), axis=1)
        for w, b, n in ((mha.w_q, mha.b_q, FOUR), (mha.w_k, mha.b_k, 2), (mha.w_v, mha.b_v, 2))
    )
    q, k = f.rms_norm(q, mha.norm_q.data), f.rms_norm(k, mha.norm_k.data)
    q, k = (f.rope(a, positions=np.arange(T), width=4) for a in (q, k))
    k, v = (np.repeat(a, FOUR // 2, axis=1) for a in (k, v))
    scores = ALL["softcap"] * np.tanh(q @ k.mT * ALL["scale"] / ALL["softcap"])
    scores += mh.positions.alibi(FOUR, T, T, like=x)
    e = np.exp(scores) * np.tri(T)
    weights = e / (e.sum(-1, keepdims=True) + np.exp(mha.sink.data[:, None, None]))
    out = np.concatenate(list(np.moveaxis(weights @ v, 1, 0)), axis=-1)
    ours = mha(x, mask=mh.masks.causal(), return_weights=True)
    np.testing.assert_allclose(ours[1].data, weights, atol=1e-14)
    np.testing.assert_allclose(ours[0].data, out @ mha.w_o.data + mha.b_o.data, atol=1e-13)


@pytest.mark.parametrize("name", ["plain", "scale", "alibi", "num_kv_heads", "dropout"])
def test_the_bias_of_the_keys_gets_no_gradient(name, rng):
    assert gradient_of_b_k(OPTIONS[name], rng) < 1e-14


@pytest.mark.parametrize("name", ["interleaved", "qk_norm", "softcap", "sink"])
def test_the_bias_of_the_keys_gets_a_gradient_if_it_does_not_add_the_same_to_all(name, rng):
    assert gradient_of_b_k({"head_dim": 4, **OPTIONS[name]}, rng) > 1e-3


def gradient_of_b_k(settings, rng):
    """The largest entry of b_k's gradient, relative to that of b_q."""
    mha, x = drawn(rng, settings), rng.standard_normal((B, T, M))
    mha(x, mask=mh.masks.causal(), rng=rng).backward(rng.standard_normal((B, T, M)))
    return abs(mha.b_k.grad).max() / abs(mha.b_q.grad).max()


def test_a_norm_over_all_heads_comes_before_they_are_split(rng):
    mha = drawn(rng, {"qk_norm": mh.QKNorm(all_heads=True, eps=0.1), "num_kv_heads": 2})
    x, rms_norm = rng.standard_normal((B, T, M)), mh.functional.rms_norm
    q = rms_norm(x @ mha.w_q.data + mha.b_q.data, mha.norm_q.data, eps=0.1)
    k = rms_norm(x @ mha.w_k.data + mha.b_k.data, mha.norm_k.data, eps=0.1)
    q, k = (np.stack(np.split(a, n, axis=-1), axis=1) for a, n in ((q, FOUR), (k, 2)))
    scores = q @ np.repeat(k, FOUR // 2, axis=1).mT / math.sqrt(M // FOUR)
    expected = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(mha(x, return_weights=True)[1].data, expected, atol=1e-13)


@EVERY_OPTION
def test_decoding_step_by_step_equals_the_full_pass(settings, rng):
    mha, x = drawn(rng, settings, d_model=16), rng.standard_normal((B, 7, 16))
    for mask in (
        mh.masks.causal(),
        mh.masks.sliding_window(2, 0),
        mh.masks.causal() & mh.masks.documents([[0, 0, 0, 1, 1, 2, 2], [0] * 6 + [1]]),
        mh.masks.causal() & mh.masks.padding([7, 5]),
        mh.masks.causal() & mh.masks.keys(np.arange(7) != np.array([[0], [4]])),
    ):
        full, weights = mha(x, mask=mask, return_weights=True)
        cache, at = mh.KeyValueCache(), 0
        for count in (3, 1, 1, 2):  # a prompt, then steps of one or more tokens
            step = slice(at, at + count)
            y, w = mha(x[:, step], mask=mask, cache=cache, return_weights=True)
            at += count
            assert len(cache) == at
            assert abs(y.data - full.data[:, step]).max() <= 1e-12 * abs(full.data).max()
            assert abs(w.data - weights.data[:, :, step, :at]).max() <= 1e-12
            assert not weights.data[:, :, step, at:].any()


def test_a_refused_call_leaves_the_cache_unchanged(rng):
    mha, cache = drawn(rng), mh.KeyValueCache()
    x, causal = rng.standard_normal((B, T, M)), mh.masks.causal()
    mha(x[:, :2], mask=causal, cache=cache)
    for inputs, settings, message in (
        ((x[:, 2:],), {"mask": mh.masks.padding([1, -9])}, "from 0 to S = 5"),
        ((x[:, 2:],), {"return_weights": "all"}, "return_weights is"),
        ((x[:, 2:],), {"bias": x}, "bias has shape"),
        ((x[:1],), {}, r"cache holds .*\(2, 4, 2, 3\) and is given \(1, 4, 5, 3\)"),
        ((x, x), {}, "a cache is for self-attention"),
    ):
        with pytest.raises(ValueError, match=message):
            mha(*inputs, cache=cache, **settings)
    with pytest.raises(TypeError, match=r"cache must be a KeyValueCache\(\), not True"):
        mha(x, cache=True)
    y = mha(x[:, 2:], mask=causal, cache=cache).data
    np.testing.assert_allclose(y, mha(x, mask=causal).data[:, 2:], atol=1e-13)


@EVERY_OPTION
def test_packed_documents_give_the_same_output_as_separate_ones(settings, rng):
    mha = drawn(rng, settings, d_model=16)
    parts = [rng.standard_normal((1, n, 16)) for n in (3, 1, 4)]
    ids = np.repeat([[0, 1, 2]], [3, 1, 4], axis=1)
    for inner in (mh.masks.causal(), mh.masks.sliding_window(1, 1)):
        packed = mha(np.concatenate(parts, axis=1), mask=inner & mh.masks.documents(ids))
        alone = np.concatenate([mha(x, mask=inner).data for x in parts], axis=1)
        assert abs(packed.data - alone).max() <= 1e-12 * abs(alone).max()


@pytest.mark.parametrize("name", mh.attention.IMPLEMENTATIONS)
def test_every_implementation_gives_the_same_output(name, rng):
    mha, x = drawn(rng, ALL), rng.standard_normal((B, T, M))
    keep = rng.random((B, FOUR, T, T)) < 0.6
    settings = {"mask": mh.masks.causal(), "keep": keep}
    expected, found = (
        [*outcome(mha, x, **settings, implementation=one), *(p.grad for p in mha.parameters())]
        for one in ("auto", name)
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert abs(ours - theirs).max() <= 1e-12 * abs(theirs).max()
    with mh.implementation(name):  # the code around attention is compiled too
        outs = [mha(x, **settings, implementation=one).data for one in (name, "auto")]
    np.testing.assert_array_equal(*outs)


def test_the_operation_on_arrays_equals_the_module(rng):
    """The pullback by hand and by the tape agree, with grouped heads."""
    mha, x = drawn(rng, {"num_kv_heads": 2, "v_head_dim": 5}), rng.standard_normal((B, T, M))
    memory, dy = rng.standard_normal((B, S, M)), rng.standard_normal((B, T, M))
    weights = [getattr(mha, f"{kind}_{role}") for kind in "wb" for role in "qkvo"]
    for inputs in ((x, x, x), (x, memory, memory)):
        mha.zero_grad()
        leaves = [mh.Tensor(a, requires_grad=True) for a in inputs]
        y, w = mha(*leaves, return_weights=True)
        y.backward(dy)
        expected = [y.data, w.data, *(p.grad for p in (*leaves, *weights))]
        arrays = *inputs, *(p.data for p in weights)
        values, pull = mh.multi_head_attention.with_pullback(
            *arrays, num_heads=FOUR, num_kv_heads=2
        )
        largest = max(abs(x).max() for x in expected[2:])
        for one, other in zip((*values, *pull(dy, None)), expected, strict=True):
            assert abs(one - other).max() <= 1e-12 * largest


def test_dropout_needs_a_generator_and_can_be_replayed(rng):
    mha, x = drawn(rng, {"dropout": 0.4}), rng.standard_normal((B, T, M))
    plain = drawn(np.random.default_rng(20170612), {})
    np.testing.assert_array_equal(mha(x).data, plain(x).data)
    one, two = (mha(x, rng=np.random.default_rng(5)).data for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert abs(one - mha(x).data).max() > 0.1
    keep = backend.bernoulli(np.random.default_rng(5), (B, FOUR, T, T), 0.6, like=x)
    np.testing.assert_array_equal(mha(x, keep=keep).data, one)
    _, before = mha(x, keep=keep, return_weights=True)
    _, after = mha(x, keep=keep, return_weights="dropped")
    np.testing.assert_allclose(after.data, np.where(keep, before.data / 0.6, 0), atol=1e-15)


class Opposite(mh.MultiHeadAttention):
    """Attention for which only the sign of the values differs, and twice the output."""

    @staticmethod
    def attend(query, key, value, *args, **kwargs):
        return mh.scaled_dot_product_attention(query, key, -value, *args, **kwargs)

    def project_out(self, heads, w_o, b_o):
        assert w_o is self.w_o
        return 2 * super().project_out(heads, w_o, b_o)


def test_a_subclass_may_override_attend_and_project_out(rng):
    x = rng.normal(size=(2, 3, 8))
    expected = -2 * mh.MultiHeadAttention(8, 2, bias=False, dtype="float64")(x).data
    layer = Opposite(8, 2, bias=False, dtype="float64")
    for copied in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        np.testing.assert_allclose(copied(x).data, expected, rtol=1e-13)


def test_what_is_provided_for_a_layer_leaves_others_and_copies_as_they_are(rng):
    x = rng.normal(size=(2, 3, 8))
    layer = mh.MultiHeadAttention(8, 2, dtype="float64")
    first = layer(x).data
    copied = copy.deepcopy(layer)
    other = mh.MultiHeadAttention(8, 2, dtype="float64")
    layer.project_out.provide(lambda heads, w_o, b_o: None)
    assert layer(x) is None
    with copied.attend.replaced_by(Opposite.attend):
        assert not np.allclose(copied(x).data, first)
    np.testing.assert_array_equal(copied(x).data, first)
    np.testing.assert_array_equal(other(x).data, first)


def test_only_positions_make_the_output_depend_on_the_order(rng):
    x = rng.standard_normal((B, T, M))
    order = rng.permutation(T)
    plain = drawn(rng)
    np.testing.assert_allclose(plain(x[:, order]).data, plain(x).data[:, order], atol=1e-13)
    for settings in ({"rope": mh.positions.Rope(width=2)}, {"alibi": True}):
        placed = drawn(rng, settings)
        assert abs(placed(x[:, order]).data - placed(x).data[:, order]).max() > 1e-3


def test_a_bias_is_added_to_that_of_alibi(rng):
    x, bias = rng.standard_normal((B, T, M)), rng.standard_normal((T, T))
    placed, plain = (drawn(np.random.default_rng(1), {"alibi": on}) for on in (True, False))
    both = bias + mh.positions.alibi(FOUR, T, T, like=x)
    np.testing.assert_array_equal(placed(x, bias=bias).data, plain(x, bias=both).data)


def test_a_float16_input_gives_a_float16_output(rng):
    mha = drawn(rng, ALL)
    half = mh.MultiHeadAttention(M, FOUR, dtype="float16", **ALL)
    for p, q in zip(half.parameters(), mha.parameters(), strict=True):
        p.data = q.data.astype("float16")
    x = rng.standard_normal((B, T, M))
    y = half(x.astype("float16"))
    assert y.dtype == np.float16
    assert abs(y.data - mha(x).data).max() <= 2e-2 * abs(mha(x).data).max()


X, W, TRUTH = np.ones((B, T, M)), np.ones((M, M)), np.tri(T, dtype=bool)


def layer(**settings):
    return mh.MultiHeadAttention(**{"d_model": M, "num_heads": FOUR, "dtype": "float64"} | settings)


def operation(query=X, num_heads=FOUR):
    return mh.multi_head_attention(query, X, X, W, W, W, W, num_heads=num_heads)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: layer(d_model=10), ValueError, "d_model = 10 .* num_heads = 4"),
    (lambda: layer(d_model=0, num_heads=1), ValueError, "d_model = 0 .* num_heads = 1"),
    (lambda: layer(num_heads=0), ValueError, "d_model = 12 .* num_heads = 0"),
    (lambda: layer(num_heads=None), TypeError, "num_heads must be an integer, not None"),
    (lambda: layer(d_model="wide"), TypeError, "d_model must be an integer, not 'wide'"),
    (lambda: layer(num_kv_heads=3), ValueError, "= 4 must be a multiple of num_kv_heads = 3"),
    (lambda: layer(num_kv_heads=0), ValueError, "num_kv_heads = 0 must be at least 1"),
    (lambda: layer(kdim=-1), ValueError, "kdim = -1 must be at least 1"),
    (lambda: layer(form="looped"), ValueError, "no form .* called 'looped': there are per-head"),
    (lambda: layer(form="fused", kdim=7), ValueError, "one matrix for one input"),
    (lambda: layer(dropout=1.5), ValueError, "dropout must be a probability, .* not 1.5"),
    (lambda: layer(dropout="some"), TypeError, "dropout must be a number from 0 to 1, not a str"),
    (lambda: layer(rope=True), TypeError, r"rope must be a positions.Rope\(…\), not True"),
    (lambda: layer()(X, X[..., 1:]), ValueError, r"key has shape \(2, 5, 11\), .* Mk = 12"),
    (lambda: layer()(X, X[:1]), ValueError, "same batch and heads"),
    (lambda: layer()(X, mh.masks.causal()), TypeError, "key must .* pass a mask by name, mask=…"),
    (lambda: layer()([[1.0]]), TypeError, "query must be an array or a Tensor .* not a list"),
    (lambda: layer()(X.astype(int)), TypeError, "query must .* floating-point .* not of int64"),
    (lambda: layer()(X, X, X > 0), TypeError, "value must .* floating-point .* not of bool"),
    (lambda: layer()(X, bias=TRUTH), TypeError, "bias has dtype bool: .* goes to mask"),
    (lambda: layer(alibi=True)(X, bias=TRUTH), TypeError, "bias has dtype bool: .* goes to mask"),
    (lambda: layer(alibi=True)(X, bias=X), ValueError, r"bias has shape \(2, 5, 12\), which"),
    (lambda: layer(alibi=True)(X, X[:, :2]), ValueError, "alibi is for self-attention"),
    (lambda: operation(num_heads=0), ValueError, r"num_heads = 0 .* must divide .* \[12, 12, 12\]"),
    (lambda: operation(num_heads=5), ValueError, r"num_heads = 5 .* must divide .* \[12, 12, 12\]"),
    (lambda: operation(num_heads=4.0), TypeError, r"num_heads must be an integer, not 4\.0"),
    (lambda: operation(X[0, 0]), ValueError, r"H = 4 heads need \(…, T, H·D\), at least two axes.* \(12,\)"),
    (lambda: mh.projections.split_heads(X, 5), ValueError, r"H = 5 heads .* not \(2, 5, 12\)"),
])  # fmt: skip
def test_mismatched_arguments_raise_an_error_that_names_them(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_copy_of_a_cache_continues_on_its_own():
    cache, rng = mh.KeyValueCache(), np.random.default_rng(0)
    mha, x = mh.MultiHeadAttention(8, 2), rng.standard_normal((1, 4, 8)).astype("float32")
    with mh.no_grad():
        for t in (0, 1):  # the second call reserves memory
            mha(x[:, t : t + 1], mask=mh.masks.causal(), cache=cache)
        other = copy.copy(cache)
        mha(x[:, 2:3], mask=mh.masks.causal(), cache=cache)
        kept = np.array(array_of(cache.keys))
        mha(x[:, 3:4], mask=mh.masks.causal(), cache=other)
    np.testing.assert_array_equal(array_of(cache.keys), kept)
