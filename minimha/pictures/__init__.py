"""Pictures of what attention does. matplotlib is loaded when the first one is drawn.

    heat_map         a matrix with its tokens: scores, weights, gradients
    attention_heads  the weights of every head, in a grid
    attention_html   the same for a notebook: point at a query to see which keys it attends to
    mask             a mask and its blocks; a notebook shows a small mask by itself
    data_flow        how data flows through a layer: arrays with their axes, operations, gradients
    graph            the tape: how a Tensor was computed, with shapes and gradients
    costs            parameters, flop and time of the forms of the projections, and where they cross
    losses           training and validation loss over the steps
    save, svg        a figure as a file, as text

`report.plot()` draws the V-curve of a gradient check.
"""

from .costs import costs
from .flow import data_flow
from .heat import attention_heads, heat_map
from .interactive import Attention, attention_html
from .losses import losses
from .masks import mask
from .saving import save, svg
from .tape import graph

__all__ = [
    "Attention", "attention_heads", "attention_html", "costs", "data_flow", "graph", "heat_map",
    "losses", "mask", "save", "svg",
]  # fmt: skip
