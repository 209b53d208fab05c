"""The chapters of the course: their numbers, names and notebooks."""

from .chapters import CHAPTERS, notebooks

__all__ = ["CHAPTERS", "notebooks"]
