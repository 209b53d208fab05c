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

from typing import TYPE_CHECKING, Any

from .heat import attention_heads, heat_map
from .hover import Attention, attention_html
from .masks import mask
from .saved import FORMATS, check_path, save, svg

if TYPE_CHECKING:
    from .forms import costs

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


def __getattr__(name: str) -> Any:
    """`costs` is loaded when it is asked for, and with it what counts them."""
    if name == "costs":
        from .forms import costs

        return costs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
