"""The tasks of the course: a file a chapter, in the order in which they are done."""

from . import (
    ch03_gradient_checks,  # noqa: F401
    ch05_attention,  # noqa: F401
)
