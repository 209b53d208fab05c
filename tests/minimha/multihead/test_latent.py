"""Latent attention: both of its forms, its cache and its gradients."""

import numpy as np
import pytest
from layers import assert_gradients, far, outcome

import minimha as mh
from minimha_autograd import backend

B, T, M, H, C, D, DR, DV, CQ = 2, 7, 13, 3, 8, 5, 4, 6, 9
SIZES = {"latent": C, "head_dim": D, "rope_dim": DR, "v_head_dim": DV}
OPTIONS = {
    "plain": {},
    "query latent": {"query_latent": CQ},
    "no rope": {"rope": None, "query_latent": CQ},
    "interleaved": {"rope": mh.positions.Rope(base=50.0, interleaved=True), "v_head_dim": None},
}
EVERY_OPTION = pytest.mark.parametrize("settings", OPTIONS.values(), ids=OPTIONS)
FORMS = pytest.mark.parametrize("absorbed", [False, True], ids=["keys and values", "absorbed"])
MASKS = {
    "causal": mh.masks.causal(),
    "window": mh.masks.sliding_window(2, 0),
    "documents": mh.masks.causal() & mh.masks.documents([[0, 0, 0, 1, 1, 2, 2], [0] * 6 + [1]]),
    "padding": mh.masks.causal() & mh.masks.padding([7, 5]),
    "keys": mh.masks.causal() & mh.masks.keys(np.arange(7) != np.array([[0], [4]])),
}
EVERY_MASK = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def drawn(rng, settings=None, **others):
    """Latent attention with random parameters, so that no norm has weights of one."""
    settings = SIZES | {"dtype": "float64"} | (settings or {}) | others
    return far(mh.LatentAttention(M, H, rng=rng, **settings), rng)


def all_of(layer, x, **settings):
    """The output, and the gradients of the input and of every parameter."""
    return [*outcome(layer, x, **settings), *(p.grad for p in layer.parameters())]


def assert_same(ours, theirs, bound=1e-12):
    for one, other in zip(ours, theirs, strict=True):
        assert abs(one - other).max() <= bound * abs(other).max()


@FORMS
def test_the_layer_equals_the_formulas_of_the_paper(absorbed, rng):
    layer, x = drawn(rng, query_latent=CQ), rng.standard_normal((B, T, M))
    w = {name: p.data for name, p in layer.named_parameters()}
    f = mh.functional
    c = f.rms_norm(x @ w["w_dkv"], w["norm_kv"])
    c_q = f.rms_norm(x @ w["w_dq"], w["norm_q"])
    k_r = f.rope(x @ w["w_kr"])
    weights, heads = [], []
    for i in range(H):
        uk, uq, uv = (
            w[n][:, i * d : (i + 1) * d] for n, d in (("w_uk", D), ("w_uq", D), ("w_uv", DV))
        )
        q_r = f.rope(c_q @ w["w_qr"][:, i * DR : (i + 1) * DR])
        scores = (c_q @ uq @ (c @ uk).mT + q_r @ k_r.mT) / np.sqrt(D + DR)
        e = np.exp(scores) * np.tri(T)
        weights.append(e / e.sum(-1, keepdims=True))
        heads.append(weights[-1] @ (c @ uv))
    expected = np.concatenate(heads, axis=-1) @ w["w_o"], np.stack(weights, axis=1)
    found = layer(x, mh.masks.causal(), absorbed=absorbed, return_weights=True)
    assert_same([y.data for y in found], expected)


@pytest.mark.parametrize("seed", range(6))
def test_the_absorbed_form_equals_the_plain_one_forward_and_backward(seed):
    rng = np.random.default_rng(seed)
    names = "d_model", "latent", "head_dim", "v_head_dim", "query_latent", "num_heads", "rope_dim"
    sizes = dict(zip(names, map(int, rng.permutation(np.arange(2, 16))), strict=False))
    sizes["rope_dim"] *= 2
    sizes["query_latent"] = sizes["query_latent"] if seed % 2 else None
    layer = far(mh.LatentAttention(**sizes, dropout=0.3, rng=seed, dtype="float64"), rng)
    x = rng.standard_normal((B, T, sizes["d_model"]))
    keep = rng.random((B, sizes["num_heads"], T, T)) < 0.7
    for mask in (None, *MASKS.values()):
        plain, absorbed = (
            all_of(layer, x, mask=mask, keep=keep, absorbed=on) for on in (False, True)
        )
        assert_same(absorbed, plain)


@FORMS
@EVERY_OPTION
def test_every_option_has_right_gradients(settings, absorbed, rng):
    layer, x = drawn(rng, settings, dropout=0.4), rng.standard_normal((B, 4, M))
    keep = rng.random((B, H, 4, 4)) < 0.6
    assert_gradients(
        lambda x: layer(x, mh.masks.causal(), keep=keep, absorbed=absorbed), [x], layer, rng
    )


@FORMS
def test_gradcheck_passes(absorbed, rng):
    layer = drawn(rng, query_latent=CQ)
    x = mh.Tensor(rng.standard_normal((3, M)))
    norms = {"norm_kv": layer.norm_kv, "norm_q": layer.norm_q}
    mh.gradcheck(lambda x: layer(x, mh.masks.causal(), absorbed=absorbed), x, parameters=norms)


@EVERY_MASK
@EVERY_OPTION
def test_decoding_step_by_step_equals_the_full_pass(settings, mask, rng):
    layer, x = drawn(rng, settings), rng.standard_normal((B, T, M))
    full, weights = layer(x, mask, return_weights=True)
    for absorbed in (None, False, True):
        cache, at = mh.KeyValueCache(), 0
        for count in (3, 1, 1, 2):  # a prompt, then steps of one or more tokens
            step = slice(at, at + count)
            y, w = layer(x[:, step], mask, cache=cache, absorbed=absorbed, return_weights=True)
            at += count
            assert len(cache) == at
            assert abs(y.data - full.data[:, step]).max() <= 1e-12 * abs(full.data).max()
            assert abs(w.data - weights.data[:, :, step, :at]).max() <= 1e-12


@FORMS
@pytest.mark.parametrize("sinks", [0, 1])
def test_a_cache_with_a_window_forgets_and_equals_the_mask(sinks, absorbed, rng):
    layer, x = drawn(rng), rng.standard_normal((B, T, M))
    near = mh.masks.sliding_window(1, 0) | (mh.masks.causal() & mh.masks.prefix(sinks))
    full = layer(x, near).data
    cache, at = mh.KeyValueCache(2, sinks=sinks), 0
    for count in (2, 1, 3, 1):
        step = slice(at, at + count)
        y = layer(x[:, step], mh.masks.causal(), cache=cache, absorbed=absorbed).data
        at += count
        assert abs(y - full[:, step]).max() <= 1e-12 * abs(full).max()
        assert cache.keys.shape[-2] <= 1 + sinks
    assert len(cache) == T


def test_the_cache_holds_the_latents_and_the_rotated_key_alone(rng):
    layer, cache = drawn(rng), mh.KeyValueCache()
    with mh.no_grad():
        for x in rng.standard_normal((T, B, 1, M)):
            layer(x, mh.masks.causal(), cache=cache)
    assert cache.keys.shape == (B, 1, T, C + DR)
    assert cache.values.data.size == 0


def test_only_a_cache_with_earlier_positions_makes_the_absorbed_form_the_default(rng):
    layer, x = drawn(rng), rng.standard_normal((B, T, M))
    np.testing.assert_array_equal(layer(x).data, layer(x, absorbed=False).data)
    outs = []
    for absorbed in (None, True):
        cache = mh.KeyValueCache()
        first = layer(x[:, :4], cache=cache)
        np.testing.assert_array_equal(first.data, layer(x[:, :4], absorbed=False).data)
        outs.append(layer(x[:, 4:], cache=cache, absorbed=absorbed).data)
    np.testing.assert_array_equal(*outs)


def test_gradients_flow_through_a_cache(rng):
    layer, x = drawn(rng, query_latent=CQ), rng.standard_normal((B, T, M))
    cotangent, gradients = rng.standard_normal((B, T, M)), []
    for steps in ([T], [3, 1, 3]):
        layer.zero_grad()
        leaf, cache, at, total = mh.Tensor(x, requires_grad=True), mh.KeyValueCache(), 0, 0.0
        for n in steps:
            y = layer(leaf[:, at : at + n], mh.masks.causal(), cache=cache)
            total, at = total + (y * cotangent[:, at : at + n]).sum(), at + n
        total.backward()
        gradients.append([leaf.grad, *(p.grad for p in layer.parameters())])
    assert_same(*gradients)


@FORMS
def test_hidden_latents_have_no_influence_even_if_they_are_nan(absorbed, rng):
    layer, x = drawn(rng), rng.standard_normal((B, T, M))
    results = []
    for hidden in (0.0, np.nan):
        cache = mh.KeyValueCache()
        with mh.no_grad():
            layer(x[:, :4], cache=cache)
        cache.keys.data[:, :, 2] = hidden
        mask = mh.masks.causal() & mh.masks.keys([np.arange(T) != 2] * B)
        leaf = mh.Tensor(x[:, 4:], requires_grad=True)
        layer.zero_grad()
        y, weights = layer(leaf, mask, cache=cache, absorbed=absorbed, return_weights=True)
        y.backward(x[:, 4:])
        results.append([y.data, weights.data, leaf.grad, layer.w_uq.grad, layer.w_dkv.grad])
    assert_same(results[1], results[0])


def test_positions_count_from_the_start_of_the_cache_unless_given(rng):
    layer, x = drawn(rng), rng.standard_normal((B, T, M))
    y = layer(x).data
    assert_same([layer(x, positions=np.arange(T) + 5).data], [y])  # only distances matter
    assert abs(layer(x, positions=np.arange(T) * 2).data - y).max() > 1e-3


def test_the_layer_moves_to_every_library_and_device(rng, place):
    layer, x = drawn(rng, query_latent=CQ), rng.standard_normal((B, T, M))
    expected = layer(x, mh.masks.causal()).data
    layer.to(place.name, place.device)
    for absorbed in (False, True):
        moved = layer(place(x), mh.masks.causal(), absorbed=absorbed)
        assert backend.namespace(moved.data) is place.xp
        moved.sum().backward()
        assert layer.w_uk.grad.device == moved.device
        np.testing.assert_allclose(backend.to_numpy(moved.data), expected, atol=1e-12)


X = np.ones((B, T, M))


def layer(**settings):
    return mh.LatentAttention(
        **{"d_model": M, "num_heads": H, "dtype": "float64"} | SIZES | settings
    )


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: layer(num_heads=0), ValueError, "num_heads = 0 must be at least 1"),
    (lambda: layer(latent=None), TypeError, "latent must be an integer, not None"),
    (lambda: layer(query_latent=0), ValueError, "query_latent = 0 must be at least 1"),
    (lambda: layer(rope=True), TypeError, r"rope must be a positions.Rope\(…\), not True"),
    (lambda: layer(rope_dim=3)(X), ValueError, "width = 3 must be even"),
    (lambda: layer(dropout=1.5), ValueError, "dropout must be a probability, .* not 1.5"),
    (lambda: layer()(X[..., 1:]), ValueError, r"x has shape \(2, 7, 12\), .* with M = 13"),
    (lambda: layer()(X.astype(int)), TypeError, "x must be .* floating-point .* not of int64"),
    (lambda: layer()(X, cache=True), TypeError, r"cache must be a KeyValueCache\(\), not True"),
])  # fmt: skip
def test_mismatched_arguments_raise_an_error_that_names_them(call, error, message):
    with pytest.raises(error, match=message):
        call()
