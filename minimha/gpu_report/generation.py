"""How many tokens per second a GPT generates on the GPU, and with NumPy on the machine's CPU."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from minimha_autograd import backend

from ..transformers import GPT, stream
from . import measuring
from .measuring import Row, Sizes
from .training_step import model_and_batch

LONGEST = 15.0
"""Seconds after which generation stops."""


def generation(sizes: Sizes) -> Iterator[Row]:
    """Yield a row for the CPU and one for the GPU: how many tokens per second a GPT of these sizes
    generates with a cache, in a single sequence that starts with one token."""
    model, _, _ = model_and_batch(sizes)
    for name in ("numpy", "cupy"):
        row: Row = {"library": name}
        with measuring.failure_noted(row):
            model.to(name)
            draw(model, name, 4)  # compiles the kernels

            start = time.perf_counter()
            drawn = draw(model, name, sizes.tokens)
            seconds = time.perf_counter() - start

            row |= {"tokens": drawn, "seconds": seconds, "tokens/s": drawn / seconds}
            row["attention"] = measuring.attention_of(lambda: draw(model, name, drawn))  # noqa: B023
        yield row


def draw(model: GPT, library: str, count: int) -> int:
    """Generate tokens with a model whose parameters are arrays of this array library, until there
    are `count` tokens or 15 seconds have passed. Returns how many were generated."""
    first = backend.library(library).asarray(np.zeros((1, 1), "int64"))
    end = time.perf_counter() + LONGEST
    drawn = 0
    for _ in stream(model, first, count, temperature=0):
        drawn += 1
        if time.perf_counter() > end:
            break
    return drawn
