"""Pictures show their input, and files are written completely or not at all."""

import numpy as np
import pytest

from minimha import masks, pictures
from minimha.pictures.saving import check_path


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


def test_words_and_any_characters_can_be_labels(weights, tmp_path):
    figure = pictures.attention_heads(weights[0][:, :2], ["$x^", "漢"], "a_b{", title="$x^$")
    assert [axes.get_title() for axes in figure.axes[:3]] == ["head 0", "head 1", "head 2"]
    pictures.save(figure, tmp_path / "heads.png")


def test_labels_that_do_not_match_are_refused(weights):
    with pytest.raises(ValueError, match=r"weights has shape \(2, 3, 4, 4\), the labels need"):
        pictures.attention_heads(weights, "abc")


@pytest.mark.parametrize(
    "ending", [".svg", *(pytest.param(e, marks=pytest.mark.thorough) for e in (".png", ".pdf"))]
)
def test_a_picture_is_saved(weights, ending, tmp_path):
    path = pictures.save(pictures.attention_heads(weights, "abcd"), tmp_path / f"heads{ending}")
    assert path.stat().st_size > 5000
    assert list(tmp_path.iterdir()) == [path]


def test_a_picture_that_fails_leaves_no_file(weights, tmp_path, monkeypatch):
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
        check_path(tmp_path / "heads.txt")
    with pytest.raises(PermissionError, match="cannot write"):
        check_path(tmp_path / "nowhere" / "heads.png")


def test_a_mask_is_drawn_entry_by_entry():
    mask = masks.causal() & masks.padding([3, 5])
    figure = pictures.mask(mask, (2, 4, 5, 5))
    assert [axes.get_title() for axes in figure.axes] == ["sequence 0", "sequence 1"]
    for n, axes in enumerate(figure.axes):
        np.testing.assert_array_equal(axes.images[0].get_array(), mask.array((2, 4, 5, 5))[n, 0])
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("key", "query")
        assert axes.images[0].cmap(0)[:3] == (1, 1, 1)
        assert axes.images[0].cmap(1)[:3] == pytest.approx((8 / 255, 48 / 255, 107 / 255))
    assert figure.get_suptitle() == "causal() & padding([3, 5])"


def test_blocks_are_marked_empty_full_or_partial():
    figure = pictures.mask(masks.causal(offset=-1), (5, 7), block=(2, 3))
    (axes,) = figure.axes
    marks = {(*p.get_xy(), p.get_width(), p.get_height()): p.get_hatch() for p in axes.patches}
    empty, full, partial = "//", "xx", None
    assert marks == {
        (-0.5, -0.5, 3, 2): partial, (2.5, -0.5, 3, 2): empty, (5.5, -0.5, 1, 2): empty,
        (-0.5, 1.5, 3, 2): partial, (2.5, 1.5, 3, 2): empty, (5.5, 1.5, 1, 2): empty,
        (-0.5, 3.5, 3, 1): full, (2.5, 3.5, 3, 1): partial, (5.5, 3.5, 1, 1): empty,
    }  # fmt: skip
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["empty", "full", "partial"]


def test_of_many_heads_the_first_four_masks_are_drawn():
    mask = masks.dense(np.ones((5, 3, 4, 4), dtype=bool))
    figure = pictures.mask(mask, title="all")
    names = [axes.get_title() for axes in figure.axes]
    assert names[:2] == ["sequence 0, head 0", "sequence 0, head 1"]
    assert figure.get_suptitle() == "all (the first 4 of 15)"


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (0, 2, 3, 3), (2, 0, 3, 3), (1, 1)])
def test_a_mask_of_any_size_is_drawn(shape, tmp_path):
    figure = pictures.mask(masks.causal(offset=0), shape, block=(2, 2))
    assert pictures.save(figure, tmp_path / "mask.png").exists()


@pytest.mark.parametrize(
    ("mask", "shape"),
    [
        (masks.causal(), (8, 8)),
        (masks.padding([3, 6]), (2, 1, 6, 6)),
        (masks.prefix([1, 4]), (2, 1, 8, 8)),
        (masks.keys(np.ones((2, 6), dtype=bool)), (2, 1, 6, 6)),
        (masks.documents([[1, 1, 2]], [[1, 2, 2, 2]]), (1, 1, 3, 4)),
        (masks.dense(np.ones((4, 1), dtype=bool)), (4, 4)),
        (~masks.causal() & masks.padding([3, 5]).at(0), (2, 1, 5, 5)),
    ],
)
def test_a_notebook_draws_a_mask_in_the_smallest_shape_that_fits(mask, shape):
    assert pictures.masks.small_shape(mask) == shape
    assert "<svg" in mask._repr_svg_()


@pytest.mark.parametrize(("shape", "drawn"), [((3, 1, 64, 64), True), ((65, 64), False)])
def test_a_notebook_draws_up_to_4096_pairs_of_each_sequence(shape, drawn):
    mask = masks.dense(np.ones(shape, dtype=bool))
    assert (mask._repr_svg_() is not None) == drawn


def test_a_mask_that_cannot_be_drawn_shows_its_repr():
    larger_than_a_picture = masks.padding([100_000])
    unfitting = masks.padding([1, 2]) & masks.padding([1, 2, 3])
    needs_fewer_queries = masks.documents([0, 0, 1, 1]).at(2)
    for mask in (larger_than_a_picture, unfitting, masks.documents(3), needs_fewer_queries):
        assert mask._repr_svg_() is None


def test_losses_are_drawn_over_their_steps_with_a_running_mean():
    training = 3 + np.sin(np.arange(160.0))
    figure = pictures.losses(training, {50: 3.5, 160: 3.25})
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "loss (nats per token)")
    each, mean, validation = axes.lines
    np.testing.assert_array_equal(each.get_xydata(), np.c_[1:161, training])
    expected = [training[max(0, k - 2) : k + 1].mean() for k in range(160)]  # 3 = 160 // 50
    np.testing.assert_allclose(mean.get_xydata(), np.c_[1:161, expected])
    np.testing.assert_array_equal(validation.get_xydata(), [[50, 3.5], [160, 3.25]])
    assert [text.get_text() for text in axes.get_legend().texts] == ["training", "validation"]
    resumed = pictures.losses({40: 2.0, 41: 1.0})
    np.testing.assert_array_equal(resumed.axes[0].lines[0].get_xydata(), [[40, 2], [41, 1]])
