"""Pictures of what attention does. matplotlib is loaded when the first one is drawn.

    heat_map         a matrix with its tokens: scores, weights, gradients
    attention_heads  the weights of every head, in a grid
    attention_html   the same for a notebook: point at a query to see whom it attends to
    mask             a mask and its blocks; `Mask.draw`, and every mask shows itself
    costs            parameters, flop and time of the forms of the projections, and where they cross
    save, svg        a figure as a file, as text

Others belong to what they show: `Tensor.graph` draws the tape, `report.plot()` the V-curve of a
gradient check, `mh.cost.compare(…).plot()` the times over three sizes at once.
"""

from .forms import costs
from .heat import attention_heads, heat_map
from .hover import Attention, attention_html
from .masks import mask
from .saved import FORMATS, check_path, save, svg

__all__ = [
    "FORMATS",
    "Attention",
    "attention_heads",
    "attention_html",
    "check_path",
    "costs",
    "heat_map",
    "mask",
    "save",
    "svg",
]
