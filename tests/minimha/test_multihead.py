"""Multi-head attention: the heads, their projections and their gradients."""

import numpy as np
import pytest

import minimha as mh
from minimha_autograd import backend

B, H, T, S, M = 2, 3, 5, 4, 12


@pytest.fixture
def mha(rng):
    module = mh.MultiHeadAttention(M, H, rng=rng, dtype="float64")
    for bias in (module.b_q, module.b_k, module.b_v, module.b_o):
        bias.data = rng.standard_normal(M)
    return module


def test_self_attention_is_attention_of_x_to_itself(mha, rng):
    x = rng.standard_normal((B, T, M))
    np.testing.assert_array_equal(mha(x).data, mha(x, x, x).data)
    memory = rng.standard_normal((B, S, M))
    np.testing.assert_array_equal(mha(x, memory).data, mha(x, memory, memory).data)


def test_gradients_of_every_parameter_and_input(mha, rng):
    names, parameters = zip(*mha.named_parameters(), strict=True)
    shapes = [(B, T, M), (B, S, M), (B, S, M)]

    def f(query, key, value, *weights):
        for name, weight in zip(names, weights, strict=True):
            setattr(mha, name, weight)
        return mha(query, key, value, mask=mh.masks.padding([2, 4]), return_weights=True)

    inputs = [mh.Tensor(rng.standard_normal(s)) for s in shapes] + list(parameters)
    report = mh.gradcheck(f, *inputs, names=["query", "key", "value", *names])
    assert {row.input for row in report.rows if row.method == "complex step"} == {
        *names, "query", "key", "value"
    }  # fmt: skip
    assert {row.input for row in report.rows if row.note == "structural zero"} == {"b_k"}


def test_the_key_bias_raises_no_alarm_over_many_seeds():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        module = mh.MultiHeadAttention(6, 2, rng=rng, dtype="float64")
        x, scale = rng.standard_normal((2, 3, 6)), 10.0 ** rng.integers(-6, 7)

        def f(b_k):
            module.b_k = b_k  # noqa: B023
            return scale * module(x)  # noqa: B023

        report = mh.gradcheck(f, mh.Tensor(rng.standard_normal(6)), rng=rng)
        assert all(row.note == "structural zero" for row in report.rows)


def test_the_output_does_not_depend_on_the_key_bias(mha, rng):
    x = rng.standard_normal((B, T, M))
    before = mha(x).data
    mha.b_k.data = 10 * rng.standard_normal(M)
    np.testing.assert_allclose(mha(x).data, before, atol=1e-13)


def test_three_wide_layers_are_3h_narrow_ones(mha, rng):
    """x [W₀ W₁ …] = [xW₀ xW₁ …]: the stacked projection against a loop over heads."""
    x, d = rng.standard_normal((B, T, M)), M // H
    stacked = mh.projections.project_in(x, mha.w_q.data, mha.b_q.data, num_heads=H)
    for h in range(H):
        columns = slice(h * d, (h + 1) * d)
        narrow = x @ mha.w_q.data[:, columns] + mha.b_q.data[columns]
        np.testing.assert_allclose(stacked[:, h], narrow, atol=1e-14)


def test_a_bare_reshape_would_mix_time_with_heads(rng):
    x = rng.standard_normal((B, T, M))
    right = mh.projections.split_heads(x, H)
    wrong = x.reshape(B, H, T, M // H)
    assert right.shape == wrong.shape
    assert not np.allclose(right, wrong)
    np.testing.assert_array_equal(right[1, 2, 3], x[1, 3, 2 * 4 : 3 * 4])
    np.testing.assert_array_equal(mh.projections.merge_heads(right), x)


def test_heads_are_independent(mha, rng):
    x = rng.standard_normal((B, T, M))
    before = mha(x, return_weights=True)[1].data
    d = M // H
    mha.w_q.data = mha.w_q.data.copy()
    mha.w_q.data[:, d : 2 * d] += 1
    after = mha(x, return_weights=True)[1].data
    np.testing.assert_array_equal(after[:, [0, 2]], before[:, [0, 2]])
    assert not np.allclose(after[:, 1], before[:, 1])


def test_the_future_is_invisible(mha, rng):
    x = rng.standard_normal((B, T, M))
    before = mha(x, mask=mh.masks.causal()).data
    x[:, 3:] = rng.standard_normal((B, T - 3, M))
    after = mha(x, mask=mh.masks.causal()).data
    np.testing.assert_array_equal(after[:, :3], before[:, :3])
    assert not np.allclose(after[:, 3:], before[:, 3:])


def test_it_moves_to_every_library_and_device(mha, rng, place):
    x = rng.standard_normal((B, T, M))
    expected = mha(x).data
    moved = mha.to(place.name, place.device)(place(x))
    assert backend.namespace(moved.data) is place.xp
    moved.sum().backward()
    assert mha.w_q.grad.device == moved.device
    np.testing.assert_allclose(backend.to_numpy(moved.data), expected, atol=1e-14)


@pytest.mark.parametrize(("width", "heads"), [(10, 3), (0, 1), (4, 0), (4, -2)])
def test_a_width_that_the_heads_do_not_divide_names_both(width, heads):
    with pytest.raises(ValueError, match=f"d_model = {width} .* num_heads = {heads}"):
        mh.MultiHeadAttention(width, heads)


def test_an_input_of_another_width_is_named(mha):
    with pytest.raises(ValueError, match=r"key has shape \(2, 4, 11\), .* M = 12"):
        mha(np.ones((B, T, M)), np.ones((B, S, M - 1)))


def test_a_mask_in_the_place_of_a_key_is_told_where_to_go(mha):
    x = np.ones((B, T, M))
    with pytest.raises(TypeError, match="key is a mask: pass it by name, mask="):
        mha(x, mh.masks.causal())
    with pytest.raises(TypeError, match="query must be an array or a Tensor, not list"):
        mha([[1.0]])


def test_shapes_that_do_not_fit_are_named(mha, rng):
    x = rng.standard_normal((B, T, M))
    with pytest.raises(ValueError, match="same batch and heads"):
        mha(x, rng.standard_normal((1, S, M)))
    w = rng.standard_normal((M, M))
    for count in (0, 5):
        with pytest.raises(
            ValueError, match=rf"num_heads = {count} must divide the columns \[12, 12, 12\]"
        ):
            mh.multi_head_attention(x, x, x, w, w, w, w, num_heads=count)


def test_without_biases_there_are_four_parameters():
    module = mh.MultiHeadAttention(M, H, bias=False)
    assert [name for name, _ in module.named_parameters()] == ["w_q", "w_k", "w_v", "w_o"]
    assert module(np.ones((B, T, M), dtype="float32")).shape == (B, T, M)
