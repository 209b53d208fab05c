"""The picture of a graph."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import minimha as mh
from minimha.pictures import graph

SVG = "{http://www.w3.org/2000/svg}"


def made():
    x = mh.Tensor(np.ones((2, 3)), requires_grad=True)
    w = mh.Tensor(np.full((3, 4), 0.5), requires_grad=True)
    a, b = (x @ w).tanh().split(2, axis=1)
    return x, w, (a * b).sum() + w.sum()


def texts(svg):
    return [node.text for node in ET.fromstring(svg).iter(f"{SVG}text")]


def arrows(root):
    paths = [path.get("d") for path in root.iter(f"{SVG}path") if path.get("stroke")]
    return [path for path in paths if "C" in path]


def test_a_name_may_contain_any_characters():
    x, _, y = made()
    names = {"self": y, "a\x00<b>&\ud800": x}
    assert "a�<b>&�: leaf" in texts(graph(y, **names).svg)


def test_the_graph_names_operations_and_shapes():
    x, _, y = made()
    shown = texts(graph(y, x=x).svg)
    steps = {"x: leaf", "leaf", "matmul", "tanh", "split", "(2, 2), (2, 2)", "multiply", "(3, 4)"}
    assert steps <= set(shown)
    assert shown.count("sum") == 2
    assert not any(text.startswith("grad") for text in shown)


def test_the_graph_shows_gradients_once_they_are_computed():
    x, w, y = made()
    y.backward(retain_graph=True)
    shown = texts(graph(y, x=x, w=w).svg)
    assert "grad 1" in shown
    assert f"grad up to {abs(x.grad).max():.4g}" in shown


def test_boxes_do_not_overlap_and_arrows_point_down():
    *_, y = made()
    root = ET.fromstring(graph(y).svg)
    boxes = []
    for box in root.iter(f"{SVG}rect"):
        if box.get("stroke"):
            left, top, width, height = (float(box.get(k)) for k in ("x", "y", "width", "height"))
            boxes.append((left, top, left + width, top + height))
    assert len(boxes) == 9
    for k, (left, top, right, bottom) in enumerate(boxes):
        assert 0 <= left < right <= float(root.get("width"))
        assert 0 <= top < bottom <= float(root.get("height"))
        for x, y, x1, y1 in boxes[:k]:
            assert left >= x1 or x >= right or top >= y1 or y >= bottom
    for path in arrows(root):
        numbers = [float(n) for n in re.findall(r"-?\d+\.\d", path)]
        assert numbers[-1] > numbers[1]


def test_a_value_that_is_used_twice_has_two_arrows():
    x = mh.Tensor(3.0, requires_grad=True)
    for y, expected in ((x * x, 2), (x * 2, 1)):
        found = arrows(ET.fromstring(graph(y).svg))
        assert len(found) == len(set(found)) == expected


def test_the_graph_is_shown_in_a_notebook_and_can_be_saved(tmp_path):
    *_, y = made()
    picture = graph(y)
    path = picture.save(tmp_path / "graph.svg")
    assert path.read_text(encoding="utf-8") == picture._repr_svg_() == picture.svg


def test_a_freed_graph_raises_an_error_that_says_so():
    x, *_ = made()
    middle = x * 2.0
    middle.sum().backward()
    assert "freed by backward()" in texts(graph(middle * 3.0).svg)


def test_values_that_cannot_be_drawn_are_refused():
    with pytest.raises(RuntimeError, match="does not require a gradient"):
        graph(mh.Tensor([1.0]))
    y = mh.Tensor([1.0], requires_grad=True)
    with pytest.raises(TypeError, match="graph: w must be a Tensor, not a int"):
        graph(y, w=3)
    for _ in range(501):
        y = y + 1.0
    with pytest.raises(ValueError, match="more than 500 steps"):
        graph(y)


def test_an_operation_with_several_values_is_one_step():
    x = mh.Tensor(np.arange(4.0), requires_grad=True)
    first, second = x.split(2)
    y = (first * second).sum()
    y.backward(retain_graph=True)
    shown = texts(graph(y, first=first, second=second).svg)
    k = shown.index("first, second: split")
    assert shown[k + 1 : k + 4] == ["(2,), (2,)", "grad 2 3", "grad 0 1"]
    assert texts(graph(first, first=first).svg).count("first: split") == 1
