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


@pytest.mark.parametrize(("root", "single"), [(1, True), (32, False)])
def test_most_wide_queries_attend_to_a_single_key_if_scores_are_not_divided(root, single):
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((500, 1, 1024)), rng.standard_normal((500, 16, 1024))
    largest = softmax(q @ k.mT / root).max(axis=-1)
    assert bool(np.mean(largest > 0.9) > 0.75) is single
    assert largest.min() < 0.7  # not all queries, even without the division


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


def test_scores_that_are_scaled_before_the_product_fit_into_float16_and_are_too_coarse():
    query, key = np.full((1, 128), 30, "float16"), np.full((2, 128), 30, "float16")
    key[1, 0] = 29.5
    early = (query / np.sqrt(np.float16(128))) @ key.mT
    assert early[0, 0] == early[0, 1] < 11_000
    _, weights = mh.scaled_dot_product_attention(query, key, key, return_weights=True)
    assert weights[0, 0] > 0.75


def test_the_package_computes_float16_scores_that_would_overflow():
    query, key = np.full((1, 128), 30, "float16"), np.full((2, 128), 30, "float16")
    with np.errstate(over="ignore"):
        assert np.isinf(query @ key.mT).all()
    _, weights = mh.scaled_dot_product_attention(query, key, key, return_weights=True)
    np.testing.assert_allclose(weights, [[0.5, 0.5]])


def test_tap_is_called_with_all_steps_but_keep_and_its_function_needs_the_operations_of_the_package():
    rng = np.random.default_rng(0)
    q, k, v = (mh.Tensor(rng.standard_normal((2, 3, 4)), requires_grad=True) for _ in range(3))
    seen = {}

    def tap(name, x):
        seen[name] = x
        return x

    steps = mh.attention_steps(q, k, v, softcap=2.0, dropout=0.2, rng=rng, tap=tap)
    assert set(steps) - set(seen) == {"keep"}
    with pytest.raises(TypeError, match="does not support ufuncs"):
        mh.attention_steps(q, k, v, tap=lambda _, x: np.tanh(x))


def test_a_three_axis_mask_is_refused_for_as_many_sequences_as_heads_unless_there_is_one():
    for n in (1, 2):
        x = np.ones((n, n, 3, 4))
        mask = np.ones((n, 3, 3), dtype=bool)
        if n == 1:
            assert mh.scaled_dot_product_attention(x, x, x, mask).shape == x.shape
            continue
        with pytest.raises(ValueError, match=r"could be \(B, T, S\) or \(H, T, S\)"):
            mh.scaled_dot_product_attention(x, x, x, mask)


@pytest.mark.parametrize("width", range(1, 20))
def test_a_query_latent_saves_parameters_below_a_width(width):
    sizes = {"latent": 5, "head_dim": 4, "rope_dim": 2}

    def parameters(query_latent):
        layer = mh.LatentAttention(16, 4, query_latent=query_latent, **sizes)
        return sum(p.data.size for p in layer.parameters())

    n = 4 * (4 + 2)
    assert parameters(width) - parameters(None) == width * (16 + n + 1) - 16 * n


def test_numpy_raises_an_error_where_a_nan_is_made_and_not_where_it_was_there_before():
    infinite, zero = np.array([np.inf]), np.array([0.0])
    with np.errstate(invalid="raise"):
        for makes in (lambda: infinite - infinite, lambda: zero / zero):
            with pytest.raises(FloatingPointError):
                makes()
        assert np.isnan(np.array([np.nan]) + 1)
        assert np.isnan(np.einsum("i,i", infinite, zero))


def test_under_a_transposed_mask_the_last_query_alone_does_not_see_the_next_word():
    sees = mh.masks.causal().array((5, 5)).T  # query i should predict the word at i + 1
    assert np.diag(sees, 1).all()
    assert np.flatnonzero(sees[-1]).tolist() == [4]


def test_a_query_that_sees_nothing_passes_a_gradient_on_through_lse_of_a_sink_alone():
    rng = np.random.default_rng(0)
    q, k, v = (mh.Tensor(rng.standard_normal((1, 2, 3)), requires_grad=True) for _ in range(3))
    sink = mh.Tensor(np.array([0.3]), requires_grad=True)
    nothing = mh.masks.dense(np.zeros((2, 2), dtype=bool))
    out, lse = mh.scaled_dot_product_attention(q, k, v, nothing, sink=sink, return_lse=True)
    assert (out.data == 0).all()
    assert (lse.data == 0.3).all()
    out.backward(np.ones(out.shape))
    assert all((leaf.grad == 0).all() for leaf in (q, k, v, sink))
    _, lse = mh.scaled_dot_product_attention(q, k, v, nothing, sink=sink, return_lse=True)
    lse.backward(np.ones(lse.shape))
    assert sink.grad == 2.0  # one for each query


def test_a_part_that_shows_nothing_still_counts_if_it_has_the_sink():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 3, 4)) for _ in range(3))
    sink, seen = np.array([0.3]), np.array([[True] * 3, [False, False, True], [False] * 3])
    whole = mh.scaled_dot_product_attention(q, k, v, seen, sink=sink, return_lse=True)
    first, second = (
        mh.scaled_dot_product_attention(
            q, k[:, keys], v[:, keys], seen[:, keys], sink=s, return_lse=True
        )
        for keys, s in ((slice(0, 2), sink), (slice(2, 3), None))
    )
    assert (first[0][:, 1:] == 0).all()
    assert (first[1][:, 1:] == 0.3).all()
    assert second[1][0, 2] == -np.inf
    for one, two in zip(mh.merge_attention(*zip(first, second, strict=True)), whole, strict=True):
        np.testing.assert_allclose(one, two)


@pytest.mark.parametrize(
    ("settings", "zero"),
    [
        ({}, True),
        ({"num_kv_heads": 2}, True),
        ({"rope": mh.positions.Rope()}, False),
        ({"qk_norm": True}, False),
        ({"sink": True}, False),
        ({"softcap": 3.0}, False),
    ],
    ids=["plain", "grouped", "rope", "qk_norm", "sink", "softcap"],
)
def test_the_bias_of_keys_has_no_gradient_unless_an_option_feels_it(settings, zero):
    rng = np.random.default_rng(0)
    layer = mh.MultiHeadAttention(16, 4, dtype="float64", **settings)
    for p in layer.parameters():
        p.data = rng.standard_normal(p.shape)
    y = layer(rng.standard_normal((2, 5, 16)), mask=mh.masks.causal())
    y.backward(rng.standard_normal(y.shape))
    size = abs(layer.b_k.grad).max() / abs(layer.b_q.grad).max()
    assert size < 1e-12 if zero else size > 1e-3


@pytest.mark.parametrize(("beta", "grows"), [(0.1, False), (1.9, False), (2.0, False), (2.1, True)])
def test_the_delta_rule_keeps_old_content_bounded_if_beta_times_the_squared_key_is_below_2(
    beta, grows
):
    rng = np.random.default_rng(0)
    key = 3 * rng.standard_normal((200, 4))
    beta = beta / (key**2).sum(axis=-1)  # β‖k‖² is the number above
    value, start = np.zeros((200, 2)), rng.standard_normal((4, 2))
    _, state = mh.gated_delta_rule(key, key, value, beta, state=start, form="recurrent")
    growth = np.linalg.norm(state) / np.linalg.norm(start)
    assert growth > 2 if grows else growth < 1 + 1e-12


def test_a_linear_state_returns_values_of_orthogonal_keys_exactly_only_without_decay():
    keys, values = np.eye(3), np.arange(6.0).reshape(3, 2)
    for log_decay, exact in ((None, True), (np.full(3, -0.1), False)):
        _, state = mh.linear_attention(keys, keys, values, log_decay)
        assert np.array_equal(keys @ state, values) is exact


def test_numpy_misses_a_nan_that_some_of_its_functions_make():
    infinite = np.array([np.inf, 1.0])
    with np.errstate(invalid="raise"):
        assert np.isnan(np.einsum("i,i->", infinite, np.array([0.0, 1.0])))
        assert np.isnan(np.convolve(infinite, np.array([0.0, 1.0]))).any()
        assert np.isnan(np.interp(0.5, [0, 1], [np.inf, -np.inf]))
        with pytest.raises(FloatingPointError):
            infinite - infinite


def test_a_score_of_minus_infinity_from_tap_does_not_keep_a_nan_out_as_a_mask_does():
    query, key, value = np.ones((3, 1, 2, 4))
    value = value.copy()
    value[0, 1] = np.nan
    first = np.array([True, False])

    def tap(name, x):
        return mh.ops.where(first, x, -np.inf) if name == "scaled" else x

    assert np.isnan(mh.attention_steps(query, key, value, tap=tap).out.data).all()
    hidden = mh.scaled_dot_product_attention(query, key, value, mh.masks.dense(first[None]))
    assert np.isfinite(hidden).all()


def test_an_infinite_key_whose_score_is_minus_infinity_leaves_the_gradients_of_keys_and_values_finite():
    query, value = np.array([[-1.0, 0.5]]), np.array([[1.0], [2.0], [3.0]])
    for entry, finite in ((np.inf, True), (-np.inf, False)):  # the score is −∞, ∞
        key = mh.Tensor(np.array([[0.3, 0.1], [entry, 0.2], [0.5, -0.4]]), requires_grad=True)
        values = mh.Tensor(value, requires_grad=True)
        with np.errstate(invalid="ignore"):
            mh.scaled_dot_product_attention(query, key, values).sum().backward()
        assert np.isfinite(key.grad).all() == np.isfinite(values.grad).all() == finite
