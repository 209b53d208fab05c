"""Attention's partial results: lse, and parts of the keys merged into all of them."""

import math

import numpy as np
import pytest

import minimha as mh
from minimha.attention import IMPLEMENTATIONS
from minimha_autograd import backend

RNG = np.random.default_rng(23)
B, H, G, T, S, D, DV = 2, 4, 2, 5, 7, 6, 3
SPLIT = slice(0, 3), slice(3, S)  # the keys of two parts
SEEN = RNG.random((B, 1, T, S)) < 0.6
SEEN[0, :, 2] = False  # a query that sees nothing
SEEN[1, :, 3, :3] = False  # and one that sees nothing in the first part
q, k, v = (RNG.standard_normal(n) for n in ((B, H, T, D), (B, G, S, D), (B, G, S, DV)))
bias, sink = RNG.standard_normal((H, T, S)), RNG.standard_normal(H)
keep = RNG.random((B, H, T, S)) < 0.7
DOUT, DLSE = RNG.standard_normal((B, H, T, DV)), RNG.standard_normal((B, H, T))
SETTINGS = {
    "plain": {},
    "softcap": {"softcap": 1.5, "scale": 0.9},
    "bias and sink": {"bias": bias, "sink": sink},
    "dropout": {"keep": keep, "dropout": 0.3},
}
every_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
every_setting = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)


def attend(keys, arrays, settings, implementation, *, last=True):
    """Attention over some keys, with the sink in the last part only."""
    settings = {
        name: x[..., keys] if name in ("bias", "keep") else x for name, x in settings.items()
    }
    if not last:
        settings.pop("sink", None)
    query, key, value, *more = arrays
    if more and last:
        settings["sink"] = more[0]
    return mh.scaled_dot_product_attention(
        query, key[..., keys, :], value[..., keys, :], mh.masks.dense(SEEN[..., keys]),
        return_lse=True, implementation=implementation, **settings,
    )  # fmt: skip


def whole(arrays, settings, implementation):
    return attend(slice(None), arrays, settings, implementation)


def in_parts(arrays, settings, implementation):
    parts = [attend(keys, arrays, settings, implementation, last=keys.start > 0) for keys in SPLIT]
    return mh.merge_attention(*zip(*parts, strict=True))


def results(function, settings, implementation, dout=DOUT, dlse=DLSE):
    """out, lse and the gradients of query, key, value and the sink."""
    leaves = [mh.Tensor(x, requires_grad=True) for x in (q, k, v)]
    leaves += [mh.Tensor(sink, requires_grad=True)] * ("sink" in settings)
    out, lse = function(leaves, settings, implementation)
    # the tape refuses −∞ · 0, so rows without a key are left out of the loss of lse
    finite = np.isfinite(lse.data)
    (mh.ops.where(finite, lse, 0.0) * dlse).sum().backward(retain_graph=True)
    (out * dout).sum().backward()
    return [out.data, lse.data, *(x.grad for x in leaves)]


@every_setting
@every_implementation
def test_lse_is_the_logarithm_of_the_sum_of_exponentials(implementation, settings):
    steps = mh.attention_steps(q, k, v, mh.masks.dense(SEEN), **settings)
    total = np.exp(steps["scores"]).sum(-1)
    if "sink" in settings:
        total = total + np.exp(sink)[:, None]
    with np.errstate(divide="ignore"):
        expected = np.log(total)
    _, lse = whole((q, k, v), settings, implementation)
    np.testing.assert_allclose(lse, expected, rtol=1e-13, atol=1e-13)
    assert (lse[0, :, 2] == -math.inf).all() or "sink" in settings


@every_implementation
def test_lse_includes_the_sink_for_two_keys_by_hand(implementation):
    """Scores ln 3 and 0 with the sink ln 4: the sum of exponentials is 4 + 3 + 1."""
    query, key, value, logit = (
        mh.Tensor(np.array(x, float), requires_grad=True)
        for x in ([[math.log(3)]], [[1], [0]], [[8], [4]], math.log(4))
    )
    out, lse = mh.scaled_dot_product_attention(
        query, key, value, sink=logit, return_lse=True, implementation=implementation
    )
    np.testing.assert_allclose(lse.data, [math.log(8)], rtol=1e-14)  # and not ln (3 + 1)
    np.testing.assert_allclose(out.data, [[3 / 8 * 8 + 1 / 8 * 4]], rtol=1e-14)

    # delta = dout · out = 7/2, and dscores = P · (dP − delta); for the sink, which has no value,
    # dP is 0.
    out.sum().backward()
    np.testing.assert_allclose(query.grad, [[3 / 8 * (8 - 3.5)]], rtol=1e-13)
    np.testing.assert_allclose(logit.grad, -1 / 2 * 3.5, rtol=1e-13)


@every_implementation
def test_the_lse_of_a_query_that_sees_nothing_is_minus_infinity_or_the_sink(implementation):
    query, nothing = np.ones((1, 2, 4)), mh.masks.dense(np.zeros((2, 2), dtype=bool))
    for settings, expected in (({}, -math.inf), ({"sink": np.array([0.5])}, 0.5)):
        out, lse = mh.scaled_dot_product_attention(
            query, query, query, nothing, **settings, return_lse=True, implementation=implementation
        )
        assert (out == 0).all()
        assert (lse == expected).all()


@every_setting
@every_implementation
def test_merged_parts_equal_the_whole_forward_and_backward(implementation, settings):
    expected = results(whole, settings, "reference")
    for function in (whole, in_parts):
        for x, y in zip(expected, results(function, settings, implementation), strict=True):
            np.testing.assert_allclose(y, x, rtol=1e-12, atol=1e-12)


@pytest.mark.thorough
@every_setting
def test_gradients_of_out_and_lse_equal_finite_differences(settings):
    def out_and_lse(query, key, value):
        out, lse = in_parts((query, key, value), settings, "reference")
        return out, mh.ops.where(np.isfinite(lse.data.real), lse, 0.0)

    mh.gradcheck(out_and_lse, *(mh.Tensor(x, requires_grad=True) for x in (q, k, v)))


@every_implementation
def test_lse_alone_has_a_gradient(implementation):
    zero = np.zeros_like(DOUT)
    expected = results(whole, {}, "reference", dout=zero)
    query = mh.Tensor(q, requires_grad=True)
    _, lse = whole((query, k, v), {}, implementation)
    mh.ops.where(np.isfinite(lse.data), lse, 0.0).backward(DLSE)
    np.testing.assert_allclose(query.grad, expected[2], rtol=1e-12, atol=1e-12)


@every_implementation
def test_weights_and_lse_come_together(implementation):
    arrays = [mh.Tensor(x, requires_grad=True) for x in (q, k, v)]
    out, weights, lse = mh.scaled_dot_product_attention(
        *arrays, return_weights=True, return_lse=True, implementation=implementation
    )
    ((weights * 0.3).sum(-1) + lse + out.sum(-1)).backward(DLSE)  # rows of weights sum to one
    expected = [mh.Tensor(x, requires_grad=True) for x in (q, k, v)]
    out, lse = mh.scaled_dot_product_attention(*expected, return_lse=True)
    (lse + out.sum(-1)).backward(DLSE)
    for x, y in zip(arrays, expected, strict=True):
        np.testing.assert_allclose(x.grad, y.grad, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@every_implementation
def test_lse_has_the_dtype_of_the_query(implementation, dtype):
    arrays = [x.astype(dtype) for x in (q, k, v)]
    out, lse = whole(arrays, {}, implementation)
    assert out.dtype == lse.dtype == dtype
    _, expected = whole((q, k, v), {}, "reference")
    np.testing.assert_allclose(lse, expected, rtol=3 * np.finfo(dtype).eps, atol=1e-3)


def test_a_part_that_saw_nothing_changes_nothing(place):
    outs = [RNG.standard_normal((T, DV)), np.full((T, DV), 1e300)]
    lses = [RNG.standard_normal(T), np.full(T, -np.inf)]
    xs = [mh.Tensor(place(x), requires_grad=True) for x in (*outs, *lses)]
    out, lse = mh.merge_attention(xs[:2], xs[2:])
    (out.sum() + lse.sum()).backward()
    assert np.array_equal(backend.to_numpy(out.data), outs[0])
    assert np.array_equal(backend.to_numpy(lse.data), lses[0])
    gradients = [backend.to_numpy(x.grad) for x in xs]
    assert (gradients[0] == 1).all()
    assert (gradients[2] == 1).all()
    assert not gradients[1].any()
    assert not gradients[3].any()


def test_parts_that_all_saw_nothing_give_nothing(place):
    nothing = mh.Tensor(place(np.full(T, -np.inf)), requires_grad=True)
    zeros = mh.Tensor(place(np.zeros((T, DV))), requires_grad=True)
    out, lse = mh.merge_attention([zeros, zeros], [nothing, nothing])
    out.sum().backward()
    assert not backend.to_numpy(out.data).any()
    assert (backend.to_numpy(lse.data) == -np.inf).all()
    assert not backend.to_numpy(nothing.grad).any()


def test_large_scores_do_not_overflow():
    lses = np.array([1e5]), np.array([1e5 - 1])
    out, lse = mh.merge_attention([np.ones((1, 2)), np.zeros((1, 2))], lses)
    np.testing.assert_allclose(lse, 1e5 + math.log1p(math.exp(-1)), rtol=1e-15)
    np.testing.assert_allclose(out, 1 / (1 + math.exp(-1)), rtol=1e-10)


def test_there_is_one_lse_for_each_out():
    for outs, lses in (([q], []), ([], [])):
        with pytest.raises(ValueError, match="pass one of each part"):
            mh.merge_attention(outs, lses)


def test_the_implementation_that_stores_no_logarithms_hands_over():
    with mh.implementation("fused"):
        assert mh.explain_dispatch(q, k, v, return_lse=True).implementation == "reference"
        assert mh.explain_dispatch(q, k, v).implementation == "fused"
