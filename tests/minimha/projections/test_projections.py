"""The forms of the projections: one function with five layouts of its weights."""

import numpy as np
import pytest
from layers import drawn, outcome

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


def assert_equal(ours, theirs, bound=1e-12):
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        assert abs(one - other).max() <= bound * abs(other).max()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_form_computes_the_same_function_and_input_gradients(settings, form, rng):
    mha, x = drawn(rng, settings), rng.standard_normal((B, T, M))
    expected = outcome(mha, x, mask=mh.masks.causal())
    converted, weights = mha.convert(form), mh.interchange.state(mha)
    assert converted.form == form
    assert_equal(outcome(converted, x, mask=mh.masks.causal()), expected)
    for other in FORMS:  # and from there to every other, and back
        if form == "bilinear" and settings.get("head_dim", 0) > M:
            continue  # its rank is at most M, so the width of the heads is lost
        assert_equal(outcome(converted.convert(other), x, mask=mh.masks.causal()), expected, 1e-11)
    for p in converted.parameters():
        p.data += 1
    for name, w in mh.interchange.state(mha).items():  # a conversion is a copy
        np.testing.assert_array_equal(w, weights[name])


@pytest.mark.parametrize("form", [form for form in FORMS if form != "fused"])
def test_cross_attention_accepts_keys_and_values_of_other_widths(form, rng):
    mha = drawn(rng, CROSS)
    inputs = [rng.standard_normal(s) for s in [(B, T, M), (B, S, MK), (B, S, MV)]]
    assert_equal(outcome(mha.convert(form), *inputs), outcome(mha, *inputs))
    assert mh.MultiHeadAttention(M, H, kdim=MK).sizes.vdim == MK  # values are the keys by default


def test_in_the_fused_form_an_unused_projection_gets_no_gradient(rng):
    mha, x = drawn(rng, {"form": "fused", "num_kv_heads": G}), rng.standard_normal((B, T, M))
    q, _, _ = mha.project(*[mh.Tensor(x, requires_grad=True)] * 3)
    q.sum().backward()
    assert abs(mha.w_qkv.grad[:, : H * D]).min() > 0
    assert not mha.w_qkv.grad[:, H * D :].any()


def test_the_fused_form_is_for_one_input(rng):
    with pytest.raises(ValueError, match=r"one matrix for one input.* 12, 10, 9 need the stacked"):
        drawn(rng, CROSS).convert("fused")
    fused, x = drawn(rng, {"form": "fused"}), rng.standard_normal((B, T, M))
    with pytest.raises(ValueError, match=r"self-attention.*convert\(\"stacked\"\)"):
        fused(x, x.copy())


@pytest.mark.parametrize("missing", [["b_v"], ["b_q", "b_k"]])
def test_a_missing_bias_is_missing_in_every_form_or_refused(missing, rng):
    mha, x = drawn(rng, {"num_kv_heads": G}), rng.standard_normal((B, T, M))
    for name in missing:
        setattr(mha, name, None)
    expected = outcome(mha, x)
    for form in set(FORMS) - {"fused"}:
        assert_equal(outcome(mha.convert(form), x), expected)
    with pytest.raises(ValueError, match=f"one bias .* without {' and '.join(missing)} keep"):
        mha.convert("fused")


def stacked_gradients(mha):
    """The gradients of the weights, rearranged by hand into those of the stacked form."""
    if mha.form == "stacked":
        return [p.grad for p in (mha.w_q, mha.w_k, mha.w_v, mha.b_q, mha.b_k, mha.b_v)]
    if mha.form == "per-head":
        lists = mha.w_q, mha.w_k, mha.w_v, mha.b_q, mha.b_k, mha.b_v
        return [np.concatenate([p.grad for p in heads], axis=-1) for heads in lists]
    cuts = [H * D, (H + G) * D]
    return [part for p in (mha.w_qkv, mha.b_qkv) for part in np.split(p.grad, cuts, axis=-1)]


@pytest.mark.parametrize("source", REARRANGED)
def test_weight_gradients_equal_those_of_the_stacked_form_rearranged(source, rng):
    mha, x = drawn(rng, {"num_kv_heads": G, "v_head_dim": DV}), rng.standard_normal((B, T, M))
    other = mha.convert(source)
    outcome(mha, x), outcome(other, x)
    expected, found = stacked_gradients(mha), stacked_gradients(other)
    for k, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        floor = abs(expected[3]).max() if k == 4 else abs(theirs).max()  # b_k's is zero
        assert abs(ours - theirs).max() <= 1e-12 * floor
    for form in REARRANGED:  # conversions also convert gradients
        for ours, theirs in zip(stacked_gradients(other.convert(form)), found, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert all(p.grad is None for p in other.convert("bilinear").projections.parameters())


def test_all_forms_are_initialised_to_the_same_function_of_unit_variance(rng):
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


def test_factoring_drops_the_smallest_singular_values_and_reports_the_error(rng):
    bilinear = drawn(rng, {"form": "bilinear", "num_kv_heads": G})
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_columns_beyond_the_rank_stay_zero_in_training(dtype, rng):
    mha = mh.MultiHeadAttention(M, H, rng=rng, dtype=dtype, form="bilinear")
    wide = mha.convert("stacked", head_dim=D + 2)
    assert wide.truncation_error < 1e-6
    x = rng.standard_normal((B, T, M)).astype(dtype)
    optimiser = mh.nn.AdamW(wide.parameters(), lr=0.01)
    for _ in range(3):
        (wide(x) ** 2).sum().backward()
        optimiser.step()
        optimiser.zero_grad()
    for p in wide.w_q, wide.w_k, wide.b_q:
        heads = p.data.reshape(-1, H, D + 2)
        assert not heads[..., D:].any()
        assert heads[..., :D].any()


def test_forms_work_on_every_library(place, rng):
    x = rng.standard_normal((B, T, M))
    mha = drawn(rng, {"num_kv_heads": G})
    expected = mha(x).data
    moved = drawn(rng, {"num_kv_heads": G})
    for name, p in moved.named_parameters():
        p.data = place(getattr(mha, name).data)
    for form in FORMS:
        y = moved.convert(form)(place(x))
        np.testing.assert_allclose(backend.to_numpy(y.data), expected, rtol=0, atol=1e-13)
    assert moved.ranks() == [D] * H


@pytest.mark.parametrize("form", FORMS)
def test_the_rank_of_the_product_is_the_head_width_unless_it_is_learned_directly(form, rng):
    assert drawn(rng).convert(form).ranks() == [D] * H
    assert drawn(rng, {"form": "bilinear"}).ranks() == [M] * H
    half = mh.MultiHeadAttention(M, H, dtype="float16").convert(form)
    assert half.ranks() == half.convert("stacked").ranks() == [D] * H
    for p in half.parameters():
        p.data[:] = np.nan
    with pytest.raises(ValueError, match="NaN or infinity: it has no rank"):
        half.ranks()
    if form == "bilinear":
        with pytest.raises(ValueError, match="NaN or infinity: it has no rank"):
            half.convert("stacked")


@pytest.mark.parametrize("scale", [1.0, 1e20, 1e-25])
def test_a_rank_above_the_head_width_needs_a_larger_head_dim(scale, rng):
    mha = mh.MultiHeadAttention(M, H, form="bilinear", bias=False)
    mha.w_qk.data = scale * mha.w_qk.data  # in float32, where squares would overflow
    assert mha.convert("stacked").truncation_error < 1e-6
    mha.w_qk.data[1] = rng.standard_normal((M, M)) * scale * 1e-6  # one small head among large ones
    with pytest.raises(ValueError, match=r"Kᵀ is of rank 12, more than D = 3: give the head_dim"):
        mha.convert("stacked")
    assert 0 < mha.convert("stacked", head_dim=D).truncation_error < 1e-4


def test_the_rank_includes_all_matrices_that_are_factored_together(rng):
    mha = drawn(rng, {"num_kv_heads": G}).convert("bilinear")
    other = drawn(rng, {"bias": False}).convert("bilinear")
    mha.b_qk.data = rng.standard_normal((H, M))
    assert mha.ranks() == [D] * H
    with pytest.raises(ValueError, match=r"with b_qk and the heads that share .* rank 5, "):
        mha.convert("stacked")  # one more for each query head of the two
    mha.w_qk.data, mha.b_qk = other.w_qk.data, None
    with pytest.raises(ValueError, match=r"with the heads that share its W\^K, is of rank 6, "):
        mha.convert("stacked")
    assert mha.convert("stacked", head_dim=2 * D).truncation_error < 1e-14


@pytest.mark.parametrize(("settings", "reason"), [
    ({"rope": mh.positions.Rope(width=2)}, "rope is applied between"),
    ({"qk_norm": True}, "qk_norm is applied between"),
    ({"softcap": 3.0}, "b_k.*does not change softmax, but it changes a softcap"),
    ({"sink": True}, "b_k.*does not change softmax, but it changes a sink"),
])  # fmt: skip
def test_the_bilinear_form_refuses_settings_that_it_cannot_represent(settings, reason, rng):
    mha, x = drawn(rng, settings), rng.standard_normal((B, T, M))
    with pytest.raises(ValueError, match=reason):
        mha.convert("bilinear")
    if "b_k" in reason:
        mha.b_k.data = np.zeros(H * D)  # now it can be converted
        assert_equal(outcome(mha.convert("bilinear"), x), outcome(mha, x))
    else:
        with pytest.raises(ValueError, match=reason):
            mh.MultiHeadAttention(M, H, form="bilinear", **settings)


def test_weights_too_large_for_the_product_are_refused():
    half = mh.MultiHeadAttention(M, H, dtype="float16")
    half.w_q.data, half.w_k.data = half.w_q.data * 900, half.w_k.data * 900
    with np.errstate(over="ignore"), pytest.raises(ValueError, match="overflows float16: convert"):
        half.convert("bilinear")


@pytest.mark.parametrize("form", FORMS)
def test_converting_to_the_same_form_copies_and_keeps_weights_frozen(form, rng):
    mha = drawn(rng, {"form": form})
    outcome(mha, rng.standard_normal((B, T, M)))
    twins = zip(mha.named_parameters(), mha.convert(form).named_parameters(), strict=True)
    for (name, p), (same, twin) in twins:
        assert name == same
        np.testing.assert_array_equal(twin.grad, p.grad)
        assert twin.grad is not p.grad
    mha.projections = mha.projections.mapped(lambda p: mh.Tensor(p.data))
    for other in FORMS:
        if form != "bilinear" or other == form:  # its rank is too high here
            frozen = mha.convert(other)
            assert [name for name, _ in frozen.named_parameters()] == ["w_o", "b_o"]


def test_a_head_is_a_block_of_columns(rng):
    """A reshape from (B, T, H·D) straight to (B, H, T, D) would mix time with heads."""
    y = rng.standard_normal((B, T, H * D))
    heads = mh.projections.split_heads(y, H)
    np.testing.assert_array_equal(heads[0, 1, 2], y[0, 2, D : 2 * D])  # head 1 at time 2
    assert abs(heads - y.reshape(B, H, T, D)).max() > 0.1
    np.testing.assert_array_equal(mh.projections.merge_heads(heads), y)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_keeps_a_dtype_of_16_bits(form, dtype, rng):
    """Also through the products of matrices that some conversions compute."""
    pytest.importorskip("ml_dtypes" if dtype == "bfloat16" else "numpy")  # it adds the dtype
    mha = mh.MultiHeadAttention(M, H, dtype=dtype)
    x = rng.standard_normal((B, T, M)).astype(dtype)
    expected = mha(x).data.astype("float32")
    for other in FORMS:
        converted = mha.convert(form).convert(other, **RANK if form == "bilinear" != other else {})
        assert {p.dtype for p in converted.parameters()} == {np.dtype(dtype)}
        error = abs(converted(x).data.astype("float32") - expected).max()
        assert error <= (2**-4 if dtype == "bfloat16" else 2**-7) * abs(expected).max()
        assert max(converted.projections.ranks()) >= M // H


RANK = {"head_dim": M // H}
"""The products of two 16-bit matrices, rounded, have full rank."""
