"""Diagrams of data flow show every entry of their table."""

import pytest

from minimha import pictures

ROWS = [["x (T, M)"], ["q (T, D)", "k (T, D)"], ["scores (T, T)"]]
ARROWS = [("x", "q", "@ W", "dq"), ("x", "k", "@ U"), ("q", "scores", "dot"), ("k", "scores", "")]


def arrows_of(figure):
    return [text for text in figure.axes[0].texts if getattr(text, "arrow_patch", None)]


def test_boxes_name_arrays_and_axes_and_arrows_name_operations():
    texts = [text.get_text() for text in pictures.data_flow(ROWS, ARROWS).axes[0].texts]
    assert {"x\n(T, M)", "q\n(T, D)", "scores\n(T, T)", "@ W", "@ U", "dot", "dq"} <= set(texts)


def test_a_gradient_is_a_dashed_arrow_back():
    forward, backward, *others = arrows_of(pictures.data_flow(ROWS, ARROWS))
    assert len(others) == 3
    assert forward.xy[1] < forward.xyann[1]  # points down
    assert backward.xy[1] > backward.xyann[1]
    assert forward.arrow_patch.get_linestyle() != backward.arrow_patch.get_linestyle()


def test_arrows_from_a_box_alone_in_its_row_are_straight():
    for arrow in arrows_of(pictures.data_flow(ROWS, ARROWS)):
        assert arrow.xy[0] == pytest.approx(arrow.xyann[0])


def test_tables_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="no box has the name 'y'; there are x, q, k, scores"):
        pictures.data_flow(ROWS, [("x", "y", "@ W")])
    with pytest.raises(ValueError, match="two boxes have the name 'x'"):
        pictures.data_flow([["x (T, M)"], ["x (T, D)"]], [])
