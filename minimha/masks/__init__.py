"""Typed masks: which query may attend to which key, and the positions of queries among keys.

    masks.causal() & masks.padding([5, 3])

A mask is a rule, True = may attend. Combine masks with & | ~.
"""

from .kinds import causal, dense, documents, keys, padding, prefix, sliding_window
from .mask import KeyIntervals, Mask
from .queries import empty_rows, key_intervals, resolve

__all__ = [
    "KeyIntervals", "Mask", "causal", "dense", "documents", "empty_rows", "key_intervals", "keys",
    "padding", "prefix", "resolve", "sliding_window",
]  # fmt: skip
