"""What the parts of the report share: sizes, times measured with CUDA events, which implementation
of attention ran, and tables in Markdown."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..attention import IMPLEMENTATIONS, Arguments, explain_dispatch, implementation
from ..kernels.attention import why_it_failed

Row = dict[str, Any]
"""A measurement: its values by the names of their columns."""

Prepared = tuple[Callable[[], Any], Callable[[], float]]
"""A function to time, and a function that returns its peak memory in bytes."""

TORCH_DEVICE = "cuda"


class Sizes(NamedTuple):
    """The sizes of what the report measures.

    length       T = S for the errors of attention
    lengths      T = S for the times of attention
    batch_heads  B·H for the times of attention
    widths       D for the errors and the times of attention
    layers       number of blocks of a GPT
    width        M of the GPT
    context      T of the GPT
    batch        number of sequences in a training step of the GPT
    steps        number of training steps that are timed
    tokens       how many tokens the GPT generates at most
    """

    length: int = 200  # T = S for the errors of attention
    lengths: tuple[int, ...] = (1024, 4096)  # T = S for its times
    batch_heads: int = 64  # B·H for its times
    widths: tuple[int, ...] = (64, 128)  # D
    layers: int = 6
    width: int = 384
    context: int = 256
    batch: int = 64
    steps: int = 20  # of training that are timed
    tokens: int = 128  # generated at most


QUICK = Sizes(
    lengths=(256,), batch_heads=4, layers=2, width=64, context=32, batch=4, steps=3, tokens=16
)


class Milliseconds(NamedTuple):
    """How long the GPU takes for a call, and how long the host takes to launch it."""

    gpu: float
    host: float


def milliseconds(run: Callable[[], Any], repeats: int | None = None) -> Milliseconds:
    """How many milliseconds a call of the function `run` takes on the GPU, and how many the host
    needs to launch it: the medians over several calls.

    repeats  how many calls are timed, by default as many as fit into 0.12 s, at most 30

    Two earlier calls are not timed: they compile kernels and fill the memory pool.
    """
    from cupyx.profiler import benchmark

    limits = {"n_repeat": 30, "max_duration": 0.12} if repeats is None else {"n_repeat": repeats}
    found = benchmark(run, n_warmup=2, **limits)
    return Milliseconds(
        gpu=1e3 * float(np.median(found.gpu_times)), host=1e3 * float(np.median(found.cpu_times))
    )


def attention_of(run: Callable[[], Any]) -> str:
    """The names of the implementations of attention that "auto" chooses during a call of the
    function `run`, separated by commas.

    Call run once before this function, so that implementations that fail on this machine have
    already failed: "auto" then no longer chooses them.
    """
    names: dict[str, None] = {}  # a set that keeps the order

    def noted(x: Arguments, wanted: Any) -> Any:
        with implementation("auto"):
            chosen = explain_dispatch(x.query, x.key, x.value, x.mask).implementation
        names[chosen] = None
        return IMPLEMENTATIONS[chosen].function(x, wanted)

    with implementation(noted):
        run()
    return ", ".join(names)


def empty_pool() -> Any:
    """Free the unused memory of CuPy's memory pool, and return the pool. Its size after a call is
    the peak memory of the call."""
    import cupy

    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    return pool


def torch_without_tf32() -> Any:
    """Import PyTorch, switch TF32 off for products of float32 on CUDA, and reset the count of peak
    memory. Returns the module torch.

    Raises ImportError without PyTorch, RuntimeError without CUDA.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.zeros(1, device=TORCH_DEVICE)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch


class AnotherRunsError(Exception):
    """An implementation other than the requested one runs. The message says why."""


@contextlib.contextmanager
def failure_noted(row: Row) -> Iterator[None]:
    """A context manager: an error that the block raises is written into the row, in one line and
    under the name "failed", and goes no further."""
    try:
        yield
    except Exception as error:
        row["failed"] = in_one_line(error)


def in_one_line(error: Exception) -> str:
    """An error as one line of text, cut off after 240 letters: its type and its message. If a
    kernel could not be compiled, the line begins by saying so. An AnotherRunsError gives its
    message alone."""
    line = why_it_failed(error).removeprefix("it failed: ")
    if isinstance(error, AnotherRunsError):
        line = str(error)
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"


_LONGEST = 240


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table with one line for each row. A cell is empty if its row has no value
    for the column."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, ["---"] * len(columns)]
    lines += [[_cell(row.get(name, "")) for name in columns] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def side_by_side(rows: Sequence[Row], by: str, show: str) -> list[Row]:
    """A wider table: each value of the column `by`, such as "torch" in "implementation", becomes a
    column of its own, which has the values of the column `show`, such as "ms".

    Rows that have the same values in all columns before `by` become one row. Of a failure, only the
    word "failed" is shown.
    """
    merged: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        names = list(row)
        common = {name: row[name] for name in names[: names.index(by)]}
        cell = "failed" if "failed" in row else row[show]
        merged.setdefault(tuple(common.values()), common)[row[by]] = cell
    return list(merged.values())


def _cell(value: Any) -> str:
    text = str(value)
    if isinstance(value, float):
        text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if len(text) > _WIDEST:  # kernels made from templates have names of a thousand characters
        text = f"{text[:_WIDEST]}…"
    return text.replace("|", "\\|")


_WIDEST = 90
