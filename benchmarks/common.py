"""What benchmarks share: peers that may be missing, ratios with their spread, tables, memory."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import pathlib
import platform
import statistics
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any


def optional(name: str) -> Any:
    """A module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def spread(values: Sequence[float]) -> str:
    """The median, and in brackets the quarter and the three-quarter mark."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Turn by turn."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def add_options(parser: argparse.ArgumentParser, quick: str) -> None:
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--save", type=pathlib.Path, help="write the page to a file, too")


def table(headers: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(headers) + " |", "| " + " | ".join("---" for _ in headers) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def versions(**peers: str) -> str:
    """What was measured with. peers: the names of packages, by what they are called."""
    named = {"NumPy": "numpy", **peers}
    packages = ", ".join(f"{name} {version(package)}" for name, package in named.items())
    where = f"{platform.system()} on {platform.machine()}"
    return f"Python {platform.python_version()}, {packages}, {where}."


def show(text: str, save: pathlib.Path | None) -> None:
    """Print a page that ends in a newline, and write it to a file, too."""
    print(text, end="")
    if save:
        save.write_text(text, encoding="utf-8")


def growth(call: Callable[[], Any]) -> float:
    """By how many MB the memory of this process grows at most while call runs (Linux).

    Not by resource.getrusage: its peak is that of the process that started this one, too, if that
    was the larger. What was freed before goes back to the system first, or call would take it again
    unseen.
    """

    def kilobytes(name: str) -> int:
        status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.partition(f"{name}:")[2].split()[0])

    with contextlib.suppress(AttributeError):  # another C library than GNU's
        ctypes.CDLL(None).malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forgets the peak
    before = kilobytes("VmRSS")
    call()
    return (kilobytes("VmHWM") - before) / 1024
