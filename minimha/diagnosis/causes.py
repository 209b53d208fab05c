"""What a diagnosis consists of: the nodes at fault, and the likely mistake at each."""

from __future__ import annotations

from typing import NamedTuple

UNEXPLAINED = "unexplained"
ALL_PAIRS = (
    "with more than two axes, np.dot and np.inner multiply all pairs of matrices; write a @ b, or "
    "a @ b.mT for np.inner(a, b): @ multiplies only matrices with the same batch index"
)
"""A sentence about what np.dot does and @ does not. NumPy may deprecate such calls of np.dot:
https://github.com/numpy/numpy/issues/31725."""
_CAUSES = {
    "01 arrays": """averaged unsummed reshape-for-swap""",
    "02 autograd": """zero path-missing path-twice transposed another-input slope-missing
        operand-transposed operand-wrong all-pairs not-linear""",
    "03 gradient-checks": """kink""",
    "05 attention": """scale scale-twice softmax-row-term softmax-without-p softmax-mean
        softmax-axis softmax-diagonal dropout-unscaled dropout-ignored dropout-redrawn""",
    "06 masks": """mask-ignored not-finite""",
    "07 multi-head": """groups-mean groups-one-member groups-interleaved
        groups-unsummed""",
    "08 positions": """rope-direction rope-ignored""",
    "09 training": """norm-mean-term norm-variance-term norm-both-terms norm-gain norm-sigma
        target-missing repeats-overwritten""",
    "13 many-machines": """counted-per-rank all-reduce-missing""",
}
CHAPTERS = {cause: chapter for chapter, causes in _CAUSES.items() for cause in causes.split()}
"""The chapter to read about each cause."""


class Cause(NamedTuple):
    """A likely mistake: its short name, and a sentence for the reader."""

    name: str
    text: str


class WrongGradient(NamedTuple):
    """What is wrong with the gradient of one node: the node's name; the nodes computed from it,
    whose gradients are right; the likely cause, by its short name or as "unexplained"; a sentence
    about it; and the chapter to read, "" if there is none."""

    node: str
    after: tuple[str, ...]
    cause: str
    text: str
    chapter: str


class Diagnosis(NamedTuple):
    """All nodes whose formulas are at fault, the last computed first, and what is wrong at each.
    `cause`, `text` and `chapter` are those of the first node. `facts` is the message without any
    guess."""

    nodes: tuple[str, ...]
    cause: str
    text: str
    chapter: str
    wrong_gradients: tuple[WrongGradient, ...]
    facts: str = ""
