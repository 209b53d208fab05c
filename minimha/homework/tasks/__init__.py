"""The tasks of the course: a file a chapter, in the order in which they are done."""

from . import ch05_attention, ch07_multihead  # noqa: F401
