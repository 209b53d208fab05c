"""Pictures show what they are given, and files are written whole or not at all."""

import numpy as np
import pytest

from minimha import pictures


@pytest.fixture
def weights(rng):
    w = rng.random((2, 3, 4, 4))
    return w / w.sum(-1, keepdims=True)


def test_each_head_has_its_heat_map_with_labels(weights):
    figure = pictures.attention_heads(weights, "a b\n")
    *maps, bar = figure.axes
    assert [axes.get_title() for axes in maps][:2] == ["layer 0, head 0", "layer 0, head 1"]
    for axes, expected in zip(maps, weights.reshape(6, 4, 4), strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), expected)
    for labels in (maps[0].get_yticklabels(), maps[3].get_xticklabels()):
        assert [label.get_text() for label in labels] == ["a", "␣", "b", "↵"]
    assert figure.get_supxlabel() == "key: attended to"
    assert figure.get_supylabel() == "query: attends"
    assert bar.get_ylabel() == "attention weight"


def test_words_label_one_layer_and_other_keys(weights):
    figure = pictures.attention_heads(
        weights[0][:, :2], ["the", "cat"], ["le", "chat", "noir", "."]
    )
    assert [axes.get_title() for axes in figure.axes[:3]] == ["head 0", "head 1", "head 2"]


def test_any_character_may_be_a_label(weights, tmp_path):
    pictures.save(pictures.attention_heads(weights, "$x^漢"), tmp_path / "heads.png")


def test_labels_that_do_not_match_are_refused(weights):
    with pytest.raises(ValueError, match=r"weights has shape \(2, 3, 4, 4\), the labels need"):
        pictures.attention_heads(weights, "abc")


@pytest.mark.parametrize("ending", pictures.FORMATS)
def test_a_picture_is_written(weights, ending, tmp_path):
    path = pictures.save(pictures.attention_heads(weights, "abcd"), tmp_path / f"heads{ending}")
    assert path.stat().st_size > 5000
    assert list(tmp_path.iterdir()) == [path]


def test_a_picture_that_fails_leaves_nothing_behind(weights, tmp_path, monkeypatch):
    figure = pictures.attention_heads(weights, "abcd")

    def fail(path, **_):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        pictures.save(figure, tmp_path / "heads.png")
    assert not list(tmp_path.iterdir())


def test_unusable_paths_are_refused(tmp_path):
    with pytest.raises(ValueError, match="ends in one of"):
        pictures.check_path(tmp_path / "heads.txt")
    with pytest.raises(PermissionError, match="cannot write"):
        pictures.check_path(tmp_path / "nowhere" / "heads.png")
