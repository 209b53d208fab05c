"""Properties of scaled dot-product attention, on every array library."""

import math

import array_api_strict as strict
import numpy as np
import pytest

import minimha as mh
from minimha_autograd import backend

B, H, T, S, D, DV = 2, 3, 5, 7, 4, 6


@pytest.fixture
def qkv(rng):
    return (
        rng.standard_normal((B, H, T, D)),
        rng.standard_normal((B, H, S, D)),
        rng.standard_normal((B, H, S, DV)),
    )


def test_arrays_give_arrays_and_tensors_give_tensors(qkv):
    assert isinstance(mh.scaled_dot_product_attention(*qkv), np.ndarray)
    q, k, v = qkv
    out, weights = mh.scaled_dot_product_attention(q, mh.Tensor(k), v, return_weights=True)
    assert isinstance(out, mh.Tensor)
    assert isinstance(weights, mh.Tensor)


def test_numbers_do_not_change_the_dtype_and_arrays_of_another_dtype_are_refused(qkv):
    single = [x.astype("float32") for x in qkv]
    for number in (0.5, np.float64(0.5), np.float32(0.5)):
        for x, dtype in ((qkv, "float64"), (single, "float32")):
            out = mh.scaled_dot_product_attention(*x, scale=number, softcap=number)
            assert out.dtype == dtype
    with pytest.raises(TypeError, match=r"scale is .* of float64: convert one"):
        mh.scaled_dot_product_attention(*single, scale=np.asarray(0.5))


def test_complex_inputs_work_in_the_forward_pass_only(qkv):
    q, k, v = qkv
    step = mh.scaled_dot_product_attention(q + 1e-20j, k, v).imag / 1e-20
    assert np.isfinite(step).all()
    with pytest.raises(TypeError, match="complex"):
        mh.Tensor(q + 0j, requires_grad=True)
    with pytest.raises(TypeError, match="complex values have no gradient: use no_grad"):
        mh.scaled_dot_product_attention(q + 0j, mh.Tensor(k, requires_grad=True), v)


def test_a_mask_on_the_host_works_with_every_library(qkv, place):
    visible = np.broadcast_to(np.arange(S) < 4, (H, T, S))  # read-only arrays make torch warn
    q, k, v = map(place, qkv)
    fewer = (place(x[:, :, :4]) for x in qkv[1:])
    expected = backend.to_numpy(mh.scaled_dot_product_attention(q, *fewer))
    for mask in (visible, mh.masks.dense(visible), mh.masks.padding(np.array([4, 4]))):
        out = mh.scaled_dot_product_attention(q, k, v, mask)
        np.testing.assert_allclose(backend.to_numpy(out), expected, atol=1e-15)


@pytest.mark.parametrize(("change", "error", "message"), [
    ({"key": np.ones((B, H, S, 5))}, ValueError, r"same width D, at least 1: query .* is \(2, 3, 5, 4\), key"),
    ({"value": np.ones((B, H, 6, DV))}, ValueError, "same number of positions S"),
    ({"query": np.ones(D)}, ValueError, r"query .* has shape \(4,\): it needs at least two axes"),
    ({"query": np.ones((B, H, T, D), dtype=int)}, TypeError, "query .* has dtype int64"),
    ({"query": [[1.0]]}, TypeError, "query .*must be an array.*, not (a )?list"),
    ({"bias": np.ones((H, T, 6))}, ValueError, r"bias has shape \(3, 5, 6\)"),
    ({"bias": np.ones((T, S), dtype=bool)}, TypeError, "bias has dtype bool.*goes to mask"),
    ({"query": np.ones((B, H, T, 0)), "key": np.ones((B, H, S, 0))}, ValueError, "at least 1"),
    ({"mask": mh.masks.causal}, TypeError, r"mask is a function: call it, as in masks\.causal\(\)"),
    ({"mask": np.ones((T, S), dtype=int)}, TypeError, "write mask != 0"),
    ({"mask": np.ones((T, S))}, TypeError, "add to the scores as bias"),
    ({"mask": np.ones((4, S), dtype=bool)}, ValueError, r"shape \(4, 7\), which does not broadcast"),
    ({"key": np.ones((B, 2, S, D)), "value": np.ones((B, 2, S, DV))}, ValueError, r"the 3 heads H of query must be a multiple of the 2 heads G .* \(2, 3, 5, 4\), .* \(2, 2, 7, 4\)"),
    ({"query": np.ones((B, 0, T, D)), "key": np.ones((B, 0, S, D))}, ValueError, r"same batch and heads \(…, G\)"),
    ({"key": np.ones((B, 0, S, D)), "value": np.ones((B, 0, S, DV))}, ValueError, "multiple of the 0 heads G"),
    ({"query": np.ones((4, H, T, D))}, ValueError, r"same batch and heads \(…\): query .* \(4, 3, 5, 4\)"),
    ({"query": np.ones((H, T, D))}, ValueError, r"same batch and heads \(…\)"),
    ({"value": np.ones((B, 1, S, DV))}, ValueError, r"key and value need the same batch and heads \(…, G\)"),
    ({"value": np.ones(S)}, ValueError, r"value \(…, G, S, Dv\) has shape \(7,\): it needs at least two axes"),
    ({"value": np.ones((B, H, S, DV), dtype=bool)}, TypeError, "value .* has dtype bool: attention needs floating-point"),
    ({"key": np.float64(1.0)}, TypeError, "key .* must be an array or a Tensor, not float"),
    ({"bias": np.ones((T, S), dtype="float32")}, TypeError, "query is .* of float64, bias is .* of float32: convert one"),
    ({"bias": strict.ones((T, S))}, TypeError, r"query is numpy.*, bias is array_api_strict.*\(5, 7\) of .*: convert one"),
    ({"keep": strict.ones((T, S), dtype=strict.bool), "dropout": 0.5}, TypeError, "query is numpy.*, keep is array_api_strict"),
    ({"sink": np.ones((H, 1, 1))}, ValueError, r"sink has shape \(3, 1, 1\), which does not broadcast to \(…, H\)"),
    ({"sink": np.ones(H, dtype=int)}, TypeError, "sink has dtype int64: it is a logit for each head"),
    ({"sink": 0.0}, TypeError, "sink must be an array or a Tensor, not float"),
    ({"scale": np.ones(H)}, ValueError, r"scale has shape \(3,\), which does not broadcast to \(…, H, T, S\) \(2, 3, 5, 7\)"),
    ({"scale": np.asarray(2)}, TypeError, "scale has dtype int64: it multiplies the scores"),
    ({"scale": True}, ValueError, "scale = True: a number is required"),
    ({"softcap": np.ones((1, 1, 1, 1, 1))}, ValueError, r"softcap has shape \(1, 1, 1, 1, 1\), which does not"),
    ({"softcap": 0}, ValueError, "softcap = 0: a positive, finite number is required; omit it for no cap"),
    ({"softcap": math.inf}, ValueError, "softcap = inf: .*omit it for no cap"),
    ({"softcap": math.nan}, ValueError, "softcap = nan"),
    ({"softcap": 1j}, ValueError, "softcap = 1j"),
    ({"dropout": 0.5}, ValueError, "dropout = 0.5 needs rng, .*or keep.*global state"),
    ({"dropout": 0.5, "rng": 3}, TypeError, "rng must be a generator, not 3: .*default_rng"),
    ({"dropout": 1.5, "rng": np.random.default_rng()}, ValueError, "dropout must be a probability, from 0 to 1, not 1.5"),
    ({"dropout": True, "rng": np.random.default_rng()}, TypeError, "dropout must be a number from 0 to 1, not a bool"),
    ({"dropout": 2, "keep": np.ones((T, S), dtype=bool)}, ValueError, "dropout must be a probability, from 0 to 1, not 2"),
    ({"keep": np.ones((T, S), dtype=bool)}, ValueError, "keep is given, but dropout is 0: pass the dropout"),
    ({"keep": np.ones((T, S)), "dropout": 0.5}, TypeError, "keep must be a boolean array, not of dtype float64"),
    ({"keep": np.ones((4, S), dtype=bool), "dropout": 0.5}, ValueError, r"keep has shape \(4, 7\), which does not broadcast to \(…, H, T, S\) \(2, 3, 5, 7\)"),
    ({"mask": np.ones((B, S), dtype=bool)}, ValueError, r"could be \(B, S\): write masks\.keys\(mask\) or .*masks\.dense\(mask\)"),
    ({"mask": mh.masks.padding([1, 8])}, ValueError, "from 0 to S = 7"),
    ({"mask": mh.masks.causal()}, ValueError, 'T = 5 .* S = 7 .*offset=….*align="top-left".*"bottom-right"'),
])  # fmt: skip
def test_invalid_inputs_raise_an_error_with_the_requirement(change, error, message, qkv):
    arguments = dict(zip(("query", "key", "value"), qkv, strict=True)) | change
    draws = "needs rng" in message or "rng must" in message  # explain_dispatch needs no rng
    explain = () if draws else (mh.explain_dispatch,)
    for path in (mh.scaled_dot_product_attention, mh.attention_steps, *explain):
        with pytest.raises(error, match=message):
            path(**arguments)


def test_unknown_return_weights_and_implementations_are_refused(qkv):
    with pytest.raises(ValueError, match="return_weights is False, True or \"dropped\", not 'all'"):
        mh.scaled_dot_product_attention(*qkv, return_weights="all")
    with pytest.raises(ValueError, match="called 'fast': there are 'auto', 'reference'"):
        mh.scaled_dot_product_attention(*qkv, implementation="fast")
    with pytest.raises(ValueError, match="called 'fast'"), mh.attention.implementation("fast"):
        pass


def test_a_square_mask_that_could_be_a_padding_mask_is_refused(qkv):
    with pytest.raises(ValueError, match=r"mask of shape \(2, 2\) could be \(B, S\)"):
        mh.scaled_dot_product_attention(*(x[:, :, :B] for x in qkv), np.ones((B, B), dtype=bool))
