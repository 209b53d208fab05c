"""What chapters 04 to 06 and docs/attention.md state, beyond what their own cells show."""

import numpy as np
import pytest

import minimha as mh


def softmax(scores):
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def test_with_one_matrix_scores_are_symmetric_and_weights_are_not():
    same = np.array([[2.0], [1.0]])  # Q = K
    scores = same @ same.T
    weights = softmax(scores)
    assert np.array_equal(scores, scores.T)
    assert weights[1, 0].round(2) == 0.73
    assert weights[0, 1].round(2) == 0.12


def test_a_head_with_one_matrix_can_attend_to_the_previous_token():
    s = np.arange(6)
    same = np.stack([4 * s, np.sqrt(60**2 - (4 * s + 4) ** 2)], axis=1)
    np.testing.assert_allclose((same**2).sum(axis=1), 3584 - 32 * s)
    assert np.diag(softmax(same @ same.T), -1).min() > 0.99


def test_with_one_matrix_a_token_prefers_only_longer_tokens_to_itself():
    same = np.random.default_rng(0).standard_normal((2000, 4, 3))
    scores = same @ same.swapaxes(-1, -2)
    lengths = np.linalg.norm(same, axis=-1)
    preferred = scores > np.diagonal(scores, axis1=-2, axis2=-1)[..., None]
    longer = lengths[:, None, :] > lengths[:, :, None]
    assert preferred.any()
    assert not (preferred & ~longer).any()


@pytest.mark.parametrize(
    ("positive", "same_columns", "grows"),
    [(False, False, 1), (False, True, 1), (True, False, 1), (True, True, 16)],
)
def test_the_size_of_a_sum_grows_like_a_root_if_its_products_are_uncorrelated(
    positive, same_columns, grows
):
    rng = np.random.default_rng(0)
    sizes = []
    for m in (16, 16 * 256):
        x = rng.standard_normal((1000, 1 if same_columns else m)) * np.ones((1, m))
        w = rng.standard_normal((m, 200))
        sizes.append((x @ (abs(w) if positive else w)).std() / np.sqrt(m))
    assert sizes[1] / sizes[0] == pytest.approx(grows, rel=0.1)


def test_adam_learns_the_same_from_small_layers_and_one_large_one_but_muon_does_not():
    rng = np.random.default_rng(0)
    small = rng.standard_normal((4, 12, 3))  # gradients of four heads, (M, D) each
    large = np.concatenate(list(small), axis=-1)

    def adam(gradient):  # its first step
        return gradient / (abs(gradient) + 1e-8)

    def muon(gradient):  # all singular values become 1
        left, _, right = np.linalg.svd(gradient, full_matrices=False)
        return left @ right

    together = [np.concatenate([f(g) for g in small], axis=-1) for f in (adam, muon)]
    assert np.array_equal(together[0], adam(large))
    assert abs(together[1] - muon(large)).max() > 0.1


def test_splitting_and_swapping_axes_copies_nothing():
    y = np.ones((5, 36))
    for part in (y, *np.split(y, 3, axis=-1)):
        assert np.shares_memory(y, part.reshape(5, 4, -1).swapaxes(0, 1))


def test_a_linear_map_treats_each_token_separately():
    rng = np.random.default_rng(0)
    x, w = rng.integers(-9, 9, (5, 12)), rng.integers(-9, 9, (12, 4))
    changed = x.copy()
    changed[-1] += 1
    assert np.array_equal((changed @ w)[:-1], (x @ w)[:-1])


def test_how_much_weight_a_score_10_above_the_others_gets_depends_on_their_number():
    def weight(keys):
        return softmax(np.array([10.0, *[0.0] * (keys - 1)]))[0]

    assert weight(16) > 0.999
    assert weight(22_000) == pytest.approx(0.5, abs=0.001)


def test_a_head_that_looks_for_two_kinds_of_keys_returns_one_mixture():
    keys = 20 * np.eye(3)
    query = keys[0] + keys[1]
    weights = softmax(keys @ query)
    np.testing.assert_allclose(weights, [0.5, 0.5, 0], atol=1e-12)
    _, both = mh.scaled_dot_product_attention(query[None], keys, keys, return_weights=True)
    np.testing.assert_allclose(both[0], [0.5, 0.5, 0], atol=1e-12)


def test_clearing_padding_prevents_what_its_nan_would_do():
    rng = np.random.default_rng(0)
    valid = np.arange(4) < np.array([[4], [2]])  # (B, T)
    x = np.where(valid[..., None], rng.standard_normal((2, 4, 6)), np.nan)
    layer = mh.MultiHeadAttention(6, 2, dtype="float64")
    dout = np.where(valid[..., None], rng.standard_normal(x.shape), 0.0)

    finite = []
    for tokens in (x, np.where(valid[..., None], x, 0.0)):
        for p in layer.parameters():
            p.grad = None
        layer(mh.Tensor(tokens), mask=mh.masks.keys(valid)).backward(dout)
        finite.append(all(np.isfinite(p.grad).all() for p in layer.parameters()))
    assert finite == [False, True]


def test_the_padding_mask_has_one_row_for_all_heads_and_queries():
    assert mh.masks.padding([3, 1]).array((2, 3, 4, 5)).shape == (2, 1, 1, 5)


def test_the_package_computes_float16_scores_that_would_overflow():
    query, key = np.full((1, 128), 30, "float16"), np.full((2, 128), 30, "float16")
    with np.errstate(over="ignore"):
        assert np.isinf(query @ key.mT).all()
    _, weights = mh.scaled_dot_product_attention(query, key, key, return_weights=True)
    np.testing.assert_allclose(weights, [[0.5, 0.5]])
