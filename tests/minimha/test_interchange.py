"""Weights survive a round trip exactly, and what does not fit is named."""

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


def test_transposed_weights_are_saved_as_they_read(tmp_path):
    layer = mh.Linear(3, 3, rng=1)
    layer.weight.data = layer.weight.data.T
    interchange.save(layer, tmp_path / "layer.safetensors")
    other = mh.Linear(3, 3, rng=2)
    interchange.load(other, tmp_path / "layer.safetensors")
    np.testing.assert_array_equal(other.weight.data, layer.weight.data)


def test_the_state_is_a_copy():
    model = gpt(1)
    interchange.state(model)["head.weight"][:] = 0
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


def test_files_that_are_not_safetensors_are_refused(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"not weights at all")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        interchange.load(gpt(1), path)
    with pytest.raises(FileNotFoundError):
        interchange.load(gpt(1), tmp_path / "absent")
    with pytest.raises(PermissionError, match="cannot write"):
        interchange.save(gpt(1), tmp_path / "absent" / "weights")
