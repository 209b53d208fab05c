"""torch's layout of the weights, without torch: exact both ways, and what it lacks is refused."""

import re
from pathlib import Path

import numpy as np
import pytest

import minimha as mh
from minimha import interchange

M, H, MK, MV = 6, 3, 4, 5
WIDTHS = {"one": {}, "two": {"kdim": MK, "vdim": MK}, "three": {"kdim": MK, "vdim": MV}}
OUT = {"out_proj.weight": (M, M), "in_proj_bias": (3 * M,), "out_proj.bias": (M,)}
FUSED = {"in_proj_weight": (3 * M, M), **OUT}
SEPARATE = {"q_proj_weight": (M, M), "k_proj_weight": (M, MK), "v_proj_weight": (M, MV), **OUT}


def layer(rng, dtype="float64", **settings):
    """A layer in which every weight is random, the biases too."""
    mha = mh.MultiHeadAttention(M, H, dtype=dtype, **settings)
    for p in mha.parameters():
        p.data = rng.standard_normal(p.shape).astype(dtype)
    return mha


def weights(rng, shapes):
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def same_bits(one, other):
    assert one.keys() == other.keys()
    for name, x in one.items():
        y = other[name]
        assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes()), name


def test_each_weight_has_its_place_in_torch_s_layout(rng):
    theirs = weights(rng, FUSED)
    ours = interchange.from_torch(theirs, H)
    rows = theirs["in_proj_weight"], theirs["in_proj_bias"]
    for n, (w, b) in enumerate([(ours.w_q, ours.b_q), (ours.w_k, ours.b_k), (ours.w_v, ours.b_v)]):
        np.testing.assert_array_equal(w.data, rows[0][n * M : (n + 1) * M].T)
        np.testing.assert_array_equal(b.data, rows[1][n * M : (n + 1) * M])
    np.testing.assert_array_equal(ours.w_o.data, theirs["out_proj.weight"].T)
    np.testing.assert_array_equal(ours.b_o.data, theirs["out_proj.bias"])


def test_weights_of_three_widths_have_their_own_names(rng):
    theirs = weights(rng, SEPARATE)
    ours = interchange.from_torch(theirs, H)
    assert (ours.sizes.kdim, ours.sizes.vdim, ours.w_k.shape) == (MK, MV, (MK, M))
    for role, w in zip("qkv", (ours.w_q, ours.w_k, ours.w_v), strict=True):
        np.testing.assert_array_equal(w.data, theirs[f"{role}_proj_weight"].T)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("widths", "form", "dtype"),
    [
        ("one", "fused", "float16"),
        ("one", "per-head", "float32"),
        ("two", "stacked", "float64"),
        ("three", "per-head", "float16"),
    ],
)
def test_round_trips_keep_every_bit(widths, form, bias, dtype, tmp_path, rng):
    mha = layer(rng, dtype, form=form, bias=bias, **WIDTHS[widths])
    mha.parameters()[0].data.flat[:3] = [-0.0, np.nan, np.inf]
    theirs = interchange.to_torch(mha)
    shapes = FUSED if widths == "one" else SEPARATE
    assert set(theirs) == {name for name in shapes if bias or "bias" not in name}
    assert all(x.flags.c_contiguous and x.base is None for x in theirs.values())
    interchange.write(theirs, tmp_path / "layer")
    back = interchange.from_torch(interchange.read(tmp_path / "layer"), H, form=form)
    assert back.sizes == mha.sizes
    same_bits(interchange.state(back), interchange.state(mha))
    same_bits(interchange.to_torch(back), theirs)


def test_the_double_form_is_multiplied_out(rng):
    double, stacked = layer(rng, form="double"), layer(rng)
    for role in "qkv":
        product = getattr(double, f"first_{role}").data @ getattr(double, f"w_{role}").data
        getattr(stacked, f"w_{role}").data = product
        getattr(stacked, f"b_{role}").data = getattr(double, f"b_{role}").data
    stacked.w_o.data, stacked.b_o.data = double.w_o.data, double.b_o.data
    same_bits(interchange.to_torch(double), interchange.to_torch(stacked))


def test_neither_side_holds_the_memory_of_the_other(rng):
    theirs = weights(rng, SEPARATE)
    before = {name: x.copy() for name, x in theirs.items()}
    ours = interchange.from_torch(theirs, H)
    there = interchange.to_torch(ours)
    for p in ours.parameters():
        p.data[...] = 0
    same_bits(theirs, before)
    same_bits(there, before)


def test_what_is_set_beside_the_weights_is_kept(rng):
    mha = interchange.from_torch(weights(rng, FUSED), H, form="per-head", dropout=0.25)
    assert (mha.form, mha.dropout, mha.num_heads) == ("per-head", 0.25, H)
    interchange.to_torch(mha)  # torch has dropout too


@pytest.mark.parametrize("prefix", ["layers.1.attention", "layers.1.attention."])
def test_a_layer_is_found_under_its_prefix(prefix, rng):
    here, other = weights(rng, FUSED), weights(rng, FUSED)
    model = {f"layers.10.attention.{name}": x for name, x in other.items()}
    model |= {f"layers.1.attention.{name}": x for name, x in here.items()}
    model |= {"layers.1.attention_norm": np.ones(M), "head": np.ones(2)}
    same_bits(interchange.to_torch(interchange.from_torch(model, H, prefix=prefix)), here)
    message = r"under layers\.2 lack out_proj.* under the prefix layers\.10\.attention, layers\.1\.attention$"
    with pytest.raises(ValueError, match=message):
        interchange.from_torch(model, H, prefix="layers.2")


@pytest.mark.parametrize("shapes", [FUSED, SEPARATE])
def test_everything_wrong_with_torch_s_weights_is_named_at_once(shapes, rng):
    theirs, first = weights(rng, shapes), next(iter(shapes))
    theirs[first] = theirs[first].T[:2]
    theirs["in_proj_bias"] = [0.0] * 3 * M
    del theirs["out_proj.bias"]
    theirs |= {"bias_k": np.ones((1, 1, M)), "x.y": np.ones(1)}
    with pytest.raises(ValueError, match="entries do not make a torch") as failure:
        interchange.from_torch(theirs, 4)
    wrong = theirs[first]
    assert str(failure.value).partition(": ")[2].split("; ") == [
        "bias_k is extra",
        "in_proj_bias is a list, required is an array of float64",
        *sorted(
            [
                f"{first} is float64 {wrong.shape}, required is float64 {shapes[first]}",
                "out_proj.bias is missing",
            ]
        ),
        "x.y is extra",
        "M = 6 must be a multiple of num_heads = 4",
    ]


@pytest.mark.parametrize("shapes", [FUSED, SEPARATE])
def test_the_one_entry_that_differs_from_out_proj_is_the_one_named(shapes, rng):
    for name, shape in shapes.items():
        if name == "out_proj.weight":
            continue
        for wrong, message in (
            (np.ones(tuple(n + 1 for n in shape)), f"{name} is float64"),
            (np.ones((*shape, 1)), f"{name} is float64"),
            (np.ones(shape, "float32"), f"{name} is float32"),
            (None, f"{name} is a NoneType"),
        ):
            theirs = weights(rng, shapes) | {name: wrong}
            with pytest.raises(ValueError, match=f": {re.escape(message)}[^;]*$"):
                interchange.from_torch(theirs, H)
        theirs = weights(rng, shapes)
        del theirs[name]
        with pytest.raises(ValueError, match=f"{re.escape(name)} is missing"):
            interchange.from_torch(theirs, H)


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ({}, ValueError, "the entries lack out_proj.weight, which every torch"),
        ({"w_q": np.ones((M, M))}, ValueError, "the entries lack out_proj.weight"),
        (
            {"out_proj.weight": np.ones((M, M), int)},
            ValueError,
            r"is int64 \(6, 6\), required are fl",
        ),
        ({"out_proj.weight": np.ones(M)}, ValueError, r"is float64 \(6,\), required are floating"),
        ({"out_proj.weight": [[1.0]]}, ValueError, "out_proj.weight is a list, required"),
        ("layer.safetensors", TypeError, "arrays must be a dictionary"),
    ],
)
def test_a_dictionary_of_something_else_is_refused(arrays, error, message):
    with pytest.raises(error, match=message):
        interchange.from_torch(arrays, H)
    with pytest.raises(TypeError, match=r"num_heads must be an integer, not 2\.5"):
        interchange.from_torch({}, 2.5)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"num_kv_heads": 1}, "keys there have as many heads as queries, and here are 1 and 3"),
        ({"head_dim": 5}, "heads there are M/H = 6/3 wide, and here head_dim is 5"),
        ({"v_head_dim": 5}, "as wide as keys, and here v_head_dim is 5, head_dim 2"),
        ({"scale": 0.7}, "the scale there is 1/√D = 0.707107, and here 0.7"),
        ({"softcap": 20.0}, "softcap does not exist there"),
        ({"sink": True}, "sink does not exist there"),
        ({"qk_norm": True}, "qk_norm does not exist there"),
        ({"rope": mh.positions.Rope(2)}, "rope does not exist there"),
        ({"alibi": True}, "alibi does not exist there"),
        ({"form": "bilinear"}, 'convert("stacked") factors it, up to rounding'),
    ],
)
def test_what_torch_s_layer_lacks_is_refused_with_the_reason(settings, reason, rng):
    with pytest.raises(ValueError, match="has no such layer: ") as failure:
        interchange.to_torch(layer(rng, **settings))
    assert str(failure.value).endswith(reason)
    assert ";" not in str(failure.value)


def test_all_reasons_are_given_at_once(rng):
    mha = layer(rng, num_kv_heads=1, sink=True, softcap=20.0, scale=2.0)
    mha.b_k = None
    with pytest.raises(ValueError, match="has no such layer: ") as failure:
        interchange.to_torch(mha)
    for reason in (
        "keys there",
        "here 2.0",
        "softcap does",
        "sink does",
        "all biases there or none, and here b_q, b_v, b_o alone",
    ):
        assert reason in str(failure.value)


def test_other_modules_are_refused():
    for other in (mh.Linear(2, 3), mh.projections.Projections(M, H), {"w_q": np.ones(3)}, None):
        with pytest.raises(TypeError, match="mha must be a MultiHeadAttention, not a"):
            interchange.to_torch(other)


def test_the_page_about_it_runs(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "interchange.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(code, names := {})
    np.testing.assert_array_equal(names["same"].data, names["y"].data)
    assert [path.name for path in tmp_path.iterdir()] == ["layer.safetensors"]
