"""The tasks of the course: a file a chapter, in the order in which they are done."""

from . import (  # noqa: F401
    ch01_arrays,
    ch02_autograd,
    ch03_gradient_checks,
    ch04_projections,
    ch05_attention,
    ch06_masks,
    ch07_multihead,
    ch11_speed,
)
