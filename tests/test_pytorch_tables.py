"""What chapters 04 to 06 and docs/attention.md state about PyTorch, run in PyTorch."""

import numpy as np
import pytest

import minimha as mh

torch = pytest.importorskip("torch")
functional = torch.nn.functional
attend = functional.scaled_dot_product_attention


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def draw(rng, *shapes):
    """Arrays, and the same numbers as tensors."""
    arrays = [rng.standard_normal(shape) for shape in shapes]
    return [*arrays, *map(torch.from_numpy, arrays)]


def test_a_linear_layer_stores_the_transpose_of_w(rng):
    layer = torch.nn.Linear(4, 3, dtype=torch.float64)
    _, x = draw(rng, (5, 4))
    assert layer.weight.shape == (3, 4)
    torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)


def test_view_raises_an_error_where_a_copy_is_needed():
    x = torch.arange(6).view(2, 3)
    with pytest.raises(RuntimeError, match="view"):
        x.transpose(0, 1).view(2, 3)
    assert x.transpose(0, 1).reshape(2, 3).tolist() == [[0, 3, 1], [4, 2, 5]]


def test_transpose_swaps_two_axes_and_permute_lists_all(rng):
    a, x = draw(rng, (2, 3, 4))
    np.testing.assert_array_equal(x.transpose(-3, -2), a.swapaxes(-3, -2))
    np.testing.assert_array_equal(x.permute(2, 0, 1), a.transpose(2, 0, 1))


def test_split_takes_the_size_of_a_part_and_chunk_their_number(rng):
    a, x = draw(rng, (2, 12))
    assert [part.shape[-1] for part in x.split(3, dim=-1)] == [3, 3, 3, 3]
    for ours, theirs in zip(np.split(a, 3, axis=-1), x.chunk(3, dim=-1), strict=True):
        np.testing.assert_array_equal(theirs, ours)


def test_the_other_lines_of_chapter_04_compute_the_same(rng):
    a, w, x, weight = draw(rng, (2, 3, 4), (4, 5))
    np.testing.assert_allclose(x.sum(dim=-1, keepdim=True), a.sum(axis=-1, keepdims=True))
    np.testing.assert_array_equal(torch.cat([x, x], dim=-1), np.concatenate([a, a], axis=-1))
    np.testing.assert_array_equal(torch.stack([x, x]), np.stack([a, a]))
    hidden = np.where(a > 0, a, -np.inf)
    np.testing.assert_array_equal(x.masked_fill(~(x > 0), -torch.inf), hidden)
    product = torch.einsum("btm,mn->btn", x, weight)
    np.testing.assert_allclose(product, np.einsum("btm,mn->btn", a, w))
    assert x.to(torch.float32).dtype == torch.float32


def test_numpy_makes_float64_and_pytorch_float32():
    assert np.ones(1).dtype == np.float64
    assert torch.ones(1).dtype == torch.float32


def test_the_lines_of_chapter_05_compute_the_same(rng):
    a, x = draw(rng, (2, 3, 4))
    np.testing.assert_array_equal(x.mT, a.mT)
    np.testing.assert_array_equal(x.transpose(-2, -1), a.mT)
    np.testing.assert_array_equal(x.amax(dim=-1, keepdim=True), a.max(axis=-1, keepdims=True))
    values, indices = x.max(dim=-1)
    np.testing.assert_array_equal(values, a.max(axis=-1))
    np.testing.assert_array_equal(indices, a.argmax(axis=-1))
    np.testing.assert_allclose(x.std(correction=0), a.std())
    np.testing.assert_allclose(x.std(), a.std(ddof=1))
    np.testing.assert_allclose(torch.softmax(x, dim=-1), mh.functional.softmax(a))


def test_attention_and_its_pullback_compute_the_same(rng):
    *arrays, dout, q, k, v, cotangent = draw(rng, (2, 3, 5), (2, 4, 5), (2, 4, 6), (2, 3, 6))
    leaves = [mh.Tensor(a, requires_grad=True) for a in arrays]
    ours = mh.scaled_dot_product_attention(*leaves)
    ours.backward(dout)
    tensors = [x.requires_grad_() for x in (q, k, v)]
    theirs = attend(*tensors)
    np.testing.assert_allclose(theirs.detach(), ours.data)
    for gradient, leaf in zip(torch.autograd.grad(theirs, tensors, cotangent), leaves, strict=True):
        np.testing.assert_allclose(gradient, leaf.grad)


def test_the_masks_of_chapter_06_are_the_same():
    lengths = np.array([5, 2, 0])
    ours = np.arange(5) < lengths[:, None]
    theirs = torch.arange(5) < torch.from_numpy(lengths)[:, None]
    np.testing.assert_array_equal(theirs, ours)
    triangle = torch.ones(3, 5, dtype=torch.bool).tril()
    np.testing.assert_array_equal(triangle, np.tril(np.ones((3, 5), bool)))


def test_true_means_may_attend_in_the_function_and_ignore_in_the_layer(rng):
    *_, q, k, v = draw(rng, (1, 4, 6), (1, 4, 6), (1, 4, 6))
    may_attend = torch.ones(4, 4, dtype=torch.bool).tril()
    layer = torch.nn.MultiheadAttention(6, 1, batch_first=True, dtype=torch.float64)
    changed = k.clone()
    changed[:, -1] += 1.0  # the last key, which the first three queries may not see

    def function(key):
        return attend(q, key, v, attn_mask=may_attend)

    def masked_layer(key):
        return layer(q, key, v, attn_mask=~may_attend)[0]

    for attention in (function, masked_layer):
        change = abs(attention(changed) - attention(k)).amax(dim=(0, 2))
        assert change[:3].max() == 0
        assert change[3] > 0


def test_the_layer_ignores_keys_where_its_padding_mask_is_true(rng):
    *_, q, k, v = draw(rng, (2, 3, 6), (2, 5, 6), (2, 5, 6))
    layer = torch.nn.MultiheadAttention(6, 1, batch_first=True, dtype=torch.float64)
    padding = torch.arange(5) >= torch.tensor([5, 2])[:, None]  # (B, S), True = ignore
    changed = k.clone()
    changed[1, 2:] += 1.0
    before, after = (layer(q, key, v, key_padding_mask=padding)[0] for key in (k, changed))
    assert torch.equal(before, after)


def test_flex_attention_has_no_backward_pass_on_a_cpu():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    leaves = [torch.ones(1, 1, 16, 16, requires_grad=True) for _ in range(3)]
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex.flex_attention(*leaves, score_mod=lambda score, b, h, i, j: 2 * score).sum().backward()


def test_context_parallel_gathers_keys_and_values_unless_it_is_told_to_send_them_round():
    experimental = pytest.importorskip("torch.distributed.tensor.experimental._attention")
    rotation = pytest.importorskip(
        "torch.distributed.tensor.experimental._context_parallel._attention"
    )

    def name():
        return type(rotation._create_rotater(None, 2)).__name__

    assert name() == "_AllGatherRotater"
    try:
        experimental.set_rotate_method("alltoall")
        assert name() == "_AllToAllRotater"  # each rank sends to the next
    finally:
        experimental.set_rotate_method("allgather")
