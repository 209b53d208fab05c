"""What forms of the projections and paths of attention cost."""

from .model import (
    LINES,
    Comparison,
    Cost,
    Machine,
    Setting,
    Step,
    attention,
    calibrate,
    compare,
    multi_head,
    projections,
)

__all__ = [
    "LINES",
    "Comparison",
    "Cost",
    "Machine",
    "Setting",
    "Step",
    "attention",
    "calibrate",
    "compare",
    "multi_head",
    "projections",
]
