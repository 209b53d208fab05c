"""What the parts of the report share: sizes, times by CUDA events, and tables in Markdown."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

Row = dict[str, Any]
"""A measurement: its values by the names of their columns."""

Prepared = tuple[Callable[[], Any], Callable[[], float]]
"""What is timed, and a function that returns the bytes of memory that it has needed at most."""

TORCH_DEVICE = "cuda"


class Sizes(NamedTuple):
    """T = S for the errors, T = S and B·H for the times, and a GPT trained for some steps."""

    length: int = 200
    lengths: tuple[int, ...] = (1024, 4096)
    batch_heads: int = 64
    layers: int = 6
    width: int = 384
    context: int = 256
    batch: int = 64
    steps: int = 20


QUICK = Sizes(200, (256,), 4, 2, 64, 32, 4, 3)


def milliseconds(run: Callable[[], Any], repeats: int | None = None) -> float:
    """The median time of run on the GPU, by default of as many repeats as fit into 0.12 s, at most
    30. Two runs beforehand do not count: they compile, and fill the pool of memory."""
    from cupyx.profiler import benchmark

    limits = {"n_repeat": 30, "max_duration": 0.12} if repeats is None else {"n_repeat": repeats}
    return 1e3 * float(np.median(benchmark(run, n_warmup=2, **limits).gpu_times))


def empty_pool() -> Any:
    """CuPy's pool of memory, without what nothing uses: what it holds later is what was needed."""
    import cupy

    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    return pool


def torch_without_tf32() -> Any:
    """PyTorch on CUDA, with float32 products in float32, and memory counted from now on.

    Raises ImportError without PyTorch, RuntimeError without CUDA.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.zeros(1, device=TORCH_DEVICE)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch


@contextlib.contextmanager
def failure_noted(row: Row) -> Iterator[None]:
    """Note an error in the row, in one line, instead of raising it."""
    try:
        yield
    except Exception as error:
        row["failed"] = f"{type(error).__name__}: {error}".partition("\n")[0][:160]


def markdown(rows: Sequence[Row]) -> str:
    """A table with one line for each row; a value that a row lacks is an empty cell."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, ["---"] * len(columns)]
    lines += [[_cell(row.get(name, "")) for name in columns] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def side_by_side(rows: Sequence[Row], by: str, show: str) -> list[Row]:
    """The values of column `show`, with a column for each value of column `by`.

    Rows that agree in the columns before `by` become one. A failure is the word "failed" alone.
    """
    merged: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        names = list(row)
        common = {name: row[name] for name in names[: names.index(by)]}
        cell = "failed" if "failed" in row else row[show]
        merged.setdefault(tuple(common.values()), common)[row[by]] = cell
    return list(merged.values())


def _cell(value: Any) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|")
