"""Whether `mh.cost` tells in advance which form of the projections, or of attention, is faster.

python benchmarks/forms.py [--quick] [--save docs/measured/forms.md]
"""

from __future__ import annotations

import os

for name in ("OPENBLAS", "MKL", "OMP"):  # before NumPy is there
    os.environ.setdefault(f"{name}_NUM_THREADS", "1")

import argparse
import collections
import itertools
import math
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import show, table, versions

import minimha as mh

FORMS = tuple(mh.projections.FORMS)
PATHS = "reference", "loop", "steps"
CELLS: dict[str, list[dict[str, int]]] = {
    "projections": [
        {"M": 32, "H": 4, "T": 16, "B": 1},
        {"M": 32, "H": 2, "T": 64, "B": 8},
        {"M": 32, "H": 8, "T": 256, "B": 4},
        {"M": 48, "H": 6, "T": 32, "B": 2, "G": 2},
        {"M": 64, "H": 1, "T": 128, "B": 4},
        {"M": 64, "H": 4, "T": 8, "B": 1},
        {"M": 64, "H": 8, "T": 64, "B": 16},
        {"M": 64, "H": 2, "T": 512, "B": 2, "G": 1},
        {"M": 96, "H": 3, "T": 100, "B": 3},
        {"M": 128, "H": 1, "T": 64, "B": 8},
        {"M": 128, "H": 2, "T": 128, "B": 4},
        {"M": 128, "H": 4, "T": 64, "B": 12},
        {"M": 128, "H": 8, "T": 32, "B": 4, "G": 2},
        {"M": 128, "H": 16, "T": 128, "B": 2},
        {"M": 192, "H": 6, "T": 64, "B": 2},
        {"M": 256, "H": 1, "T": 256, "B": 1},
        {"M": 256, "H": 4, "T": 16, "B": 1},
        {"M": 256, "H": 8, "T": 128, "B": 2, "G": 2},
        {"M": 256, "H": 8, "T": 64, "B": 8},
        {"M": 256, "H": 32, "T": 64, "B": 4},
        {"M": 384, "H": 6, "T": 128, "B": 1},
        {"M": 512, "H": 8, "T": 64, "B": 1},
        {"M": 512, "H": 2, "T": 256, "B": 1},
        {"M": 512, "H": 16, "T": 128, "B": 1, "G": 4},
    ],
    "attention": [
        {"D": 8, "H": 4, "T": 8, "B": 1},
        {"D": 16, "H": 2, "T": 32, "B": 4},
        {"D": 16, "H": 8, "T": 64, "B": 8},
        {"D": 32, "H": 8, "T": 16, "B": 8, "G": 2},
        {"D": 32, "H": 4, "T": 128, "B": 2},
        {"D": 64, "H": 8, "T": 64, "B": 1, "G": 1},
        {"D": 64, "H": 1, "T": 256, "B": 1},
        {"D": 64, "H": 8, "T": 256, "B": 1},
        {"D": 64, "H": 4, "T": 512, "B": 1, "G": 2},
        {"D": 128, "H": 2, "T": 1024, "B": 1},
    ],
}
FAR = 1.2  # times that differ by more are to be told apart
TITLE = """# Which form is faster: expected and measured

`python benchmarks/forms.py`. Forward and backward on one thread, float32; the forms take turns, and
a time is the median over the turns of the least of several calls. The first column of times is in
milliseconds, the others are multiples of it; in brackets is what `mh.cost` expects of them, from
what `mh.cost.calibrate` measured before. A pair of forms counts where the measured times differ by
more than 20%. The aim is nine of ten of these pairs in the expected order.

"""


@mh.operation
def end(*outputs: Any) -> Any:
    """A number made of several arrays, whose pullback has a cotangent ready for each."""
    ready = tuple(np.ones(y.shape, y.dtype) for y in outputs)
    return np.ones(1, outputs[0].dtype), lambda dy: ready


def work(kind: str, way: str, cell: dict[str, int]) -> Callable[[], float]:
    """A function that does it once and says how long that took, in seconds."""
    s = mh.cost.Setting.of(**cell)
    z, rng = s.sizes, np.random.default_rng(0)

    def leaf(*shape: int) -> mh.Tensor:
        return mh.Tensor(rng.standard_normal(shape).astype(s.dtype), requires_grad=True)

    if kind == "attention":
        key = s.B, z.num_kv_heads, s.S, z.head_dim
        leaves = [leaf(s.B, z.num_heads, s.T, z.head_dim), leaf(*key), leaf(*key)]

        def compute() -> Any:
            if way == "steps":
                return [mh.attention_steps(*leaves).out]
            return [mh.scaled_dot_product_attention(*leaves, implementation=way)]
    else:
        x = leaf(s.B, s.T, z.d_model)
        made = mh.projections.Projections(
            z.d_model, z.num_heads, num_kv_heads=z.num_kv_heads, form=way
        )
        leaves = [x, *made.parameters()]

        def compute() -> Any:
            return made.project(x, x, x)

    def once() -> float:
        for p in leaves:
            p.grad = None
        start = time.perf_counter()
        end(*compute()).backward()
        return time.perf_counter() - start

    return once


def measured(kind: str, cell: dict[str, int], turns: int) -> dict[str, float]:
    """The median time of every form, in seconds."""
    ways = FORMS if kind == "projections" else PATHS
    calls = {way: work(kind, way, cell) for way in ways}
    repeats = {way: max(3, math.ceil(2e-3 / min(call(), call()))) for way, call in calls.items()}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(turns):
        for way, call in calls.items():
            times[way].append(min(call() for _ in range(repeats[way])))
    return {way: statistics.median(seen) for way, seen in times.items()}


def expected(kind: str, cell: dict[str, int], what: str = "seconds") -> dict[str, float]:
    """What the model says of the same: of the time, or of the flops."""
    cost, ways = {
        "projections": (mh.cost.projections, FORMS),
        "attention": (mh.cost.attention, PATHS),
    }[kind]
    costs = {way: cost(way, **cell) for way in ways}
    seconds = mh.cost.calibrate().seconds
    return {way: seconds(c) if what == "seconds" else c.flops for way, c in costs.items()}


def compared(seen: dict[str, float], said: dict[str, float]) -> tuple[list[str], list[str]]:
    """The pairs that are far apart, in the order that was measured: those told right, and wrong."""
    right, wrong = [], []
    for pair in itertools.combinations(seen, 2):
        fast, slow = sorted(pair, key=lambda way: seen[way])
        if seen[slow] > FAR * seen[fast]:
            (right if said[fast] < said[slow] else wrong).append(f"{fast} < {slow}")
    return right, wrong


def row(cell: dict[str, int], seen: dict[str, float], said: dict[str, float]) -> list[str]:
    first = next(iter(seen))
    units = {way: (1e-3, 1e-3) if way == first else (seen[first], said[first]) for way in seen}
    times = [f"{seen[w] / a:.3g} ({said[w] / b:.3g})" for w, (a, b) in units.items()]
    right, wrong = compared(seen, said)
    named = " ".join(f"{k}={n}" for k, n in cell.items())
    return [named, *times, f"{len(right)} of {len(right) + len(wrong)}", "; ".join(wrong)]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 cells of each kind, 3 turns")
    parser.add_argument("--save", type=pathlib.Path, help="write the tables to a file, too")
    options = parser.parse_args()
    machine = mh.cost.calibrate()
    text, total = TITLE, collections.Counter[str]()
    for kind, cells in CELLS.items():
        rows = []
        for cell in cells[:2] if options.quick else cells:
            seen, said = measured(kind, cell, 3 if options.quick else 9), expected(kind, cell)
            rows.append(row(cell, seen, said))
            told, wrong = map(len, compared(seen, said))
            by_flops, _ = compared(seen, expected(kind, cell, "flops"))
            total.update({kind: told, f"{kind}, all": told + wrong})
            total.update({"flops": len(by_flops), "told": told, "all": told + wrong})
        ways = FORMS if kind == "projections" else PATHS
        headers = [kind, f"{ways[0]}, ms", *ways[1:], "told right", "told wrong"]
        text += table(headers, rows) + "\n\n"
    parts = ", ".join(f"{total[k]} of {total[f'{k}, all']} of {k}" for k in CELLS)
    share = total["told"] / total["all"]
    text += f"Told right: {total['told']} of {total['all']} pairs, {share:.0%}: {parts}.\n"
    text += f"By the flops alone, which are often equal: {total['flops']}.\n\n"
    text += f"Calibrated: {machine}.\n{versions()}\n"
    show(text, options.save)


if __name__ == "__main__":
    main()
