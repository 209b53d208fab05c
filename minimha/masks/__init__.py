"""Typed masks: who may attend to whom, and where queries stand among keys."""

from .alignment import aligned, checked
from .intervals import Spans
from .kinds import (
    Band,
    Mask,
    broadcasts,
    causal,
    dense,
    documents,
    empty_rows,
    keys,
    padding,
    prefix,
    resolve,
    sliding_window,
    spans,
    typed,
)

__all__ = [
    "Band",
    "Mask",
    "Spans",
    "aligned",
    "broadcasts",
    "causal",
    "checked",
    "dense",
    "documents",
    "empty_rows",
    "keys",
    "padding",
    "prefix",
    "resolve",
    "sliding_window",
    "spans",
    "typed",
]
