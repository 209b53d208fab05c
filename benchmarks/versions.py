"""This version and another checkout of minimha, measured by turns in one run.

python benchmarks/versions.py FOLDER [--quick] [--save FILE]

Each version has a process of its own with two threads, and waits while the other one is measured: a
training step as in `training_step.py`, and attention without a mask on 8 positions: the value for
arrays, and forward and backward for Tensors. A ratio below 1 means that this version is faster.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import common
import training_step
from common import ratios, seconds, spread, table

THIS = pathlib.Path(__file__).parents[1]
CALLS = 300  # of attention in a turn


def attention() -> dict[str, Callable[[], None]]:
    """Calls of attention on heads of 8 positions."""
    import numpy as np

    import minimha as mh

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, 2, 8, 16), dtype=np.float32) for _ in range(3)]
    dout = np.ones_like(arrays[0])

    def on_arrays() -> None:
        mh.scaled_dot_product_attention(*arrays)

    def on_tensors() -> None:
        inputs = [mh.Tensor(x, requires_grad=True) for x in arrays]
        mh.scaled_dot_product_attention(*inputs).backward(dout)

    return {"arrays": on_arrays, "Tensors": on_tensors}


def measure() -> None:
    """In the process of one version: a line with the name of a measurement asks for a turn."""
    step = training_step.minimha_step(
        training_step.mh.GPT(
            training_step.VOCABULARY, context=training_step.CONTEXT, **training_step.SIZES
        )
    )
    turns: dict[str, Callable[[], float]] = {"step": lambda: 1e3 * training_step.turn(step)}
    for name, call in attention().items():
        turns[name] = partial(microseconds, call)
    for line in sys.stdin:
        print(turns[line.strip()](), flush=True)


def microseconds(call: Callable[[], None]) -> float:
    """The median time of a call."""
    return 1e6 * statistics.median(seconds(call) for _ in range(CALLS))


def start(folder: pathlib.Path) -> subprocess.Popen[str]:
    """The process that measures the version in a folder."""
    path = os.pathsep.join(str(folder / part) for part in (".", "autograd"))
    return subprocess.Popen(
        [sys.executable, __file__, "--measure"],
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(process: subprocess.Popen[str], name: str) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    print(name, file=process.stdin, flush=True)
    return float(process.stdout.readline())


def main() -> None:
    parser = common.arguments(__doc__, quick="2 turns")
    parser.add_argument("folder", type=pathlib.Path, help="the other checkout")
    options = parser.parse_args()
    both = {"this version": start(THIS), "the other": start(options.folder.resolve())}
    rows = []
    measured = {
        "step": "training step, ms",
        "arrays": "attention on arrays, µs",
        "Tensors": "attention on Tensors, forward and backward, µs",
    }
    for name, what in measured.items():
        calls = {version: partial(ask, process, name) for version, process in both.items()}
        times = common.take_turns(calls, 2 if options.quick else 31)
        compared = ratios(times["this version"], times["the other"])
        rows.append([what, *(spread(seen) for seen in times.values()), spread(compared)])
    for process in both.values():
        process.communicate()
    page = table(["", *both, "ratio"], rows)
    common.show(f"{page}\n\n{common.versions()} {common.machine()}\n", options.save)


if __name__ == "__main__":
    if sys.argv[1:] == ["--measure"]:
        measure()
    else:
        main()
