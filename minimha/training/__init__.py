"""Training language models: text and batches, the loop, evaluation, sampling."""

from . import data
from .loop import LanguageModel, evaluate, sample, tokens_for, train

__all__ = ["LanguageModel", "data", "evaluate", "sample", "tokens_for", "train"]
