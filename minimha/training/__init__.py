"""Training language models: text and batches, the loop, checkpoints, evaluation, watching a run."""

from . import data, sequence_tasks
from .loop import Training, evaluate
from .parallel_training import ParallelTraining
from .watching import Losses, watch

__all__ = [
    "Losses", "ParallelTraining", "Training", "data", "evaluate", "sequence_tasks",
    "watch",
]  # fmt: skip
