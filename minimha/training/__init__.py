"""Training language models: text and batches, the loop, checkpoints, evaluation."""

from . import data
from .loop import Training, estimate, evaluate, tokens_for

__all__ = ["Training", "data", "estimate", "evaluate", "tokens_for"]
