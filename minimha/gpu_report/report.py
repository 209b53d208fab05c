"""The command `minimha gpu-report`.

In its present form it is untried on a GPU and has only run on a stand-in for CuPy. An earlier form,
without the parts "kernels" and "generation", mixed precision and D = 128, has run on a GPU.

Each part of the report runs in its own process and prints its rows as it measures them. So a kernel
that hangs, or an error after which CUDA refuses every call, costs only the rest of one part.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from minimha_autograd import backend

from .attention import implementations, times
from .generation import generation
from .measuring import QUICK, Row, Sizes, markdown, side_by_side
from .training_step import kernels, training_step

LAST_START = 420
"""Seconds after which no further part begins."""
END = 470
"""Seconds after which the part that is running is stopped."""

PACKAGES = (
    "minimha", "numpy", "array-api-compat", "cuda-tile", "nvidia-cuda-tileiras", "torch",
)  # fmt: skip


def machine(_: Sizes) -> Iterator[Row]:
    """Yield rows with the GPU, its driver, the versions of Python and of the packages used, and the
    paths at which CUDA's compiler is looked for: in each row "what" names one of these, and "value"
    is its value. The argument, the sizes to measure, is ignored."""
    import cupy

    card = cupy.cuda.runtime.getDeviceProperties(0)
    cuda = cupy.cuda.runtime.driverGetVersion()
    query = "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"
    driver = "unknown"
    with suppress(OSError):
        found = subprocess.run(query, capture_output=True, text=True, check=False).stdout
        driver = found.partition("\n")[0] or driver
    values = {
        "GPU": card["name"].decode(),
        "compute capability": f"{card['major']}.{card['minor']}",
        "memory": f"{card['totalGlobalMem'] / 2**30:.0f} GiB",
        "driver": f"{driver}, for CUDA {cuda // 1000}.{cuda % 1000 // 10}",
        "Python": sys.version.partition(" ")[0],
        "CuPy": cupy.__version__,
    }
    for name in PACKAGES:
        values[name] = "not installed"
        with suppress(importlib.metadata.PackageNotFoundError):
            values[name] = importlib.metadata.version(name)
    values["tileiras on the PATH"] = shutil.which("tileiras") or "none"
    for name in ("CUDA_HOME", "CUDA_PATH"):  # where tileiras looks for ptxas and libnvvm
        values[name] = os.environ.get(name, "not set")
    yield from ({"what": name, "value": value} for name, value in values.items())


class Part(NamedTuple):
    """A part of the report.

    title    its heading
    rows     the function that measures: it takes the sizes and yields the rows. None for the part
             with the tests, which pytest runs
    seconds  after how many seconds the part is stopped
    about    the text below the heading
    shown    columns of the rows that each become a table, with the implementations side by side;
             without any, one table shows all rows
    """

    title: str
    rows: Callable[[Sizes], Iterator[Row]] | None  # None for the tests, which pytest runs
    seconds: float
    about: str = ""
    shown: tuple[str, ...] = ()  # columns of which each becomes a table, with the implementations


PARTS = {
    "machine": Part("The machine", machine, 60),
    "training-step": Part(
        "A training step", training_step, 60,
        "Forward, loss, backward and AdamW of a GPT in float32, with TF32 off and from the same "
        "weights; with \"bfloat16\", only matrix products use bfloat16 (in PyTorch by autocast). "
        "PyTorch runs eagerly, with its TransformerEncoderLayer and a fused AdamW. \"host\" is the "
        "time that the CPU takes to launch a step, \"attention\" the implementation that ran.",
    ),
    "kernels": Part(
        "The kernels of a training step", kernels, 60,
        "The kernels of the same steps, as PyTorch's profiler lists them: it gets those of all "
        "libraries from NVIDIA's CUPTI. Without PyTorch, this part only says so.",
    ),
    "generation": Part(
        "Generation", generation, 80,
        "The same GPT continues a single token, with a cache, and always picks the most likely "
        "token: on the GPU with CuPy, and on the CPU of the same machine with NumPy.",
    ),
    "implementations": Part(
        "Which implementations run, and their errors", implementations, 180,
        "The first call without a mask compiles the kernels, forward and backward. An error is the "
        "largest difference from float64, in the output or a gradient, relative to the largest "
        "entry. H = 4, G = 2, T = S = 200; the inputs are rounded to the dtype first.",
    ),
    "times": Part(
        "Times of attention", times, 210,
        "Medians of CUDA events; H = G. A forward takes 4·B·H·T·S·D operations, forward and "
        "backward 3.5 times as many, with a causal mask half as many. TF32 is off in PyTorch and, "
        "unless MINIMHA_TF32 is set, in minimha. torch is its scaled_dot_product_attention, with "
        "the backend that it chooses, with cuDNN, with FlashAttention, and with its math backend. "
        "MiB is the peak memory, inputs included. A cell says \"failed\" if a kernel does not "
        "compile or run, or if another implementation takes over; the reasons follow the tables.",
        ("ms", "TFLOP/s", "MiB"),
    ),
    "tests": Part(
        "The tests on CuPy", None, END, "`pytest --array-backend cupy -k cupy` in a clone."
    ),
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `minimha gpu-report` to the parser of this command. The options that the
    parser then reads have the attribute `run`, a function: run(options) runs the command and
    returns its exit code."""
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="FOLDER",
        help="where the Markdown and the JSON go (default: the current folder)",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="small sizes and no tests")
    measured = [name for name, part in PARTS.items() if part.rows]
    parser.add_argument(
        "--part", choices=measured, metavar="NAME",
        help="print the rows of one part as JSON, and write no files: " + ", ".join(measured),
    )  # fmt: skip
    parser.set_defaults(run=_run, command=parser)


def _run(options: argparse.Namespace) -> int:
    try:
        backend.library("cupy")
        options.out.mkdir(parents=True, exist_ok=True)
    except (RuntimeError, OSError) as error:
        print(f"minimha: {error}", file=sys.stderr)
        return 2
    if options.part:
        measure = PARTS[options.part].rows
        assert measure is not None
        for row in measure(QUICK if options.quick else Sizes()):
            print(json.dumps(row), flush=True)
        return 0
    begin = time.perf_counter()
    done = []
    for name, part in PARTS.items():
        print(f"{part.title} …", flush=True)
        done.append(_measured(name, options.quick, time.perf_counter() - begin))
    for path in _write(done, options.out):
        print(path)
    return 0


def _measured(name: str, quick: bool, elapsed: float) -> dict[str, Any]:
    """Run one part of the report in a process of its own, and return its entry of the JSON file: a
    dictionary with its rows and, among others, a list of its problems.

    name     a key of PARTS
    quick    whether to measure small sizes and run no tests
    elapsed  the seconds since the command began
    """
    part = PARTS[name]
    rows = []
    start = time.perf_counter()
    seconds = min(part.seconds, END - elapsed)
    if elapsed > LAST_START:
        problems = [f"left out: {elapsed:.0f} s had passed"]
    elif part.rows:
        command = [sys.executable, "-m", "minimha", "gpu-report", "--part", name]
        output, problems = _output(command + ["--quick"] * quick, seconds)
        rows = [json.loads(line) for line in output.splitlines() if line.endswith("}")]
    elif quick:
        problems = ["left out by --quick"]
    else:
        rows, problems = _tests(seconds)
    spent = round(time.perf_counter() - start, 1)
    return {"part": name, "title": part.title, "seconds": spent, "problems": problems, "rows": rows}


def _output(command: list[str], seconds: float) -> tuple[str, list[str]]:
    """Run a command, but stop it after `seconds`. Returns what it printed, and a list of its
    problems, empty if there are none: lines in which minimha warned, an exit code other than 0, or
    that it was stopped."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", errors="replace",
            timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode(errors="replace"), [f"stopped after {seconds:.0f} s"]
    lines = done.stderr.strip().splitlines()
    problems = [line for line in lines if line.startswith("minimha: ")]
    if done.returncode:
        problems.append(f"exit code {done.returncode}: " + (lines or ["no message"])[-1])
    return done.stdout, problems


def _tests(seconds: float) -> tuple[list[Row], list[str]]:
    """Run the tests that use an array library on CuPy arrays, for up to `seconds`. Returns rows
    with the number of tests for each result, such as "passed", and a list of problems: the first 40
    tests that failed, and whatever kept the others from running."""
    here = Path(__file__).parents[2] / "tests", Path("tests")
    folder = next((path for path in here if (path / "cupy_on_numpy.py").exists()), None)
    if folder is None:
        return [], ["left out: the tests are not installed; run the command in a clone"]
    command = [sys.executable, "-m", "pytest", "-v", "--tb=no", "-rfE", "-p", "no:cacheprovider"]
    command += ["--array-backend", "cupy", "-k", "cupy", str(folder)]
    if importlib.util.find_spec("xdist"):
        command += ["-n", "4"]
    output, problems = _output(command, seconds)
    results = re.findall(
        r"^(?!FAILED|ERROR|SKIPPED)(.* (PASSED|FAILED|ERROR|SKIPPED)\b.*)", output, re.MULTILINE
    )
    seen = Counter(result.lower() for _, result in results)
    failures = re.findall(r"^(?:FAILED|ERROR) .*", output, re.MULTILINE)  # with messages
    if not failures:  # pytest was stopped before it printed them
        failures = [line for line, result in results if result in ("FAILED", "ERROR")]
    rows: list[Row] = [{"result": name, "tests": seen[name]} for name in sorted(seen)]
    return rows, [*failures[:40], *(x for x in problems if not x.startswith("exit code 1:"))]


_LABELS = {"library": "{}", "implementation": "{}", "dtype": "{}", "D": "D = {}"}
"""The columns that identify a failed row in the list of failures."""


def _write(parts: list[dict[str, Any]], folder: Path) -> list[Path]:
    """Write the report to a Markdown file and a JSON file in this folder, named after the GPU.
    Returns both paths. parts are the entries of the parts that `_measured` returned."""
    values = {row["what"]: row["value"] for row in parts[0]["rows"]}
    card, driver = values.get("GPU", "an unknown GPU"), values.get("driver", "unknown")
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    text = [f"# On {card}\n\n`minimha gpu-report` on {day}. Driver: {driver}.\n"]
    for part in parts:
        _, _, _, about, shown = PARTS[part["part"]]
        text += [f"## {part['title']}\n", *([f"{about}\n"] if about else [])]
        for column in shown if part["rows"] else ():
            table = markdown(side_by_side(part["rows"], "implementation", column))
            text += [f"{column}:\n", table]
        good = [row for row in part["rows"] if "failed" not in row]
        if good and not shown:
            text.append(markdown(good))
        failures = [
            ", ".join(text.format(row[name]) for name, text in _LABELS.items() if name in row)
            + f": {row['failed']}"
            for row in part["rows"]
            if "failed" in row
        ]
        text += [f"- {line}" for line in dict.fromkeys([*part["problems"], *failures])] + [""]
    stem = "_".join(["gpu", *re.findall(r"\w+", card.lower())])
    data = {"card": card, "driver": driver, "date": day, "parts": parts}
    paths = [folder / f"{stem}.md", folder / f"{stem}.json"]
    contents = "\n".join(text).rstrip() + "\n", json.dumps(data, indent=1) + "\n"
    for path, content in zip(paths, contents, strict=True):
        path.write_text(content, encoding="utf-8")
    return paths
