"""A picture of the tape: the operations in their order, with shapes and gradients.

Leaves are at the top, results at the bottom. Each step is one layer below the lowest of its
arguments. An arrow that crosses a layer gets a place of its own in that layer, unless its ends are
more than a dozen layers apart.
"""

from __future__ import annotations

import html
import itertools
import operator
import pathlib
from collections.abc import Iterator

from minimha_autograd import Tensor, backend
from minimha_autograd.tape import Edge, Node, ancestors, gone

from .heat import visible

LARGEST, LONGEST = 500, 12  # steps in a picture; layers that an arrow bends around
_CHARACTER, _LINE, _GAP, _LAYER, _ASIDE = 6.8, 16, 26, 84, 18  # in pixels, for letters of 12


def graph(tensor: Tensor, /, **names: Tensor) -> Graph:
    """A picture of how a Tensor was computed, with a box for each step: an operation, or a leaf, a
    Tensor that requires a gradient and was not computed from others. The picture is an SVG, which a
    notebook shows, and which `graph(…).save(path)` writes to a file.

    names  the names to show for Tensors: graph(y, x=x, w=w)

    Raises RuntimeError for a Tensor that does not require a gradient, ValueError for more than 500
    steps, which would be unreadable, and TypeError if anything but a Tensor is given a name.
    """
    for name, t in names.items():
        if not isinstance(t, Tensor):
            raise TypeError(f"graph: {name} must be a Tensor, not a {type(t).__name__}")
    return Graph(_drawn(tensor, {t._edge: visible(name) for name, t in names.items()}))


class Graph:
    """An SVG of how a Tensor was computed. A notebook shows it; `save` writes it to a file."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | pathlib.Path) -> pathlib.Path:
        """Write the SVG to a file, and return its path."""
        path = pathlib.Path(path)
        path.write_text(self.svg, encoding="utf-8")
        return path


class _Box:
    """A box in a layer of the picture: either a step of the computation, with its text, or a bend
    of an arrow that crosses the layer.

    lines  the lines of text; none for a bend
    layer  the number of the layer, counted downwards from 0
    above  the boxes in higher layers from which an arrow leads to this one
    """

    def __init__(self, lines: list[str], layer: int, above: list[_Box]) -> None:
        self.lines, self.layer, self.above = lines, layer, above
        self.below: list[_Box] = []
        self.width = max((len(line) for line in lines), default=0) * _CHARACTER + 16
        self.height = _LINE * (len(lines) or 3) + 8  # across a bend, the arrow is vertical
        self.x = 0.0

    @property
    def y(self) -> float:
        """The distance of the centre of the box from the top of the picture, in pixels."""
        return _LAYER * (self.layer + 0.6)


def _drawn(tensor: Tensor, names: dict[Edge | None, str]) -> str:
    if tensor._edge is None:
        raise RuntimeError("graph() of a Tensor that does not require a gradient: it has none")
    boxes = _boxes(tensor._edge, tensor.shape, names)
    layer = operator.attrgetter("layer")
    rows = [list(row) for _, row in itertools.groupby(sorted(boxes, key=layer), layer)]
    _arrange(rows)
    width = max(box.x + box.width / 2 for box in boxes) + _GAP
    height = _LAYER * (len(rows) + 0.2)
    parts = [_arrow(box, below, aside) for box in boxes for below, aside in _apart(box.below)]
    parts += [_figure(box) for box in boxes]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="12">'
        '<rect width="100%" height="100%" fill="#ffffff"/>'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#555555"/></marker></defs>'
        f"{''.join(parts)}</svg>"
    )


def _boxes(root: Edge, shape: tuple[int, ...], names: dict[Edge | None, str]) -> list[_Box]:
    """The boxes of the picture: one for each step, from the leaves to the result, and then one for
    each bend of an arrow. Each box is linked to the boxes above and below it.

    root   the edge of the result: the node that computed it, and which of the node's values it is
    shape  that of the result
    names  the names to show for Tensors, by their edges

    Raises ValueError for more than 500 steps.
    """
    nodes = ancestors(root[0])
    if len(nodes) > LARGEST:
        raise ValueError(f"a graph of more than {LARGEST} steps is too large to read as a picture")
    shapes: dict[Edge, tuple[int, ...] | None] = {root: shape}
    for node in nodes:
        shapes |= {e: n for e, n in zip(node.edges, node.shapes, strict=False) if e is not None}
    boxes: dict[Node, _Box] = {}
    for node in reversed(nodes):
        parents = [boxes[edge[0]] for edge in node.edges if edge is not None]
        layer = 1 + max((box.layer for box in parents), default=-1)
        boxes[node] = _Box(_lines(node, shapes, names), layer, parents)
    every = list(boxes.values())
    for box in sorted(every, key=lambda box: -box.layer):  # the highest user decides
        for parent in box.above:
            if not parent.above:  # a leaf comes down to where it is used
                parent.layer = box.layer - 1
    return every + _bends(every)


def _bends(boxes: list[_Box]) -> list[_Box]:
    """Link each box to the boxes below it; it is already linked to those above it. Returns new
    boxes for the bends of arrows: one in each layer that an arrow crosses, unless the ends of the
    arrow are more than LONGEST, 12, layers apart. The links along an arrow lead through its
    bends."""
    bends = []
    for box in boxes:
        for k, parent in enumerate(box.above):
            last = parent
            if box.layer - parent.layer <= LONGEST:
                for layer in range(parent.layer + 1, box.layer):
                    bend = _Box([], layer, [last])
                    last.below.append(bend)
                    bends.append(bend)
                    last = bend
            last.below.append(box)
            box.above[k] = last
    return bends


def _lines(
    node: Node, shapes: dict[Edge, tuple[int, ...] | None], names: dict[Edge | None, str]
) -> list[str]:
    """The lines of text in the box of a node: its operation, the names and shapes of its values,
    and their gradients once they are computed. The shapes and names are given by edge, (node,
    number of the value)."""
    values = [(node, k) for k in range(node.values)]
    name = ", ".join(names[value] for value in values if value in names)
    operation = "leaf" if node.function is None else node.signature.name
    made = "freed by backward()" if node.function is gone else operation
    lines = [f"{name}: {made}" if name else made]
    lines.append(", ".join(str(tuple(shapes[v] or ())) for v in values if v in shapes))
    for grad in node.grads or ():
        if grad is not None:
            gradient = backend.to_numpy(grad)
            few = " ".join(f"{value:.4g}" for value in gradient.ravel()[:4])
            lines.append(
                f"grad {few if gradient.size <= 4 else f'up to {abs(gradient).max():.4g}'}"
            )
    return lines


def _arrange(rows: list[list[_Box]]) -> None:
    """Order the boxes of each row, in place, by the mean position of the boxes that they are linked
    to, in several passes down and up. Then set x of each box, so that the rows are centred."""
    for sweep in range(8):
        for row in rows if sweep % 2 else reversed(rows):
            for box in row:
                near = box.above if sweep % 2 else box.below
                box.x = sum(b.x for b in near) / len(near) if near else box.x
            row.sort(key=lambda box: box.x)
            for place, box in enumerate(row):
                box.x = place - len(row) / 2
    widths = [sum(box.width + _GAP for box in row) for row in rows]
    for row, width in zip(rows, widths, strict=True):
        left = (max(widths) - width) / 2 + _GAP
        for box in row:
            box.x = left + box.width / 2
            left += box.width + _GAP


def _apart(below: list[_Box]) -> Iterator[tuple[_Box, float]]:
    """Yield each of the boxes below a box, with the distance in pixels by which to shift the arrow
    to it sideways. A step that uses a value twice, such as x · x, is twice in the list `below`, and
    gets two arrows side by side."""
    for k, box in enumerate(below):
        yield box, _ASIDE * (below[:k].count(box) - (below.count(box) - 1) / 2)


def _arrow(box: _Box, below: _Box, aside: float) -> str:
    x, y = box.x + aside, box.y + box.height / 2
    to_x, to_y = below.x + aside, below.y - below.height / 2
    middle, tip = (y + to_y) / 2, ' marker-end="url(#tip)"' if below.lines else ""
    return (
        f'<path d="M{x:.1f} {y:.1f}C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} '
        f'{to_x:.1f} {to_y:.1f}" fill="none" stroke="#555555"{tip}/>'
    )


def _figure(box: _Box) -> str:
    if not box.lines:
        start = box.y - box.height / 2
        return f'<path d="M{box.x:.1f} {start:.1f}v{box.height}" fill="none" stroke="#555555"/>'
    fill = "#dbe9f6" if not box.above else "#f4f4f4" if box.below else "#fdebd0"
    left, top = box.x - box.width / 2, box.y - box.height / 2
    text = "".join(
        f'<text x="{box.x:.1f}" y="{top + _LINE * (k + 0.95):.1f}" text-anchor="middle" '
        f'font-weight="{"normal" if k else "bold"}">{html.escape(line)}</text>'
        for k, line in enumerate(box.lines)
    )
    corner = 7 if box.above else 0
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{box.width:.1f}" height="{box.height}" '
        f'rx="{corner}" fill="{fill}" stroke="#333333"/>{text}'
    )
