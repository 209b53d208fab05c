"""Weights survive a round trip exactly, and mismatches are named."""

import json
import pickle
import re
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from layers import drawn, reasons, same_bits

import minimha as mh
from minimha import interchange
from minimha.interchange.safetensors_file import mapped

M, H, MK, MV = 6, 3, 4, 5
OUT = {"out_proj.weight": (M, M), "in_proj_bias": (3 * M,), "out_proj.bias": (M,)}
FUSED = {"in_proj_weight": (3 * M, M), **OUT}  # torch's layout for one width of inputs
SEPARATE = {"q_proj_weight": (M, M), "k_proj_weight": (M, MK), "v_proj_weight": (M, MV), **OUT}


def layer(rng, dtype="float64", **settings):
    return drawn(rng, settings, M, H, dtype)


def torch_weights(rng, shapes):
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


# Round trips

NAMES = {
    "per-head": ["w_q.0", "w_q.1", "w_q.2", "w_k.0", "w_v.0"],
    "stacked": ["w_q", "w_k", "w_v"],
    "fused": ["w_qkv"],
    "double": ["w_q", "w_k", "w_v", "first_q", "first_k", "first_v"],
    "bilinear": ["w_qk", "w_v"],
}


@pytest.mark.parametrize("form", mh.projections.FORMS)
def test_a_layer_in_every_form_can_be_saved_and_loaded(form, tmp_path):
    one, other = (
        mh.MultiHeadAttention(M, H, num_kv_heads=1, form=form, rng=seed, bias=False)
        for seed in (1, 2)
    )
    weights = interchange.state(one)
    assert list(weights) == [*NAMES[form], "w_o"]
    interchange.save(one, tmp_path / "weights")
    interchange.load(other, tmp_path / "weights")
    same_bits(interchange.state(other), weights)
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


BITS = {
    "nothing": np.zeros((0, 3)),
    "number": np.array(-0.0),
    "nan": np.array([0x7FC12345, 0xFF800001, 0x80000000], "uint32").view("float32"),
    "half": np.array([[6e-8, np.inf]], "float16"),
    "double": np.array([5e-324, np.pi]),
    "truth": np.array([True, False]),
    **{
        f"{kind}{n}": np.array([0, 1, np.iinfo(f"{kind}{n}").max], f"{kind}{n}")
        for kind in ("int", "uint")
        for n in (8, 16, 32, 64)
    },
}


def test_the_printed_names_of_a_gpt_are_those_of_save_and_not_of_save_pretrained(tmp_path):
    model = mh.GPT(5, context=4, d_model=4, num_heads=2, num_layers=1)
    interchange.save(model, tmp_path / "model.safetensors")
    interchange.save_pretrained(model, tmp_path / "folder")
    printed = {line.split()[0] for line in repr(model).splitlines()[1:-1]}
    assert printed == set(interchange.read(tmp_path / "model.safetensors"))
    assert printed.isdisjoint(interchange.read(tmp_path / "folder" / "model.safetensors"))


def test_a_file_keeps_every_bit_for_any_memory_layout(tmp_path):
    x = np.arange(24.0).reshape(2, 3, 4)
    views = {"transposed": x.T, "strided": x[:, ::2, ::-1], "big-endian": x.astype(">f8")}
    interchange.write(BITS | views, tmp_path / "bits")
    arrays = interchange.read(tmp_path / "bits")
    for name, view in views.items():
        np.testing.assert_array_equal(arrays[name], view)
        assert arrays.pop(name).dtype == "float64"
    same_bits(arrays, BITS)
    assert all(x.flags.writeable for x in arrays.values())


def file_of(header, numbers=b""):
    """A file as the format specifies: the length of the header, the header, the numbers."""
    header = json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + numbers


def test_bfloat16_is_read_exactly_as_float32_and_metadata_is_ignored(tmp_path):
    patterns = np.arange(1 << 16, dtype="<u2")  # all values of the dtype
    header = {
        "__metadata__": {"format": "pt"},
        "x": {"dtype": "BF16", "shape": [256, 256], "data_offsets": [0, 1 << 17]},
    }
    (tmp_path / "bf16").write_bytes(file_of(header, patterns.tobytes()))
    (name, x), *rest = interchange.read(tmp_path / "bf16").items()
    assert (name, x.dtype, x.shape, rest) == ("x", "float32", (256, 256), [])
    np.testing.assert_array_equal(x.view("uint32").ravel(), patterns.astype("uint32") << 16)


@pytest.mark.parametrize("read", [interchange.read, mapped])
def test_bfloat16_keeps_every_bit_if_it_stays(read, tmp_path):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    arrays = {"x": np.arange(1 << 16, dtype="uint16").view(bfloat16)}  # all values of the dtype
    interchange.write(arrays, tmp_path / "bf16")
    same_bits(read(tmp_path / "bf16", bfloat16=True), arrays)


def test_bfloat16_stays_only_with_ml_dtypes(tmp_path, monkeypatch):
    header = {"x": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}
    (tmp_path / "bf16").write_bytes(file_of(header, b"12"))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert interchange.read(tmp_path / "bf16")["x"].dtype == "float32"
    with pytest.raises(RuntimeError, match="bfloat16 needs the package ml_dtypes: pip install"):
        interchange.read(tmp_path / "bf16", bfloat16=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_module_of_16_bits_is_saved_and_loaded_bit_for_bit(dtype, tmp_path):
    pytest.importorskip("ml_dtypes" if dtype == "bfloat16" else "numpy")  # it adds the dtype
    sizes = {"context": 5, "d_model": 4, "num_heads": 2, "num_layers": 1, "dtype": dtype}
    first, second = (mh.GPT(7, **sizes, rng=seed) for seed in (0, 1))
    interchange.save(first, tmp_path / "model")
    interchange.load(second, tmp_path / "model")
    same_bits(interchange.state(second), interchange.state(first))


def test_a_module_of_float32_loads_a_file_of_bfloat16(tmp_path):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    module = mh.Linear(3, 2)
    narrow = {name: x.astype(bfloat16) for name, x in interchange.state(module).items()}
    interchange.write(narrow, tmp_path / "narrow")
    interchange.load(module, tmp_path / "narrow")
    same_bits(interchange.state(module), {name: x.astype("float32") for name, x in narrow.items()})


@pytest.mark.parametrize("padding", range(4))
def test_a_mapped_file_has_the_same_arrays(padding, tmp_path):
    numbers = np.arange(6, dtype="<f4")
    header = {
        "__metadata__": {"": " " * padding},
        "x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    }
    (tmp_path / "mapped").write_bytes(file_of(header, numbers.tobytes()))
    x = mapped(tmp_path / "mapped")["x"]
    np.testing.assert_array_equal(x, numbers.reshape(2, 3))
    assert x.flags.aligned
    assert x.flags.writeable


def test_files_are_exchanged_with_the_library_of_the_format(tmp_path):
    more = {"empty": np.zeros((0, 3)), "number": np.array(2.5, "float32"), "schön": np.ones(2)}
    for arrays in (BITS | more, {}):
        interchange.write(arrays, tmp_path / "ours", metadata={"format": "pt"})
        same_bits(safetensors.numpy.load_file(tmp_path / "ours"), arrays)
        safetensors.numpy.save_file(arrays, tmp_path / "theirs")
        same_bits(interchange.read(tmp_path / "theirs"), arrays)


@pytest.mark.parametrize("entry", [
    None, [], {"dtype": "F32", "shape": [2]},
    *({"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **wrong} for wrong in [
        {"dtype": 1}, {"shape": 2}, {"shape": [2.0]}, {"shape": [-2]}, {"shape": [3]},
        {"data_offsets": [0]}, {"data_offsets": [8, 0]}, {"data_offsets": [1, 9]},
        {"data_offsets": [0, 4]}, {"shape": [0], "data_offsets": [0, 0]},
        {"shape": [1], "data_offsets": [4, 8]},
        {"dtype": "F8_E4M3", "data_offsets": [0, 10**20]},
    ]),
])  # fmt: skip
def test_an_entry_that_does_not_fit_the_file_is_refused(entry, tmp_path):
    (tmp_path / "wrong").write_bytes(file_of({"x": entry}, bytes(8)))
    with pytest.raises(ValueError, match="wrong is not a safetensors file, or is incomplete: "):
        interchange.read(tmp_path / "wrong")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("widths", "form", "dtype"),
    [
        ({}, "fused", "float16"),
        ({}, "per-head", "float32"),
        ({"kdim": MK, "vdim": MK}, "stacked", "float64"),
        ({"kdim": MK, "vdim": MV}, "per-head", "float16"),
    ],
)
def test_a_layer_survives_a_round_trip_through_torch_s_layout_and_a_file(
    widths, form, bias, dtype, tmp_path, rng
):
    mha = layer(rng, dtype, form=form, bias=bias, **widths)
    mha.parameters()[0].data.flat[:3] = [-0.0, np.nan, np.inf]
    theirs = interchange.to_torch(mha)
    shapes = SEPARATE if widths else FUSED
    assert set(theirs) == {name for name in shapes if bias or "bias" not in name}
    interchange.write(theirs, tmp_path / "layer")
    back = interchange.from_torch(interchange.read(tmp_path / "layer"), H, form=form, dropout=0.25)
    assert (back.sizes, back.form, back.dropout) == (mha.sizes, form, 0.25)
    same_bits(interchange.state(back), interchange.state(mha))
    same_bits(interchange.to_torch(back), theirs)


def test_each_weight_is_in_its_place_in_torch_s_layout(rng):
    theirs = torch_weights(rng, FUSED)
    ours = interchange.from_torch(theirs, H)
    rows = theirs["in_proj_weight"], theirs["in_proj_bias"]
    for n, (w, b) in enumerate([(ours.w_q, ours.b_q), (ours.w_k, ours.b_k), (ours.w_v, ours.b_v)]):
        np.testing.assert_array_equal(w.data, rows[0][n * M : (n + 1) * M].T)
        np.testing.assert_array_equal(b.data, rows[1][n * M : (n + 1) * M])
    np.testing.assert_array_equal(ours.w_o.data, theirs["out_proj.weight"].T)
    np.testing.assert_array_equal(ours.b_o.data, theirs["out_proj.bias"])
    theirs = torch_weights(rng, SEPARATE)
    ours = interchange.from_torch(theirs, H)
    for role, w in zip("qkv", (ours.w_q, ours.w_k, ours.w_v), strict=True):
        np.testing.assert_array_equal(w.data, theirs[f"{role}_proj_weight"].T)


def test_the_double_form_is_multiplied_together_for_torch(rng):
    double = layer(rng, form="double")
    theirs = interchange.to_torch(double)
    product = np.concatenate([(double.first_q.data @ double.w_q.data).T,
                              (double.first_k.data @ double.w_k.data).T,
                              (double.first_v.data @ double.w_v.data).T])  # fmt: skip
    np.testing.assert_array_equal(theirs["in_proj_weight"], product)


def test_weights_are_copied_in_both_directions(rng):
    theirs = torch_weights(rng, SEPARATE)
    before = {name: x.copy() for name, x in theirs.items()}
    ours = interchange.from_torch(theirs, H)
    there, here = interchange.to_torch(ours), interchange.state(ours)
    interchange.set_state(ours, here)
    here["w_o"][:] = 0
    assert ours.w_o.data.all()
    for p in ours.parameters():
        p.data[...] = 0
    same_bits(theirs, before)
    same_bits(there, before)


@pytest.mark.parametrize("prefix", ["layers.1.attention", "layers.1.attention."])
def test_a_layer_is_found_under_its_prefix(prefix, rng):
    here, other = torch_weights(rng, FUSED), torch_weights(rng, FUSED)
    model = {f"layers.10.attention.{name}": x for name, x in other.items()}
    model |= {f"layers.1.attention.{name}": x for name, x in here.items()}
    model |= {"layers.1.attention_norm": np.ones(M), "head": np.ones(2)}
    same_bits(interchange.to_torch(interchange.from_torch(model, H, prefix=prefix)), here)
    message = (
        r"under layers\.2 lack out_proj.* the prefix layers\.10\.attention, layers\.1\.attention$"
    )
    with pytest.raises(ValueError, match=message):
        interchange.from_torch(model, H, prefix="layers.2")


def test_the_code_of_the_pages_about_weights_and_models_runs(tmp_path, monkeypatch):
    names = {}
    monkeypatch.chdir(tmp_path)
    for page in ("interchange.md", "models.md"):
        text = Path(__file__).parents[3].joinpath("docs", page).read_text(encoding="utf-8")
        cells = re.findall(r"```{code-cell} python\n(.*?)```", text, re.DOTALL)
        exec("\n".join(cells).replace("%matplotlib inline\n", ""), names)
    np.testing.assert_array_equal(names["same"].data, names["y"].data)
    assert {path.name for path in tmp_path.iterdir()} == {"layer.safetensors", "small-gpt2"}
    for name, x in interchange.state(names["small"]).items():
        np.testing.assert_array_equal(interchange.state(names["model"])[name], x)


# Refusals


def test_every_mismatch_with_a_module_is_named_and_nothing_changes():
    module = mh.GPT(7, context=6, d_model=4, num_heads=2, num_layers=1)
    before = interchange.state(module)
    weights = {name: x + 1 for name, x in before.items()}
    del weights["norm.bias"]
    weights |= {
        "nonsense": np.zeros(3),
        "tokens.table": weights["tokens.table"][:5],
        "head.weight": weights["head.weight"].astype("float64"),
        "norm.weight": [1.0],
        "positions.table": None,
    }
    with pytest.raises(ValueError, match="form of the projections has its own names") as failure:
        interchange.set_state(module, weights)
    assert str(failure.value).endswith(
        ": head.weight is float64 (4, 7), but must be float32 (4, 7); nonsense is extra; "
        "norm.bias is missing; norm.weight is a list, but must be an array of float32; "
        "positions.table is a NoneType, but must be an array of float32; "
        "tokens.table is float32 (5, 4), but must be float32 (7, 4)"
    )
    same_bits(interchange.state(module), before)


STRANGE = {
    "a list": ([1.0], "a list is a list"),
    "complex": (np.ones(2, complex), "complex is of complex128"),
    "text": (np.array(["a"]), "text is of <U1"),
    "objects": (np.array([object()]), "objects is of object"),
    "__metadata__": (np.ones(2), "'__metadata__' cannot be a name"),
    3: (np.ones(2), "3 cannot be a name"),
}


def test_everything_a_file_cannot_store_is_named_and_the_old_file_stays(tmp_path):
    path = tmp_path / "weights"
    interchange.write({"x": np.ones(3)}, path)
    arrays = {name: x for name, (x, _) in STRANGE.items()} | {"fine": np.ones(1)}
    assert reasons(interchange.write, arrays, path) == [reason for _, reason in STRANGE.values()]
    np.testing.assert_array_equal(interchange.read(path)["x"], np.ones(3))
    assert list(tmp_path.iterdir()) == [path]


def test_all_entries_of_dtypes_unknown_to_numpy_are_named_together(tmp_path):
    header = {
        "a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "F8_E5M2", "shape": [1], "data_offsets": [1, 2]},
        "c": {"dtype": "U8", "shape": [1], "data_offsets": [2, 3]},
    }
    (tmp_path / "eight").write_bytes(file_of(header, bytes(3)))
    assert reasons(interchange.read, tmp_path / "eight") == ["a is F8_E4M3", "b is F8_E5M2"]


def test_a_file_cut_off_anywhere_or_too_long_is_refused(tmp_path):
    path = tmp_path / "weights"
    interchange.save(mh.Linear(2, 3), path)
    content = path.read_bytes()
    cuts = [content[:length] for length in (*range(9), len(content) // 2, len(content) - 1)]
    for wrong in (*cuts, content + b"1", b"not weights at all"):
        path.write_bytes(wrong)
        for reading in (interchange.read, mapped):
            with pytest.raises(ValueError, match="is not a safetensors file, or is incomplete"):
                reading(path)


class Bomb:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("kind", ["plain", "zipped", "array"])
def test_pickles_are_refused_unread(kind, tmp_path):
    path, made = tmp_path / "weights", tmp_path / "made"
    content = pickle.dumps({"weight": Bomb(made)})
    if kind == "zipped":  # as by torch.save
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("weights/data.pkl", content)
    elif kind == "array":
        with path.open("wb") as file:
            np.save(file, np.array([Bomb(made)], dtype=object), allow_pickle=True)
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a safetensors file") as failure:
        interchange.load(mh.Linear(2, 3), path)
    assert ("looks like a pickle" in str(failure.value)) == (kind != "array")
    assert not made.exists()
    pickle.loads(content)["weight"].close()
    assert made.exists()  # the pickle works


def test_paths_without_a_file_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        interchange.read(tmp_path / "absent")
    with pytest.raises((IsADirectoryError, PermissionError)):
        interchange.read(tmp_path)
    with pytest.raises(PermissionError, match="cannot write"):
        interchange.write({}, tmp_path / "absent" / "weights")


@pytest.mark.parametrize("shapes", [FUSED, SEPARATE])
def test_every_fault_in_torch_s_weights_is_named(shapes, rng):
    first, *_ = shapes
    theirs = torch_weights(rng, shapes)
    theirs[first] = theirs[first].T[:2]
    theirs["in_proj_bias"] = [0.0] * 3 * M
    del theirs["out_proj.bias"]
    theirs |= {"bias_k": np.ones((1, 1, M)), "x.y": np.ones(1)}
    *entries, heads = reasons(interchange.from_torch, theirs, 4)
    assert entries == sorted(entries)
    assert set(entries) == {
        "bias_k is extra",
        "in_proj_bias is a list, but must be an array of float64",
        f"{first} is float64 {theirs[first].shape}, but must be float64 {shapes[first]}",
        "out_proj.bias is missing",
        "x.y is extra",
    }
    assert heads == "M = 6 must be a multiple of num_heads = 4"


@pytest.mark.parametrize("shapes", [FUSED, SEPARATE])
def test_an_entry_that_disagrees_with_out_proj_is_named(shapes, rng):
    theirs = torch_weights(rng, shapes)
    for name, shape in shapes.items():
        if name != "out_proj.weight":
            for wrong, kind in (
                (np.ones(tuple(n + 1 for n in shape)), "float64"),
                (np.ones((*shape, 1)), "float64"),
                (np.ones(shape, "float32"), "float32"),
                (None, "a NoneType"),
            ):
                (reason,) = reasons(interchange.from_torch, theirs | {name: wrong}, H)
                assert reason.startswith(f"{name} is {kind}")
            without = {other: x for other, x in theirs.items() if other != name}
            assert f"{name} is missing" in reasons(interchange.from_torch, without, H)


def test_all_options_unknown_to_torch_s_layer_are_refused_with_the_reasons(rng):
    mha = layer(
        rng, num_kv_heads=1, head_dim=5, v_head_dim=4, scale=0.7, softcap=20.0, sink=True,
        qk_norm=True, rope=mh.positions.Rope(2), alibi=True,
    )  # fmt: skip
    mha.b_k = None
    assert reasons(interchange.to_torch, mha) == [
        "keys there have as many heads as queries, and here are 1 and 3",
        "heads there are M/H = 6/3 wide, and here head_dim is 5",
        "values there are as wide as keys, and here v_head_dim is 4, head_dim 5",
        "the scale there is 1/√D = 0.447214, and here 0.7",
        *(f"{x} does not exist there" for x in ("softcap", "sink", "qk_norm", "rope", "alibi")),
        "there are all biases there or none, and here b_q, b_v, b_o alone",
    ]
    with pytest.raises(ValueError, match=r'convert\("stacked"\) factors it, up to rounding$'):
        interchange.to_torch(layer(rng, form="bilinear"))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: interchange.from_torch({}, H), ValueError, "entries lack out_proj.weight, which"),
        (lambda: interchange.from_torch({"out_proj.weight": np.ones((M, M), int)}, H), ValueError,
         r"is int64 \(6, 6\), but must be floating"),
        (lambda: interchange.from_torch({"out_proj.weight": np.ones(M)}, H), ValueError,
         r"is float64 \(6,\), but must be floating"),
        (lambda: interchange.from_torch({"out_proj.weight": [[1.0]]}, H), ValueError,
         "out_proj.weight is a list, but must be"),
        (lambda: interchange.from_torch("layer.safetensors", H), TypeError, "must be a dictionary"),
        (lambda: interchange.from_torch({}, 2.5), TypeError, "must be an integer, not 2.5"),
        (lambda: interchange.set_state(mh.Linear(2, 3), None), TypeError, "must be a dictionary"),
        (lambda: interchange.to_torch(mh.Linear(2, 3)), TypeError, "mha must be a MultiHeadAttention"),
        (lambda: interchange.to_torch(None), TypeError, "must be a MultiHeadAttention, not a NoneType"),
    ],
)  # fmt: skip
def test_anything_but_a_layer_or_a_dictionary_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
