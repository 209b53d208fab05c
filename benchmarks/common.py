"""Shared by the benchmarks: optional libraries, turns, ratios, tables, options and memory."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

_LOAD = f", load {os.getloadavg()[0]:.1f} before the run" if hasattr(os, "getloadavg") else ""


def blas_threads(number: int) -> None:
    """Set the threads of a BLAS that is loaded later, unless the environment already does."""
    for name in ("OPENBLAS", "MKL", "OMP"):
        os.environ.setdefault(f"{name}_NUM_THREADS", str(number))


def optional(name: str) -> Any:
    """A module, or None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def printed(*arguments: str, starter: Sequence[str] = (), **environment: str) -> list[float]:
    """The numbers that a new Python process prints. starter: the command that starts it."""
    command, environment = [*starter, sys.executable, *arguments], os.environ | environment
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [float(number) for number in done.stdout.split()]


def take_turns(calls: dict[str, Callable[[], Any]], turns: int) -> dict[str, list[Any]]:
    """The results of each call; the calls take turns."""
    results: dict[str, list[Any]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            results[name].append(call())
    return results


def ratios(times: Sequence[float], others: Sequence[float]) -> list[float]:
    """The ratio in each turn."""
    return [a / b for a, b in zip(times, others, strict=True)]


def spread(values: Sequence[float]) -> str:
    """The median, with the quartiles in brackets."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def verdict(value: float, bound: float | None) -> str:
    if bound is None:
        return ""
    return f"{bound:.3g} {'holds' if value <= bound else '**misses**'}"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def versions(**packages: str) -> str:
    """The versions measured. packages: the distribution of each library, by the name to print."""
    named = {"NumPy": "numpy", **packages}
    numbers = ", ".join(f"{name} {version(package)}" for name, package in named.items())
    where = f"{platform.system()} on {platform.machine()}"
    return f"Python {platform.python_version()}, {numbers}, {where}."


def machine() -> str:
    """The processor, its cores, the vectors that kernels use, and the load before."""
    from minimha.kernels.cpu.registers import BYTES

    name = "an unnamed processor"
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((x.partition(": ")[2] for x in lines if x.startswith("model name")), name)
    return f"{name}, {os.cpu_count()} cores, vectors of {8 * BYTES} bits{_LOAD}."


def arguments(doc: str | None, quick: str) -> argparse.ArgumentParser:
    """A parser of the shared options. doc: the docstring of the file; quick: help for --quick."""
    parser = argparse.ArgumentParser(description=str(doc).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--save", type=pathlib.Path, help="also write the page to a file")
    return parser


def show(text: str, save: pathlib.Path | None) -> None:
    """Print a page that ends in a newline, and write it to a file if there is one."""
    print(text, end="")
    if save:
        save.write_text(text, encoding="utf-8")


def growth(call: Callable[[], Any]) -> float:
    """The largest growth of this process during call, in MiB (Linux).

    Not from resource.getrusage, whose peak includes the process that started this one. Freed memory
    is returned to the system first; otherwise call could reuse it unnoticed.
    """

    def kilobytes(name: str) -> int:
        status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.partition(f"{name}:")[2].split()[0])

    with contextlib.suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    before = kilobytes("VmRSS")
    call()
    return (kilobytes("VmHWM") - before) / 1024
