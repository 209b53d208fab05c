"""The tasks of the course, in order. Each chapter has two files: the tasks with their checks, and
their usual mistakes."""

from . import (  # noqa: F401
    ch01_arrays,
    ch01_mistakes,
    ch02_autograd,
    ch02_mistakes,
    ch03_gradient_checks,
    ch03_mistakes,
    ch04_mistakes,
    ch04_projections,
    ch05_attention,
    ch05_mistakes,
    ch06_masks,
    ch06_mistakes,
    ch07_mistakes,
    ch07_multihead,
    ch08_mistakes,
    ch08_positions,
    ch09_mistakes,
    ch09_training,
    ch10_debugging,
    ch10_mistakes,
    ch11_mistakes,
    ch11_speed,
    ch12_gpu,
    ch12_mistakes,
)
