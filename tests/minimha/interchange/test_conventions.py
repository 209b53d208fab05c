"""Masks of other libraries keep their meaning."""

import numpy as np
import pytest
from layers import same_bits

import minimha as mh
from minimha import masks
from minimha.interchange import conventions
from minimha.masks.queries import typed
from minimha_autograd import backend

B, H, T, S, D, DV = 2, 3, 4, 6, 5, 7
SCORES = (B, H, T, S)
INFINITE = -np.inf
LOWEST = float(np.finfo(np.float32).min)


def seen(mask, shape=SCORES):
    return np.broadcast_to(typed(mask, shape).array(shape), shape)


def one_visible(rng, *shape):
    """A random boolean array in which every row sees its first key."""
    x = rng.random(shape) < 0.5
    x[..., 0] = True
    return x


# Reading


def test_true_attends_or_hides_as_each_library_defines_it(rng):
    c, x, valid = conventions, one_visible(rng, T, S), one_visible(rng, B, S)
    query, causal = one_visible(rng, B, T), np.tri(T, S, dtype=bool)
    together = {"attention_mask": x, "value_mask": valid, "query_mask": query}
    for (mask, bias), expected in [
        (c.from_torch_sdpa(attn_mask=x), x),
        (c.from_torch_sdpa(attn_mask=np.True_), True),
        (c.from_torch_sdpa(is_causal=True), causal),
        (c.from_keras(attention_mask=x), x),
        (c.from_keras(value_mask=valid), valid[:, None, None]),
        (c.from_keras(key_mask=valid), valid[:, None, None]),
        (c.from_keras(query_mask=query), query[:, None, :, None]),
        (c.from_keras(use_causal_mask=True), causal),
        (
            c.from_keras(**together, use_causal_mask=True),
            x & causal & valid[:, None, None] & query[:, None, :, None],
        ),
        (c.from_hugging_face(np.broadcast_to(x, (B, 1, T, S))), x),
        (c.from_hugging_face(valid), valid[:, None, None]),
        (c.from_hugging_face(valid.astype(np.int64)), valid[:, None, None]),
        (c.from_torch_mha(attn_mask=x), ~x),
        (c.from_torch_mha(key_padding_mask=valid), ~valid[:, None, None]),
    ]:
        assert bias is None
        np.testing.assert_array_equal(seen(mask), np.broadcast_to(expected, SCORES))


def test_one_sequence_needs_no_batch(rng):
    hidden = rng.random((H, T, S)) < 0.5
    mask, _ = conventions.from_torch_mha(
        attn_mask=hidden, key_padding_mask=np.zeros(S, dtype=bool), num_heads=H
    )
    np.testing.assert_array_equal(seen(mask, (H, T, S)), ~hidden)
    five = rng.random((3, *SCORES)) < 0.5
    mask, _ = conventions.from_torch_sdpa(attn_mask=five)  # nor is there a single batch axis
    np.testing.assert_array_equal(seen(mask, five.shape), five)


def test_float_masks_become_a_bias_and_a_mask_of_hidden_pairs(rng):
    visible, slope = one_visible(rng, B, 1, T, S), rng.standard_normal((B, 1, T, S)).astype("f")
    for hidden, read in [
        (INFINITE, lambda x: conventions.from_torch_sdpa(attn_mask=x)),
        (INFINITE, conventions.from_hugging_face),
        (LOWEST, conventions.from_hugging_face),
    ]:
        mask, bias = read(np.where(visible, slope, np.float32(hidden)))
        np.testing.assert_array_equal(mask.array(SCORES), visible)
        np.testing.assert_array_equal(bias, np.where(visible, slope, 0), strict=True)
    mask, bias = conventions.from_torch_sdpa(attn_mask=np.full((T, S), LOWEST, dtype="f"))
    assert seen(mask).all()  # torch adds the lowest float as a number
    assert (bias == np.float32(LOWEST)).all()


def test_both_float_masks_of_torch_mha_are_added(rng):
    slope, of_keys = rng.standard_normal((B * H, T, S)), rng.standard_normal((B, S))
    slope[3, 1, 2] = of_keys[0, 4] = INFINITE
    mask, bias = conventions.from_torch_mha(attn_mask=slope, key_padding_mask=of_keys, num_heads=H)
    expected = slope.reshape(SCORES) + of_keys[:, None, None]
    np.testing.assert_array_equal(seen(mask), expected > INFINITE)
    np.testing.assert_array_equal(np.where(seen(mask), bias, INFINITE), expected)


def test_no_arguments_give_no_mask_and_no_bias():
    for read in (conventions.from_torch_sdpa, conventions.from_torch_mha, conventions.from_keras):
        assert read() == (None, None)
    for write in (conventions.to_torch_sdpa, conventions.to_torch_mha, conventions.to_keras, conventions.to_hugging_face):  # fmt: skip
        assert write(None, SCORES) == {}


# Writing, and round trips

MASKS = {
    "causal": masks.causal(align="bottom-right"),
    "padding": masks.padding([2, 6]),
    "both": masks.causal(offset=1) & masks.padding([2, 6]),
    "heads": masks.dense(np.arange(H * T * S).reshape(H, T, S) % 5 > 1),
    "keys of heads": masks.dense(np.arange(H * S).reshape(H, 1, S) % 4 > 0),
    "empty rows": masks.causal(offset=-2),
}


def read_torch_mha(**arguments):
    return conventions.from_torch_mha(**arguments, num_heads=H)


TORCH = [
    (conventions.to_torch_sdpa, conventions.from_torch_sdpa),
    (conventions.to_torch_mha, read_torch_mha),
]
KERAS = conventions.to_keras, conventions.from_keras
HUGGING_FACE = conventions.to_hugging_face, conventions.from_hugging_face


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_and_its_bias_survive_a_round_trip_through_every_convention(name, rng):
    for write, read in [*TORCH, KERAS]:
        mask, bias = read(**write(MASKS[name], SCORES))
        assert bias is None
        np.testing.assert_array_equal(seen(mask), seen(MASKS[name]))
    for write, read in [*TORCH, HUGGING_FACE]:
        for shape in (SCORES, (H, 1, 1), (1, S), (1,)):
            bias = rng.standard_normal(shape).astype("float32")
            mask, back = read(**write(MASKS[name], SCORES, bias=bias))
            np.testing.assert_array_equal(seen(mask), seen(MASKS[name]))
            assert back.dtype == bias.dtype
            visible = np.where(seen(mask), bias, 0)
            np.testing.assert_array_equal(np.broadcast_to(back, SCORES), visible)


def test_arguments_that_are_read_are_written_back_unchanged(rng):
    x, slope = one_visible(rng, B * H, T, S), rng.standard_normal((B * H, T, S))
    hidden = np.where(x, slope, INFINITE)
    number = np.where(x, slope, LOWEST).astype("float32").reshape(SCORES)
    sdpa, mha = TORCH
    for (write, read), arguments in [
        (sdpa, {"attn_mask": x.reshape(SCORES)}),
        (sdpa, {"attn_mask": hidden.reshape(SCORES)}),
        (mha, {"attn_mask": x[0]}),
        (mha, {"attn_mask": x}),
        (mha, {"attn_mask": hidden}),
        (mha, {"key_padding_mask": ~x[:B, 0]}),
        (KERAS, {"attention_mask": x[0]}),
        (KERAS, {"attention_mask": x[:B]}),
        (KERAS, {"attention_mask": x.reshape(SCORES)}),
        (HUGGING_FACE, {"attention_mask": 1 * x[:B, 0]}),
        (HUGGING_FACE, {"attention_mask": number}),
        (HUGGING_FACE, {"attention_mask": number[:, :1]}),
    ]:
        mask, bias = read(**arguments)
        same_bits(write(mask, SCORES, **({} if bias is None else {"bias": bias})), arguments)


def test_hugging_face_masks_have_the_requested_dtype():
    same_bits(
        conventions.to_hugging_face(masks.padding([2, 6]), SCORES),
        {"attention_mask": np.array([[1, 1, 0, 0, 0, 0], [1] * 6])},
    )
    lowest = {"float16": -65504.0, "bfloat16": -3.3895314e38}
    for dtype, number in lowest.items():
        pytest.importorskip("ml_dtypes" if dtype == "bfloat16" else "numpy")  # it adds the dtype
        expected = np.where(np.tri(T, S, dtype=bool), 0, number).astype(dtype)
        same_bits(
            conventions.to_hugging_face(masks.causal(offset=0), SCORES, dtype=dtype),
            {"attention_mask": np.broadcast_to(expected, (B, 1, T, S))},
        )


def test_written_masks_use_the_requested_library_and_device(place):
    both, per_key, like = MASKS["both"], MASKS["padding"], place(np.zeros(1))
    for write, mask, more in [
        (conventions.to_torch_sdpa, both, {"like": like}),
        (conventions.to_torch_sdpa, both, {"bias": place(np.ones((T, S)))}),
        (conventions.to_torch_mha, both, {"like": like}),
        (conventions.to_torch_mha, per_key, {"like": like}),
        (conventions.to_keras, both, {"like": like}),
        (conventions.to_hugging_face, per_key, {"like": like}),
        (conventions.to_hugging_face, both, {"dtype": "float32", "like": like}),
    ]:
        (x,) = write(mask, SCORES, **more).values()
        assert backend.namespace(x) is place.xp
        assert x.device == like.device


def test_arrays_of_every_library_can_be_read(place, rng):
    x = one_visible(rng, B * H, T, S)
    slope = np.where(x, rng.standard_normal(x.shape), INFINITE)
    for read, arguments in [
        (conventions.from_torch_sdpa, {"attn_mask": slope.reshape(SCORES)}),
        (read_torch_mha, {"attn_mask": slope, "key_padding_mask": ~x[:B, 0]}),
        (conventions.from_keras, {"attention_mask": x[:B], "query_mask": x[:B, :, 1]}),
        (conventions.from_hugging_face, {"attention_mask": x[:B, 0].astype(np.int64)}),
        (conventions.from_hugging_face, {"attention_mask": slope.reshape(SCORES)}),
    ]:
        one, bias = read(**arguments)
        other, there = read(**{name: place(x) for name, x in arguments.items()})
        np.testing.assert_array_equal(seen(other), seen(one))
        if bias is not None:
            np.testing.assert_array_equal(backend.to_numpy(there), bias)


@pytest.mark.parametrize("shape", [(2, 3, 0, 5), (2, 3, 4, 0), (0, 3, 4, 5)])
def test_masks_with_empty_axes_can_be_written(shape):
    rule = masks.causal(offset=0) & masks.prefix(1)
    b, *_, s = shape
    for write, read in [*TORCH, KERAS]:
        assert seen(read(**write(rule, shape))[0], shape).shape == shape
    ones = conventions.to_hugging_face(masks.prefix(1), shape)["attention_mask"]
    assert ones.shape == (b, s)


ONES = np.ones((B, S), dtype=np.int64)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: conventions.from_torch_sdpa(attn_mask=ONES), TypeError, "attn_mask has dtype int64 .*!= 0 if ones may attend"),
        (lambda: conventions.from_torch_mha(key_padding_mask=ONES), TypeError, "key_padding_mask != 0 if ones are hidden"),
        (lambda: conventions.from_keras(attention_mask=-1e9 * ONES), TypeError, "attention_mask == 0 if zeros may attend"),
        (lambda: conventions.from_keras(value_mask=1.0 * ONES), TypeError, "value_mask has dtype float64"),
        (lambda: conventions.from_hugging_face(1.0 * ONES), TypeError, "attention_mask has dtype float64"),
        (lambda: conventions.from_hugging_face(2 * ONES), ValueError, "must hold the integers 1"),
        (lambda: conventions.from_hugging_face(ONES[:, None, None]), TypeError, "has dtype int64"),
        (lambda: conventions.from_hugging_face(ONES[0]), ValueError, r"shape \(6,\), but must be \(B, S\) or"),
        (lambda: conventions.from_torch_sdpa(attn_mask=ONES > 0, is_causal=True), ValueError, "not both"),
        (lambda: conventions.from_torch_mha(attn_mask=np.ones(SCORES) > 0), ValueError, r"but must be \(T, S\) or"),
        (lambda: conventions.from_torch_mha(attn_mask=np.ones((6, T, S)) > 0), ValueError, "num_heads must be .* divisor of 6, not None"),
        (lambda: conventions.from_keras(query_mask=np.ones((B, T, 1)) > 0), ValueError, r"query_mask has shape \(2, 4, 1\), but must be \(B, T\)"),
        (lambda: conventions.to_torch_mha(None, (1, *SCORES)), ValueError, r"\(H, T, S\) or \(B, H, T, S\), not \(1, 2"),
        (lambda: conventions.to_keras(None, (H, T, S)), ValueError, r"\(T, S\) or \(B, H, T, S\)"),
        (lambda: conventions.to_hugging_face(masks.causal(offset=0), SCORES), ValueError, r"causal\(offset=0\) is not the same"),
        (lambda: conventions.to_hugging_face(None, SCORES, bias=np.ones(1), dtype="float32"), TypeError, "not both"),
        (lambda: conventions.to_torch_sdpa(None, SCORES, bias=ONES), TypeError, "bias has dtype int64"),
        (lambda: conventions.to_torch_sdpa(None, SCORES, bias=np.ones(5)), ValueError, r"bias has shape \(5,\)"),
    ],
)  # fmt: skip
def test_ambiguous_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


# Compared with torch itself; round trips are tested above


def close(ours, theirs):
    theirs = theirs.detach().numpy()
    assert abs(ours - theirs).max() <= 1e-12 * abs(theirs).max()  # float64, sums in the same order


def test_torch_sdpa_agrees_with_our_reading_of_its_arguments(rng):
    torch = pytest.importorskip("torch")
    q, k, v = (rng.standard_normal((B, H, *n)) for n in ((T, D), (S, D), (S, DV)))
    visible, slope = one_visible(rng, B, 1, T, S), rng.standard_normal((H, T, S))
    for arguments in [
        {"attn_mask": torch.tensor(visible)},
        {"attn_mask": torch.tensor(slope)},
        {"attn_mask": torch.tensor(np.where(visible, slope, INFINITE))},
        {"is_causal": True},
        {},
    ]:
        there = map(torch.tensor, (q, k, v))
        theirs = torch.nn.functional.scaled_dot_product_attention(*there, **arguments)
        mask, bias = conventions.from_torch_sdpa(**arguments)
        bias = None if bias is None else backend.to_numpy(bias)
        close(mh.scaled_dot_product_attention(q, k, v, mask, bias=bias), theirs)


def torch_mha(torch, rng):
    """torch's module with heads of width 2 and weights that leave Q, K, V and the output unchanged,
    and minimha's attention on the same inputs."""
    m = 2 * H
    module = torch.nn.MultiheadAttention(m, H, bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(m, dtype=torch.float64).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(m, dtype=torch.float64))
    query, key = rng.standard_normal((B, T, m)), rng.standard_normal((B, S, m))

    def theirs(**arguments):
        q, k = torch.tensor(query), torch.tensor(key)
        return module(q, k, k, **arguments)[0]

    def ours(mask, bias):
        q, k = (np.swapaxes(x.reshape(B, -1, H, 2), 1, 2) for x in (query, key))
        out = mh.scaled_dot_product_attention(q, k, k, mask, bias=bias)
        return np.swapaxes(out, 1, 2).reshape(B, T, m)

    return theirs, ours


@pytest.mark.filterwarnings("ignore:Support for mismatched")  # booleans together with floats
def test_torch_mha_agrees_with_our_reading_of_its_arguments(rng):
    torch = pytest.importorskip("torch")
    theirs, ours = torch_mha(torch, rng)
    hidden, slope = ~one_visible(rng, B * H, T, S), rng.standard_normal((B * H, T, S))
    padded, of_keys = ~one_visible(rng, B, S), rng.standard_normal((B, S))
    slope_hiding = np.where(hidden, INFINITE, slope)
    for arguments in [
        {"attn_mask": hidden[0]},
        {"attn_mask": slope[1], "key_padding_mask": of_keys},
        {"attn_mask": slope_hiding, "key_padding_mask": padded},
        {"attn_mask": hidden, "key_padding_mask": padded},
        {"key_padding_mask": padded},
    ]:
        mask, bias = conventions.from_torch_mha(**arguments, num_heads=H)
        close(ours(mask, bias), theirs(**{name: torch.tensor(x) for name, x in arguments.items()}))


def test_fully_masked_rows_of_torch_follow_the_docstring(rng):
    torch = pytest.importorskip("torch")
    q, k = (torch.tensor(rng.standard_normal((1, 1, n, D))) for n in (T, S))
    attend = torch.nn.functional.scaled_dot_product_attention
    nothing = torch.zeros((T, S), dtype=torch.bool)
    assert (attend(q, k, k, attn_mask=nothing) == 0).all()
    assert (attend(q, k, k, attn_mask=torch.full((T, S), INFINITE, dtype=q.dtype)) == 0).all()
    least = torch.full((T, S), torch.finfo(q.dtype).min, dtype=q.dtype)
    close(k.mean(-2).expand(1, 1, T, D).numpy(), attend(q, k, k, attn_mask=least))
    q16, k16 = q.half(), k.half()
    least = torch.full((T, S), torch.finfo(torch.float16).min, dtype=torch.float16)
    rounding = 1e-2
    assert (attend(q16, k16, k16, attn_mask=least) - k16.mean(-2)).abs().max() > 10 * rounding
    assert (attend(q16, k16, k16, attn_mask=least) - attend(q16, k16, k16)).abs().max() < rounding
    theirs, _ = torch_mha(torch, rng)
    assert torch.isnan(theirs(attn_mask=~nothing)).all()
    assert (theirs(attn_mask=~nothing, need_weights=False) == 0).all()
