"""A heat map shows each number at its tokens, in colours and signs that remain legible in print."""

import numpy as np
import pytest
from contrast import contrast

import minimha as mh
from minimha import pictures
from minimha.pictures.heat import _colours


def drawn(figure):
    """The panel of a heat map, and the texts of its cells by row and column."""
    panel = figure.axes[0]
    return panel, {(round(t.get_position()[1]), round(t.get_position()[0])): t for t in panel.texts}


def labels(axis):
    return [label.get_text() for label in axis]


def test_row_and_column_labels_are_the_tokens():
    data = np.arange(6.0).reshape(2, 3) / 5
    columns = ["a", " ", "$x^$"]
    figure = pictures.heat_map(data, ["the", "\n"], columns, label="weight", title="$x^$")
    figure.draw_without_rendering()  # dollar signs would start a formula
    panel, cells = drawn(figure)
    assert labels(panel.get_yticklabels()) == ["the", "↵"]
    assert labels(panel.get_xticklabels()) == ["a", "␣", "$x^$"]
    assert (figure.get_supylabel(), figure.get_supxlabel()) == ("query", "key")
    assert figure.axes[1].get_ylabel() == "weight"
    np.testing.assert_array_equal(panel.images[0].get_array(), data)
    assert {at: t.get_text() for at, t in cells.items()} == {
        (0, 0): "0.00", (0, 1): "0.20", (0, 2): "0.40",
        (1, 0): "0.60", (1, 1): "0.80", (1, 2): "1.00",
    }  # fmt: skip


def test_columns_use_the_row_labels_if_the_matrix_is_square():
    panel, _ = drawn(pictures.heat_map(np.eye(2), "ab"))
    assert labels(panel.get_xticklabels()) == ["a", "b"]
    figure = pictures.heat_map(np.ones((2, 3)), "ab", axes=("width", "position"))
    assert labels(figure.axes[0].get_xticklabels()) == ["0", "1", "2"]
    assert (figure.get_supylabel(), figure.get_supxlabel()) == ("width", "position")


def test_position_numbers_do_not_overlap():
    panel, cells = drawn(pictures.heat_map(np.ones((40, 3))))
    assert list(filter(None, labels(panel.get_yticklabels()))) == [str(n) for n in range(0, 40, 4)]
    assert not cells


@pytest.mark.parametrize(
    ("data", "limits"),
    [
        ([[0.0, 1.0]], (0, 1)),  # weights
        ([[0.2, 0.3]], (0, 1)),
        ([[-0.25, 0.5]], (-0.5, 0.5)),
        ([[8.0, 4.0]], (-8, 8)),
        ([[0.0, -np.inf]], (0, 1)),
        ([[-2.0, np.nan]], (-2, 2)),
    ],
)
def test_white_is_zero(data, limits):
    (image,) = pictures.heat_map(data).axes[0].images
    assert image.get_clim() == limits
    assert contrast(image.to_rgba(np.zeros(1))[0], (1, 1, 1)) < 1.1


def test_larger_values_are_darker_in_grey():
    """Every tenth of the scale is darker by at least 4% of the range from white to black."""
    for signed, first, last in ((False, 0, 1), (True, 0.5, 1), (True, 0.5, 0)):
        colours = _colours(signed)(np.linspace(first, last, 11))
        grey = colours[:, :3] @ (0.299, 0.587, 0.114)  # as on a photocopy
        assert (np.diff(grey) < -0.04).all(), grey


def test_colour_blind_readers_can_tell_the_signs_apart():
    """Orange and blue of equal magnitude differ in blue by a third of the scale. Everyone can see
    this except the very few without cones for blue, who can rely on the minus."""
    sizes = np.linspace(0.4, 0.8, 9)
    below, above = (_colours(True)(0.5 + sign * sizes / 2) for sign in (-1, 1))
    assert ((above[:, 2] - above[:, 0]) - (below[:, 2] - below[:, 0]) > 1 / 3).all()


@pytest.mark.parametrize("signed", [False, True])
def test_every_number_is_legible_on_its_colour(signed):
    data = np.linspace(-1 if signed else 0, 1, 144).reshape(12, 12)
    panel, cells = drawn(pictures.heat_map(data))
    assert len(cells) == 144
    for at, text in cells.items():
        ink = {"black": (0, 0, 0), "white": (1, 1, 1)}[text.get_color()]
        assert contrast(panel.images[0].to_rgba(data)[at], ink) > 4.5  # WCAG's AA


def test_a_minus_marks_negative_cells_without_a_number():
    data = np.zeros((13, 20))
    data[2, 5], data[3, 1], data[4, 4], data[0, 7] = -1.0, 1.0, -0.01, np.nan
    panel = pictures.heat_map(data).axes[0]
    minus, cross = panel.collections
    np.testing.assert_array_equal(minus.get_offsets(), [[5, 2]])
    np.testing.assert_array_equal(cross.get_offsets(), [[7, 0]])


def test_infinite_and_nan_scores_are_labelled(tmp_path):
    figure = pictures.heat_map([[2.0, -np.inf], [np.inf, np.nan]])
    _, cells = drawn(figure)
    assert [t.get_text() for t in cells.values()] == ["2", "−∞", "∞", "NaN"]
    pictures.save(figure, tmp_path / "scores.png")


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0.0012, "−0.0012"), (0.75, "−0.75"), (8.5, "−8.5"), (1234.5, "−1234"), (1.2e-9, "−1e-09")],
)
def test_numbers_are_rounded_to_two_digits_of_the_largest(size, expected):
    _, cells = drawn(pictures.heat_map([[-size, 0.0]]))
    assert cells[0, 0].get_text() == expected.replace("e-", "e−")


def test_tensors_and_integer_arrays_can_be_drawn():
    pictures.heat_map(mh.Tensor(np.eye(3), requires_grad=True), "abc")
    _, cells = drawn(pictures.heat_map(np.array([[True, False]])))
    assert [t.get_text() for t in cells.values()] == ["1", "0"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_arrays_of_16_bits_can_be_drawn(dtype):
    pytest.importorskip("ml_dtypes" if dtype == "bfloat16" else "numpy")  # it adds the dtype
    weights = np.array([[0.5, 0.25]]).astype(dtype)
    _, cells = drawn(pictures.heat_map(weights))
    _, expected = drawn(pictures.heat_map(weights.astype("float64")))
    assert [t.get_text() for t in cells.values()] == [t.get_text() for t in expected.values()]
    pictures.attention_heads(weights[None], "a", "bc")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((2, 3, 4)),), r"array has shape \(2, 3, 4\) .* a heat map shows one matrix"),
        ((np.ones((0, 3)),), r"array has shape \(0, 3\)"),
        ((np.ones((2, 2)) * 1j,), "dtype complex128"),
        ((np.ones((2, 3)), "abc"), r"array has shape \(2, 3\), rows has 3 labels: it needs T = 2"),
        ((np.ones((2, 3)), "ab", "ab"), r"columns has 2 labels: it needs S = 3"),
    ],
)
def test_inputs_that_are_no_matrix_with_matching_tokens_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        pictures.heat_map(*arguments)
