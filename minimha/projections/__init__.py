"""The linear maps of Q, K and V: operations, the forms that hold the weights, conversions."""

from .forms import FORMS, Projections, Sizes, form_named
from .operations import merge_heads, project_fused, project_in, project_out, split_heads

__all__ = [
    "FORMS",
    "Projections",
    "Sizes",
    "form_named",
    "merge_heads",
    "project_fused",
    "project_in",
    "project_out",
    "split_heads",
]
