"""Weights survive a round trip exactly, and what does not fit is named."""

import json
import pickle
import struct
import zipfile

import numpy as np
import pytest

import minimha as mh
from minimha import interchange


def gpt(seed, **changes):
    sizes = {"context": 6, "d_model": 4, "num_heads": 2, "num_layers": 2} | changes
    return mh.GPT(7, rng=seed, **sizes)


def test_a_round_trip_through_a_file_is_exact(tmp_path):
    one, other = gpt(1), gpt(2)
    tokens = np.array([[1, 2, 3]])
    assert not np.array_equal(one(tokens).data, other(tokens).data)
    interchange.save(one, tmp_path / "gpt.safetensors")
    interchange.load(other, tmp_path / "gpt.safetensors")
    np.testing.assert_array_equal(one(tokens).data, other(tokens).data)
    assert [p.name for p in tmp_path.iterdir()] == ["gpt.safetensors"]


def test_the_state_is_a_copy_and_is_copied_when_set():
    model, weights = gpt(1), interchange.state(gpt(2))
    interchange.state(model)["head.weight"][:] = 0
    assert model.head.weight.data.any()
    interchange.set_state(model, weights)
    weights["head.weight"][:] = 0
    assert model.head.weight.data.any()


def test_everything_that_does_not_fit_is_named_at_once_and_nothing_changes():
    model = gpt(1)
    before = interchange.state(model)
    weights = interchange.state(gpt(2))
    del weights["norm.bias"]
    weights["nonsense"] = np.zeros(3)
    weights["tokens.table"] = weights["tokens.table"][:5]
    weights["head.weight"] = weights["head.weight"].astype("float64")
    with pytest.raises(ValueError, match="do not fit") as failure:
        interchange.set_state(model, weights)
    for part in (
        "norm.bias is missing",
        "nonsense is extra",
        "tokens.table is float32 (5, 4), required is float32 (7, 4)",
        "head.weight is float64 (4, 7), required is float32 (4, 7)",
    ):
        assert part in str(failure.value)
    for name, array in interchange.state(model).items():
        np.testing.assert_array_equal(array, before[name])


def test_what_is_no_array_is_named_and_nan_is_a_number_like_others():
    layer = mh.Linear(2, 3, rng=1)
    with pytest.raises(ValueError, match=r"bias is a list, .* weight is a NoneType, required"):
        interchange.set_state(layer, {"weight": None, "bias": [0.0, 0.0, 0.0]})
    weights = {"weight": np.full((2, 3), np.nan, "float32"), "bias": np.zeros(3, "float32")}
    interchange.set_state(layer, weights)
    assert np.isnan(layer.weight.data).all()
    for nothing in ("weights.safetensors", [("weight", weights["weight"])], None):
        with pytest.raises(TypeError, match="arrays must be a dictionary of arrays by name, not"):
            interchange.set_state(layer, nothing)


NAMES = {
    "per-head": ["w_q.0", "w_q.1", "w_k.0", "w_k.1", "w_v.0", "w_v.1"],
    "stacked": ["w_q", "w_k", "w_v"],
    "fused": ["w_qkv"],
    "double": ["w_q", "w_k", "w_v", "first_q", "first_k", "first_v"],
    "bilinear": ["w_qk", "w_v"],
}


@pytest.mark.parametrize("form", mh.projections.FORMS)
def test_every_form_gives_and_takes_its_weights_by_name(form, tmp_path, rng):
    one, other = (mh.MultiHeadAttention(4, 2, form=form, rng=seed, bias=False) for seed in (1, 2))
    assert list(interchange.state(one)) == [*NAMES[form], "w_o"]
    x = rng.standard_normal((2, 5, 4)).astype("float32")
    assert abs(one(x).data - other(x).data).max() > 0.1
    interchange.save(one, tmp_path / "weights")
    interchange.load(other, tmp_path / "weights")
    np.testing.assert_array_equal(one(x).data, other(x).data)


@pytest.mark.parametrize("here", mh.projections.FORMS)
@pytest.mark.parametrize("there", mh.projections.FORMS)
def test_weights_of_another_form_are_refused_by_its_name(here, there):
    model, source = gpt(1), gpt(2)
    model.blocks[1].attention = model.blocks[1].attention.convert(here)
    source.blocks[1].attention = source.blocks[1].attention.convert(there)
    weights = interchange.state(source)
    if here != there:
        message = (
            f'the projections of blocks.1.attention have the form "{there}" in the weights and '
            f'"{here}" in the module: its convert("{there}") is a copy that takes them; '
        )
        with pytest.raises(ValueError, match="do not fit") as failure:
            interchange.set_state(model, weights)
        assert message in str(failure.value)
        assert str(failure.value).count("the projections") == 1
        model.blocks[1].attention = model.blocks[1].attention.convert(there)
    interchange.set_state(model, weights)


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


def test_a_file_keeps_every_bit_name_shape_and_dtype(tmp_path):
    interchange.write(BITS, tmp_path / "bits")
    arrays = interchange.read(tmp_path / "bits")
    assert sorted(arrays) == sorted(BITS)
    for name, x in BITS.items():
        y = arrays[name]
        assert (y.dtype, y.shape, y.tobytes()) == (x.dtype, x.shape, x.tobytes()), name
        assert y.flags.writeable, name


def test_a_file_holds_the_numbers_however_they_lie_in_memory(tmp_path):
    x = np.arange(24.0).reshape(2, 3, 4)
    views = {"turned": x.T, "strided": x[:, ::2, ::-1], "big-endian": x.astype(">f8")}
    interchange.write(views, tmp_path / "views")
    for name, y in interchange.read(tmp_path / "views").items():
        np.testing.assert_array_equal(y, views[name])
        assert y.dtype == "float64"


def test_what_a_file_cannot_hold_is_named_at_once_and_the_old_file_stays(tmp_path):
    path = tmp_path / "weights"
    interchange.write({"x": np.ones(3)}, path)
    strange = {
        "a list": [1.0],
        "complex": np.ones(2, complex),
        "text": np.array(["a"]),
        "objects": np.array([object()]),
        "__metadata__": np.ones(2),
        3: np.ones(2),
    }
    with pytest.raises(ValueError, match="holds named arrays of real numbers") as failure:
        interchange.write(strange | {"fine": np.ones(1)}, path)
    for part in (
        "a list is a list",
        "complex is of complex128",
        "text is of <U1",
        "objects is of object",
        "'__metadata__' cannot be a name",
        "3 cannot be a name",
    ):
        assert part in str(failure.value)
    assert "fine" not in str(failure.value)
    np.testing.assert_array_equal(interchange.read(path)["x"], np.ones(3))
    assert list(tmp_path.iterdir()) == [path]


def safetensors(header, numbers=b""):
    """A file by the book: the length of the header, the header, the numbers."""
    header = json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + numbers


def test_bfloat16_is_read_as_float32_exactly_and_metadata_are_passed_over(tmp_path):
    patterns = np.arange(1 << 16, dtype="<u2")  # all numbers that there are
    header = {
        "__metadata__": {"format": "pt"},
        "x": {"dtype": "BF16", "shape": [256, 256], "data_offsets": [0, 1 << 17]},
    }
    (tmp_path / "bf16").write_bytes(safetensors(header, patterns.tobytes()))
    (name, x), *rest = interchange.read(tmp_path / "bf16").items()
    assert (name, x.dtype, x.shape, rest) == ("x", "float32", (256, 256), [])
    bits = x.view("uint32")
    np.testing.assert_array_equal(bits.reshape(-1), patterns.astype("uint32") << 16)
    assert x[0x3F, 0xC0] == 1.5  # 0x3FC0


def test_entries_that_numpy_lacks_are_named_at_once(tmp_path):
    header = {
        "a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "F8_E5M2", "shape": [1], "data_offsets": [1, 2]},
        "c": {"dtype": "U8", "shape": [1], "data_offsets": [2, 3]},
    }
    (tmp_path / "eight").write_bytes(safetensors(header, bytes(3)))
    with pytest.raises(ValueError, match=r"not read here: a is F8_E4M3; b is F8_E5M2$"):
        interchange.read(tmp_path / "eight")


def test_a_file_cut_off_anywhere_is_refused(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    interchange.save(mh.Linear(2, 3), whole)
    content = whole.read_bytes()
    for length in (*range(9), len(content) // 2, len(content) - 1):
        cut.write_bytes(content[:length])
        with pytest.raises(ValueError, match="not a whole one"):
            interchange.read(cut)
    cut.write_bytes(content + b"1")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        interchange.read(cut)


class Bomb:
    """Pickled, it makes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("kind", ["plain", "zipped", "array"])
def test_pickles_are_refused_unread(kind, tmp_path):
    path, made = tmp_path / "weights", tmp_path / "made"
    content = pickle.dumps({"weight": Bomb(made)})
    if kind == "zipped":  # as torch.save does
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
    assert made.exists()  # the bomb was live


def test_files_that_are_not_safetensors_are_refused(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"not weights at all")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        interchange.load(gpt(1), path)
    with pytest.raises(FileNotFoundError):
        interchange.load(gpt(1), tmp_path / "absent")
    with pytest.raises((IsADirectoryError, PermissionError)):
        interchange.load(gpt(1), tmp_path)
    with pytest.raises(PermissionError, match="cannot write"):
        interchange.save(gpt(1), tmp_path / "absent" / "weights")
