"""Training language models: text and batches, the loop, checkpoints, evaluation, watching a run."""

from . import commands, data, sequence_tasks
from .loop import Training, estimate, evaluate, tokens_for
from .ranks import ParallelTraining
from .watching import Losses, attention_weights, printable, real_sentence, watch

__all__ = [
    "Losses", "ParallelTraining", "Training", "attention_weights", "commands", "data", "estimate",
    "evaluate", "printable", "real_sentence", "sequence_tasks", "tokens_for", "watch",
]  # fmt: skip
