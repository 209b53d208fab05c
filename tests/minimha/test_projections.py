"""The forms of the projections: one function, five ways to hold its weights."""

import numpy as np
import pytest

import minimha as mh
from minimha_autograd import backend

B, T, S, M, MK, MV, H, G, D, DV = 2, 5, 7, 12, 10, 9, 4, 2, 3, 5
FORMS = list(mh.projections.FORMS)
REARRANGED = ["per-head", "stacked", "fused"]
SETTINGS = {
    "plain": {},
    "no bias": {"bias": False},
    "grouped": {"num_kv_heads": G},
    "other head widths": {"num_kv_heads": G, "head_dim": D + 2, "v_head_dim": DV},
    "one key head": {"num_kv_heads": 1, "head_dim": M - 1},
    "heads wider than the model": {"head_dim": M + 1},
}
CROSS = {"kdim": MK, "vdim": MV, "num_kv_heads": G, "v_head_dim": DV}


def made(rng, **settings):
    """A module with weights and biases all drawn, so that none is zero."""
    mha = mh.MultiHeadAttention(M, H, rng=rng, dtype="float64", **settings)
    for p in mha.parameters():
        p.data = p.data + 0.3 * rng.standard_normal(p.shape)
    return mha


def outcome(mha, *inputs, mask=None):
    """The output and the gradients of the inputs; those of the weights are left in the module."""
    mha.zero_grad()
    leaves = [mh.Tensor(x, requires_grad=True) for x in inputs]
    y = mha(*leaves, mask=mask)
    y.backward(np.random.default_rng(3).standard_normal(y.shape))
    return [y.data, *(leaf.grad for leaf in leaves)]


def assert_equal(ours, theirs, bound=1e-12):
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        assert abs(one - other).max() <= bound * abs(other).max()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_form_is_the_same_function_with_the_same_input_gradients(settings, form, rng):
    mha, x = made(rng, **settings), rng.standard_normal((B, T, M))
    expected = outcome(mha, x, mask=mh.masks.causal())
    converted, weights = mha.convert(form), mh.interchange.state(mha)
    assert converted.form == form
    assert_equal(outcome(converted, x, mask=mh.masks.causal()), expected)
    for other in FORMS:  # and from there to every other, and back
        if form == "bilinear" and settings.get("head_dim", 0) > M:
            continue  # of rank M at most, it has forgotten how wide the heads were
        assert_equal(outcome(converted.convert(other), x, mask=mh.masks.causal()), expected, 1e-11)
    for p in converted.parameters():
        p.data += 1
    for name, w in mh.interchange.state(mha).items():  # a conversion is a copy
        np.testing.assert_array_equal(w, weights[name])


@pytest.mark.parametrize("form", [form for form in FORMS if form != "fused"])
def test_cross_attention_takes_keys_and_values_of_other_widths(form, rng):
    mha = made(rng, **CROSS)
    inputs = [rng.standard_normal(s) for s in [(B, T, M), (B, S, MK), (B, S, MV)]]
    assert_equal(outcome(mha.convert(form), *inputs), outcome(mha, *inputs))


def test_values_are_as_wide_as_keys_unless_said():
    mha = mh.MultiHeadAttention(M, H, kdim=MK)
    assert (mha.w_k.shape[0], mha.w_v.shape[0]) == (MK, MK)
    assert mha(np.ones((B, T, M), "float32"), np.ones((B, S, MK), "float32")).shape == (B, T, M)


def test_a_role_that_nothing_flows_back_to_gets_no_gradient_in_the_fused_form(rng):
    mha, x = made(rng, form="fused", num_kv_heads=G), rng.standard_normal((B, T, M))
    q, _, _ = mha.project(*[mh.Tensor(x, requires_grad=True)] * 3)
    q.sum().backward()
    assert abs(mha.w_qkv.grad[:, : H * D]).min() > 0
    assert not mha.w_qkv.grad[:, H * D :].any()


def test_the_fused_form_is_for_one_input(rng):
    with pytest.raises(ValueError, match=r"one matrix for one input.* 12, 10, 9 need the stacked"):
        made(rng, **CROSS).convert("fused")
    fused, x = made(rng, form="fused"), rng.standard_normal((B, T, M))
    with pytest.raises(ValueError, match=r"self-attention.*convert\(\"stacked\"\)"):
        fused(x, x.copy())


@pytest.mark.parametrize("missing", [["b_v"], ["b_q", "b_k"]])
def test_a_bias_that_is_missing_is_missing_in_every_form_or_refused(missing, rng):
    mha, x = made(rng, num_kv_heads=G), rng.standard_normal((B, T, M))
    for name in missing:
        setattr(mha, name, None)
    expected = outcome(mha, x)
    for form in set(FORMS) - {"fused"}:
        assert_equal(outcome(mha.convert(form), x), expected)
    with pytest.raises(ValueError, match=f"one bias .* without {' and '.join(missing)} keep"):
        mha.convert("fused")


def stacked_gradients(mha):
    """The gradients of the weights as those of the stacked form, put together by hand."""
    if mha.form == "stacked":
        return [p.grad for p in (mha.w_q, mha.w_k, mha.w_v, mha.b_q, mha.b_k, mha.b_v)]
    if mha.form == "per-head":
        lists = mha.w_q, mha.w_k, mha.w_v, mha.b_q, mha.b_k, mha.b_v
        return [np.concatenate([p.grad for p in heads], axis=-1) for heads in lists]
    cuts = [H * D, (H + G) * D]
    return [part for p in (mha.w_qkv, mha.b_qkv) for part in np.split(p.grad, cuts, axis=-1)]


@pytest.mark.parametrize("source", REARRANGED)
def test_weight_gradients_are_those_of_the_stacked_form_in_another_order(source, rng):
    mha, x = made(rng, num_kv_heads=G, v_head_dim=DV), rng.standard_normal((B, T, M))
    other = mha.convert(source)
    outcome(mha, x), outcome(other, x)
    expected, found = stacked_gradients(mha), stacked_gradients(other)
    for k, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        floor = abs(expected[3]).max() if k == 4 else abs(theirs).max()  # that of b_k is zero
        assert abs(ours - theirs).max() <= 1e-12 * floor
    for form in REARRANGED:  # conversions bring gradients along
        for ours, theirs in zip(stacked_gradients(other.convert(form)), found, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert all(p.grad is None for p in other.convert("bilinear").projections.parameters())


def test_all_forms_start_as_one_function_of_unit_variance(rng):
    x = mh.Tensor(rng.standard_normal((200, M)))
    drawn = {
        form: mh.projections.Projections(M, H, rng=7, form=form, dtype="float64") for form in FORMS
    }
    stacked = [np.asarray(y.data) for y in drawn["stacked"].project(x, x, x)]
    for form, projections in drawn.items():
        q, k, v = (y.data for y in projections.project(x, x, x))
        np.testing.assert_allclose(v, stacked[2], atol=1e-13)
        np.testing.assert_allclose(q @ k.mT, stacked[0] @ stacked[1].mT, atol=1e-12)
        if form != "bilinear":
            assert q.var() == pytest.approx(stacked[0].var(), rel=1e-12)
    wide = mh.projections.Projections(400, 4, head_dim=25, rng=rng)
    assert wide.w_q.data.var() == pytest.approx(1 / 400, rel=0.03)
    assert wide.convert("fused").w_qkv.data.var() == pytest.approx(1 / 400, rel=0.03)


def curve(mha, x, target, steps=50):
    """The losses of AdamW on the mean square distance to a target."""
    optimizer, losses = mh.AdamW(mha.parameters(), lr=1e-2), []
    for _ in range(steps):
        mha.zero_grad()
        loss = ((mha(x, mask=mh.masks.causal()) - target) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def test_h_separate_layers_learn_what_one_matmul_learns_and_the_product_does_not(rng):
    """AdamW looks at each entry by itself, so it does not matter where an entry stands. The entries
    of W^Q W^Kᵀ are other variables: a step along their gradient is another step."""
    mha = made(rng, num_kv_heads=G)
    x, target = rng.standard_normal((B, T, M)), rng.standard_normal((B, T, M))
    stacked = curve(mha.convert("stacked"), x, target)
    assert stacked[-1] < 0.6 * stacked[0]
    for form in ("per-head", "fused"):
        assert abs(curve(mha.convert(form), x, target) / stacked - 1).max() <= 1e-10
    bilinear = curve(mha.convert("bilinear"), x, target)
    assert bilinear[0] == pytest.approx(stacked[0], rel=1e-12)
    assert abs(bilinear / stacked - 1).max() > 1e-3


def test_the_product_has_more_parameters_unless_heads_are_wider_than_half_the_model():
    def count(form, **settings):
        one = mh.projections.Projections(M, H, form=form, bias=False, v_head_dim=1, **settings)
        v = one.w_v.data.size if form == "bilinear" else sum(w.data.size for w in one.w_v)
        return sum(p.data.size for p in one.parameters()) - v

    for d in (1, 3, 5, 6, 7, 9):
        assert count("per-head", head_dim=d) == 2 * H * M * d
        assert count("bilinear", head_dim=d) == H * M * M
        assert (count("bilinear", head_dim=d) < count("per-head", head_dim=d)) == (d > M / 2)
        grouped = {"head_dim": d, "num_kv_heads": G}
        fewer = count("bilinear", **grouped) < count("per-head", **grouped)
        assert fewer == (d > M * H / (H + G))


def test_the_rank_of_the_product_is_the_width_of_a_head(rng):
    for form in FORMS:
        assert made(rng).convert(form).ranks() == [D] * H
    bilinear = made(rng, form="bilinear")  # with entries of its own, of full rank
    assert bilinear.ranks() == [M] * H
    with pytest.raises(ValueError, match=r"rank 12, more than D = 3: give the head_dim"):
        bilinear.convert("stacked")
    learned = made(rng).convert("bilinear")
    learned.w_qk.data += 1e-9 * rng.standard_normal((H, M, M))  # a little is too much
    with pytest.raises(ValueError, match=r"more than D = 3"):
        learned.convert("stacked")


def test_factoring_cuts_off_the_smallest_singular_values_and_tells_how_much(rng):
    bilinear = made(rng, form="bilinear", num_kv_heads=G)
    stacked = bilinear.convert("stacked", head_dim=D)
    w = np.concatenate([bilinear.w_qk.data, bilinear.b_qk.data[:, None]], axis=1)
    w = w.reshape(G, H // G * (M + 1), M)  # a group shares its W^K, so it is factored as one
    sigma = np.linalg.svd(w, compute_uv=False)
    best = np.sqrt((sigma[:, D:] ** 2).sum() / (sigma**2).sum())
    back = stacked.convert("bilinear")
    lost = np.concatenate([back.w_qk.data, back.b_qk.data[:, None]], axis=1).reshape(w.shape) - w
    assert stacked.truncation_error == pytest.approx(best, rel=1e-12)
    assert np.linalg.norm(lost) / np.linalg.norm(w) == pytest.approx(best, rel=1e-12)
    assert stacked.scale == bilinear.scale == pytest.approx(D**-0.5)
    assert bilinear.convert("stacked", head_dim=M).truncation_error < 1e-15
    with pytest.raises(ValueError, match="head_dim is for converting from the bilinear form"):
        stacked.convert("fused", head_dim=2)


def test_a_large_head_does_not_hide_what_is_cut_off_a_small_one(rng):
    """Float32: each head is looked at by itself, and no square of a singular value overflows."""
    mha = mh.MultiHeadAttention(M, H, form="bilinear", bias=False)
    w = mha.w_qk.data
    for scale in (1e6, 1e20, 1e-25):
        mha.w_qk.data = scale * w
        assert mha.convert("stacked").truncation_error < 1e-6
        mha.w_qk.data[1] = rng.standard_normal((M, M)) * scale * 1e-6
        with pytest.raises(ValueError, match=r"is of rank 12, more than D = 3"):
            mha.convert("stacked")
        assert 0 < mha.convert("stacked", head_dim=D).truncation_error < 1e-4


def test_the_rank_that_is_told_is_of_all_that_is_factored_together(rng):
    mha = made(rng, form="stacked", num_kv_heads=G).convert("bilinear")
    other = made(rng, bias=False).convert("bilinear")
    mha.b_qk.data = rng.standard_normal((H, M))
    assert mha.ranks() == [D] * H
    with pytest.raises(ValueError, match=r"with b_qk and the heads that share .* rank 5, "):
        mha.convert("stacked")  # one more for each query head of the two
    mha.w_qk.data, mha.b_qk = other.w_qk.data, None
    with pytest.raises(
        ValueError, match=r"factored with the heads that share its W\^K, is of rank 6, "
    ):
        mha.convert("stacked")
    assert mha.convert("stacked", head_dim=2 * D).truncation_error < 1e-14


def test_float16_weights_have_ranks_and_factors(rng):
    mha = mh.MultiHeadAttention(M, H, dtype="float16")
    bilinear = mha.convert("bilinear")
    assert mha.ranks() == bilinear.ranks() == [D] * H
    x = rng.standard_normal((B, T, M)).astype("float16")
    y, back = mha(x).data, bilinear.convert("stacked")
    assert back.w_q.dtype == back.w_k.dtype == "float16"
    assert abs(back(x).data - y).max() < 8e-3 * abs(y).max()  # 8 times eps, of three roundings
    bilinear.w_qk.data = rng.standard_normal((H, M, M)).astype("float16")
    with pytest.raises(ValueError, match="rank 12"):
        bilinear.convert("stacked")


def test_weights_that_are_not_finite_have_no_rank(rng):
    mha = made(rng)
    mha.w_q.data[0, 0] = np.nan
    for form in ("stacked", "bilinear"):
        with pytest.raises(ValueError, match="NaN or infinity: it has no rank"):
            mha.convert(form).ranks()
    with pytest.raises(ValueError, match="NaN or infinity: it has no rank"):
        mha.convert("bilinear").convert("stacked")


@pytest.mark.parametrize("form", FORMS)
def test_the_same_form_is_a_copy_with_gradients_and_what_is_frozen(form, rng):
    mha = made(rng, form=form)
    if form == "per-head":
        mha.w_v[1] = mh.Tensor(mha.w_v[1].data)
    else:
        name = "w_qkv" if form == "fused" else "w_v"
        setattr(mha, name, mh.Tensor(getattr(mha, name).data))
    outcome(mha, rng.standard_normal((B, T, M)))
    copied = mha.convert(form)
    pairs = zip(mha.named_parameters(), copied.named_parameters(), strict=True)
    for (name, p), (same, twin) in pairs:
        assert name == same
        np.testing.assert_array_equal(twin.grad, p.grad)
        assert twin.grad is not p.grad


def test_gradients_of_the_factors_are_those_of_the_product_times_the_other_factor(rng):
    mha, x = made(rng, num_kv_heads=G, bias=False), rng.standard_normal((B, T, M))
    bilinear = mha.convert("bilinear")
    outcome(mha, x), outcome(bilinear, x)
    w_q, w_k = (mh.projections.split_heads(w.data, n) for w, n in ((mha.w_q, H), (mha.w_k, G)))
    dw_q, dw_k = (mh.projections.split_heads(w.grad, n) for w, n in ((mha.w_q, H), (mha.w_k, G)))
    dw = bilinear.w_qk.grad  # (H, M, M)
    by_head = np.stack([dw[h].T @ w_q[h] for h in range(H)])
    assert_equal([np.stack([dw[h] @ w_k[h // (H // G)] for h in range(H)])], [dw_q])
    assert_equal([by_head.reshape(G, H // G, M, D).sum(1)], [dw_k])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"rope": mh.positions.Rope(width=2)}, "rope stands between"),
        ({"qk_norm": True}, "qk_norm stands between"),
        ({"softcap": 3.0}, "b_k.*softmax does not see that, and a softcap does"),
        ({"sink": True}, "b_k.*softmax does not see that, and a sink does"),
    ],
)
def test_the_bilinear_form_refuses_what_it_cannot_hold(settings, reason, rng):
    with pytest.raises(ValueError, match=reason):
        made(rng, **settings).convert("bilinear")
    if "b_k" not in reason:
        with pytest.raises(ValueError, match=reason):
            mh.MultiHeadAttention(M, H, form="bilinear", **settings)
        return
    mha, x = made(rng, **settings), rng.standard_normal((B, T, M))
    mha.b_k.data = np.zeros(H * D)  # and then it can
    assert_equal(outcome(mha.convert("bilinear"), x), outcome(mha, x))


def test_softcap_does_see_the_key_bias_that_the_bilinear_form_leaves_out(rng):
    """Why that is refused: the two differ."""
    mha, x = made(rng), rng.standard_normal((B, T, M))
    bilinear = mha.convert("bilinear")
    mha.softcap = bilinear.softcap = 0.7
    assert abs(mha(x).data - bilinear(x).data).max() > 1e-3


def test_reshaping_weights_stored_with_heads_last_scrambles_the_heads(rng):
    """A published answer: W^Q stored (M, D, H), reshaped to (M, D·H), then split as (H, D)."""
    w = rng.standard_normal((M, D, H))
    x = rng.standard_normal((T, M))
    right = np.stack([x @ w[:, :, h] for h in range(H)])
    wrong = mh.projections.split_heads(x @ w.reshape(M, D * H), H)
    mended = mh.projections.split_heads(x @ w.transpose(0, 2, 1).reshape(M, H * D), H)
    np.testing.assert_allclose(mended, right, atol=1e-14)
    assert wrong.shape == right.shape
    assert abs(wrong - right).max() > 0.1
    assert wrong[0, 0, 1] == pytest.approx(right[1, 0, 0])  # head 0 got a column of head 1


def test_a_reshape_in_place_of_the_transpose_mixes_time_with_heads(rng):
    """A published answer: .view(B, H, T, D) of (B, T, H·D)."""
    y = rng.standard_normal((B, T, H * D))
    right, wrong = mh.projections.split_heads(y, H), y.reshape(B, H, T, D)
    np.testing.assert_array_equal(right[0, 1, 2], y[0, 2, D : 2 * D])  # head 1 at time 2
    assert wrong.shape == right.shape
    np.testing.assert_array_equal(
        wrong[0, 0, 1], y[0, 0, D : 2 * D]
    )  # time 0 where time 1 is meant


def test_indexing_weights_with_heads_last_by_the_head_takes_a_row(rng):
    """A published answer: WQ[i] for the head i of WQ (M, D, H)."""
    w = rng.standard_normal((M, D, H))
    x = rng.standard_normal((T, M))
    assert (x @ w[:, :, 1]).shape == (T, D)
    assert w[1].shape == (D, H)  # the weights of input 1 for all heads
    with pytest.raises(ValueError, match="matmul"):
        x @ w[1]
    square = rng.standard_normal((D, D, D))  # where all sizes coincide, nothing complains
    assert (x[:, :D] @ square[1]).shape == (x[:, :D] @ square[:, :, 1]).shape
    assert abs(x[:, :D] @ square[1] - x[:, :D] @ square[:, :, 1]).max() > 0.1


def test_forms_work_on_every_library(place, rng):
    x = rng.standard_normal((B, T, M))
    mha = made(rng, num_kv_heads=G)
    expected = mha(x).data
    moved = made(rng, num_kv_heads=G)
    for name, p in moved.named_parameters():
        p.data = place(getattr(mha, name).data)
    for form in FORMS:
        y = moved.convert(form)(place(x))
        np.testing.assert_allclose(backend.to_numpy(y.data), expected, rtol=0, atol=1e-13)
    assert moved.ranks() == [D] * H


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_kv_heads": 3}, "num_heads = 4 must be a multiple of num_kv_heads = 3"),
        ({"num_kv_heads": 0}, "num_kv_heads = 0 must be at least 1"),
        ({"head_dim": 0}, "head_dim = 0 must be at least 1"),
        ({"kdim": -1}, "kdim = -1"),
        ({"form": "looped"}, "no form .* called 'looped': there are per-head, stacked, fused"),
        ({"form": "fused", "kdim": MK}, "one matrix for one input"),
    ],
)
def test_sizes_that_do_not_go_together_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        mh.MultiHeadAttention(M, H, **settings)


def test_frozen_weights_stay_frozen_and_what_overflows_is_refused(rng):
    mha = made(rng)
    for name in ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v"):
        setattr(mha, name, mh.Tensor(getattr(mha, name).data))
    for form in FORMS:
        assert [name for name, _ in mha.convert(form).named_parameters()] == ["w_o", "b_o"]
    half = mh.MultiHeadAttention(M, H, dtype="float16")
    half.w_q.data, half.w_k.data = half.w_q.data * 900, half.w_k.data * 900
    with np.errstate(over="ignore"), pytest.raises(ValueError, match="overflows float16: convert"):
        half.convert("bilinear")
