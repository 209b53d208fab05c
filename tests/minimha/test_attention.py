"""Scaled dot-product attention: statements about what it is, on every array library."""

import math

import numpy as np
import pytest
from samples import looped_attention

import minimha as mh
from minimha_autograd import backend, ops

B, H, T, S, D, DV = 2, 3, 5, 7, 4, 6
MASKS = {
    "none": None,
    "causal": mh.masks.causal(align="bottom-right"),
    "padding": mh.masks.padding([4, 7]),
    "empty rows": mh.masks.padding([3, 0]) & mh.masks.causal(offset=-2),
}


@pytest.fixture
def qkv(rng):
    return (
        rng.standard_normal((B, H, T, D)),
        rng.standard_normal((B, H, S, D)),
        rng.standard_normal((B, H, S, DV)),
    )


def composed(query, key, value, mask, bias):
    """Attention by the engine's own small operations, differentiated by the tape."""
    scores = query @ key.mT / math.sqrt(D) + bias
    e = ops.exp(scores - scores.max(axis=-1, keepdims=True).detach())
    if mask is not None:
        e = ops.where(mask, e, 0.0 * e)
    total = e.sum(axis=-1, keepdims=True)
    return (e / (total + (total.data == 0).astype(float))) @ value


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_it_is_the_sum_it_claims_to_be(mask, qkv, rng, place):
    bias = rng.standard_normal((H, 1, S))
    dense = mh.masks.resolve(mask, *qkv[:2])
    expected = looped_attention(*qkv, bias, mask=dense)
    q, k, v, b = (place(x) for x in (*qkv, bias))
    ours = mh.scaled_dot_product_attention(q, k, v, mask, bias=b, return_weights=True)
    for a, e in zip(ours, expected, strict=True):
        np.testing.assert_allclose(backend.to_numpy(a), e, rtol=0, atol=1e-14)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_the_hand_derived_backward_is_what_the_tape_composes(mask, qkv, rng):
    bias = rng.standard_normal((H, 1, S))
    cotangent = rng.standard_normal((B, H, T, DV))
    dense = mh.masks.resolve(mask, *qkv[:2])
    gradients = []
    for path in (
        lambda *x: mh.scaled_dot_product_attention(*x[:3], mask, bias=x[3]),
        lambda *x: composed(*x[:3], dense, x[3]),
    ):
        leaves = [mh.Tensor(x, requires_grad=True) for x in (*qkv, bias)]
        path(*leaves).backward(cotangent)
        gradients.append([leaf.grad for leaf in leaves])
    for ours, theirs in zip(*gradients, strict=True):
        assert abs(ours - theirs).max() <= 1e-13 * abs(theirs).max()


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("seed", range(5))
def test_gradients_agree_with_the_complex_step_to_1e_12(mask, seed):
    rng = np.random.default_rng(seed)
    inputs = [
        rng.standard_normal(s) for s in [(B, H, T, D), (B, H, S, D), (B, H, S, DV), (H, T, S)]
    ]

    def f(query, key, value, bias):
        return mh.scaled_dot_product_attention(query, key, value, mask, bias=bias)

    report = mh.gradcheck(f, *map(mh.Tensor, inputs), rng=rng)
    sharp = [row for row in report.rows if row.method == "complex step"]
    assert len(sharp) == 4
    assert max(row.error for row in sharp) <= 1e-12


def test_arrays_give_arrays_and_tensors_give_tensors(qkv):
    assert isinstance(mh.scaled_dot_product_attention(*qkv), np.ndarray)
    q, k, v = qkv
    out, weights = mh.scaled_dot_product_attention(q, mh.Tensor(k), v, return_weights=True)
    assert isinstance(out, mh.Tensor)
    assert isinstance(weights, mh.Tensor)


def test_asking_for_the_weights_does_not_change_the_output(qkv):
    out, _ = mh.scaled_dot_product_attention(*qkv, return_weights=True)
    np.testing.assert_array_equal(out, mh.scaled_dot_product_attention(*qkv))


def test_weights_are_differentiable(qkv):
    def f(query, key, value):
        return mh.scaled_dot_product_attention(query, key, value, return_weights=True)

    mh.gradcheck(f, *map(mh.Tensor, qkv))

    def only_weights(query, key, value):
        return f(query, key, value)[1]

    report = mh.gradcheck(only_weights, *map(mh.Tensor, qkv))
    assert {r.input for r in report.rows if r.note == "structural zero"} == {"value"}


def test_rows_with_nothing_to_attend_to_give_zeros_and_zero_gradients(qkv, rng, place):
    leaves = [mh.Tensor(place(x), requires_grad=True) for x in qkv]
    mask = mh.masks.padding([0, 5]) & mh.masks.causal(offset=-1)
    out, weights = mh.scaled_dot_product_attention(*leaves, mask, return_weights=True)
    out.backward(place(rng.standard_normal((B, H, T, DV))))
    host = backend.to_numpy
    for x in (out.data, weights.data, leaves[0].grad):
        assert not host(x)[0].any()
        assert not host(x)[1, :, 0].any()
        assert host(x)[1, :, 1:].any()
    for leaf in leaves[1:]:
        assert not host(leaf.grad)[0].any()
        assert not host(leaf.grad)[1, :, 5:].any()
        assert np.isfinite(host(leaf.grad)).all()


def test_a_bias_of_minus_infinity_counts_as_masked(qkv, rng):
    visible = rng.random((B, H, T, S)) < 0.5
    visible[0, 1, 2] = False
    bias = np.where(visible, 0.0, -math.inf)
    leaves = [[mh.Tensor(x, requires_grad=True) for x in qkv] for _ in range(2)]
    by_bias = mh.scaled_dot_product_attention(*leaves[0], bias=bias)
    by_mask = mh.scaled_dot_product_attention(*leaves[1], mh.masks.dense(visible))
    np.testing.assert_array_equal(by_bias.data, by_mask.data)
    for y in (by_bias, by_mask):
        y.backward(np.ones_like(y.data))
    for one, other in zip(*leaves, strict=True):
        np.testing.assert_array_equal(one.grad, other.grad)


def test_the_operation_takes_arrays_for_masks_not_rules(qkv):
    with pytest.raises(TypeError, match="mask must be a boolean array, not of type _Causal"):
        mh.functional.attention(*qkv, mask=mh.masks.causal(offset=0))
    with pytest.raises(TypeError, match="not of dtype float64"):
        mh.functional.softmax(qkv[0], mask=np.zeros(4))


def test_a_bias_may_be_a_tensor_by_name(qkv, rng):
    bias = mh.Tensor(rng.standard_normal((T, S)), requires_grad=True)
    mh.functional.attention(*qkv, bias=bias)[0].sum().backward()
    assert bias.grad.shape == (T, S)


def test_large_scores_stay_finite(qkv):
    q, k, v = qkv
    out, weights = mh.scaled_dot_product_attention(1e4 * q, 1e4 * k, v, return_weights=True)
    assert np.isfinite(out).all()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-15)


def test_no_queries_and_no_keys(qkv):
    q, k, v = qkv
    assert mh.scaled_dot_product_attention(q[:, :, :0], k, v).shape == (B, H, 0, DV)
    assert not mh.scaled_dot_product_attention(q, k[:, :, :0], v[:, :, :0]).any()


def test_float32_stays_float32(qkv):
    out = mh.scaled_dot_product_attention(*(x.astype("float32") for x in qkv))
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, mh.scaled_dot_product_attention(*qkv), atol=2e-6)


def test_the_scale_can_be_chosen(qkv):
    q, k, v = qkv
    np.testing.assert_allclose(
        mh.scaled_dot_product_attention(q, k, v, scale=0.25),
        mh.scaled_dot_product_attention(q * 0.25 * math.sqrt(D), k, v),
        atol=1e-15,
    )


def test_no_heads_and_many_batch_axes(qkv):
    q, k, v = qkv
    out = mh.scaled_dot_product_attention(q, k, v)
    np.testing.assert_allclose(
        mh.scaled_dot_product_attention(q[0, 0], k[0, 0], v[0, 0]), out[0, 0], atol=1e-15
    )
    deeper = (x[None, :, None] for x in qkv)
    np.testing.assert_allclose(mh.scaled_dot_product_attention(*deeper)[0, :, 0], out, atol=1e-15)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"key": np.ones((B, H, S, 5))}, ValueError, r"same width D, at least 1: query .* is \(2, 3, 5, 4\), key"),
        ({"value": np.ones((B, H, 6, DV))}, ValueError, "same number of positions S"),
        ({"key": np.ones((B, 2, S, D))}, ValueError, r"same batch and heads"),
        ({"query": np.ones(D)}, ValueError, r"query .* has shape \(4,\): it needs two axes"),
        ({"query": np.ones((B, H, T, D), dtype=int)}, TypeError, "query .* has dtype int64"),
        ({"query": [[1.0]]}, TypeError, "query .* must be an array or a Tensor, not list"),
        ({"key": np.ones((B, H, S, D), dtype="float32")}, TypeError, "query is .* float64, key is .* float32"),
        ({"bias": np.ones((H, T, 6))}, ValueError, r"bias has shape \(3, 5, 6\)"),
        ({"bias": np.ones((T, S), dtype=bool)}, TypeError, "bias has dtype bool.*goes to mask"),
        ({"bias": np.ones((T, S), dtype=int)}, TypeError, "bias has dtype int64"),
        ({"query": np.ones((B, H, T, 0)), "key": np.ones((B, H, S, 0))}, ValueError, "at least 1"),
        ({"bias": [1.0]}, TypeError, "bias must be an array or a Tensor, not list"),
        ({"mask": mh.masks.causal}, TypeError, r"mask is a function: call it, as in masks\.causal\(\)"),
        ({"mask": [[1, 0]]}, TypeError, "mask has dtype int64 and must be boolean"),
        ({"mask": np.ones((T, S), dtype=int)}, TypeError, "write mask != 0"),
        ({"mask": np.ones((T, S))}, TypeError, "add to the scores as bias"),
        ({"mask": np.ones((B, S), dtype=bool)}, ValueError, r"masks\.padding\(lengths\)"),
        ({"mask": np.ones((4, S), dtype=bool)}, ValueError, r"shape \(4, 7\), which does not broadcast"),
        ({"mask": mh.masks.causal()}, ValueError, 'T = 5 .* S = 7 .*offset=….*align="top-left".*"bottom-right"'),
    ],
)  # fmt: skip
def test_bad_input_is_named_with_what_is_required(change, error, message, qkv):
    arguments = dict(zip(("query", "key", "value"), qkv, strict=True)) | change
    with pytest.raises(error, match=message):
        mh.scaled_dot_product_attention(**arguments)
